"""Whether somebody reads standard error as it is written."""

from __future__ import annotations

import sys

__all__ = ["is_watched"]


def is_watched() -> bool:
    """Whether standard error is a terminal, now: a program may replace or close it."""
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()
