"""Lazy tensors: what they are, how an op is recorded, how records are run, what a program means by them."""
