"""The ``genie`` command. One file per command; ``render`` alone uses rich; nothing here imports torch at the top."""
