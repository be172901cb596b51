"""The user's program: a script, module, folder or configuration, its inputs, and how it ended."""
