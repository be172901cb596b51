"""Everything that gives torch another function, attribute or name, and what stands there instead."""
