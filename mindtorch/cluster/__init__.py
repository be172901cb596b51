"""Accelerators on a Ray cluster: one actor each, and the process that speaks with Ray for the program (SPEC R2-R4)."""
