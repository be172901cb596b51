"""Where a long run is, said on the terminal now and then (SPEC C8)."""

from __future__ import annotations

import sys
import time

from .units import counted

__all__ = ["HowFar"]

_FIRST = 5.0  # seconds after which it is said
_LATER = 1.5  # times as long until it is said again


class HowFar:
    """Whole lines on standard error, if that is a terminal: few, as the program may write there, too.

    wanted: how many iterations there will be, if that is known. of: what the run is, "rank 3 of 8".
    """

    def __init__(self, wanted: int | None = None, of: str = "") -> None:
        self._wanted, self._of = wanted, of
        self._began = time.monotonic()
        self._due = self._began + _FIRST

    def __call__(self, ended: int) -> None:
        """So many iterations have ended."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + max((_LATER - 1) * (now - self._began), _FIRST)
        if not _terminal():
            return
        known = self._wanted is not None and ended <= self._wanted
        done = f"{ended:,} of {counted(self._wanted or 0, 'iteration')}" if known else counted(ended, "iteration")
        print(f"genie: {f'{self._of}, ' if self._of else ''}{done} after {now - self._began:.0f} s", file=sys.stderr)


def _terminal() -> bool:
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()
