"""Whether standard error is there, and somebody reads it as it is written: a program may replace or close it."""

from __future__ import annotations

import sys

__all__ = ["is_open", "is_watched"]


def is_open() -> bool:
    """Whether something can be written there, now."""
    return sys.stderr is not None and not sys.stderr.closed


def is_watched() -> bool:
    """Whether standard error is a terminal, now."""
    return is_open() and sys.stderr.isatty()
