"""From a call to a record: what an op is, what it gives, what cannot wait."""
