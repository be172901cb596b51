"""The classes of tensors that record."""
