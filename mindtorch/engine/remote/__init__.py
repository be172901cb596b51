"""Executors elsewhere than the program: messages, the worker that runs them, and the ways there (SPEC R1, R3)."""
