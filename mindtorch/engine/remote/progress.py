"""A line on the terminal while much crosses to a worker, or back, or while one is waited for (SPEC R2)."""

from __future__ import annotations

import shutil
import sys
import time

from ...base.terminal import is_open, is_watched

__all__ = ["Progress", "Waiting"]

_AFTER = 1.0  # seconds of crossing, after which it is shown
_EVERY = 0.2  # seconds
_IN_A_LOG = 10.0  # seconds, after which it is written there
_PAUSE = 1.0  # seconds without much, after which it is another crossing
_MUCH = 1 << 20  # bytes


class Progress:
    """Of one way to a worker, both directions. Shown on standard error, if that is a terminal."""

    def __init__(self) -> None:
        self._began = self._last = self._shown = 0.0
        self._seen = self._before = 0  # bytes now, and when it began

    def see(self, moved: int) -> None:
        """So many bytes have crossed since there is a worker."""
        little, self._seen = moved - self._seen < _MUCH, moved
        if little and not self._shown:
            return
        now = time.monotonic()
        if little or now - self._last > _PAUSE:
            self._clear()
            self._began, self._before = now, moved
        self._last = now
        if not little and now - self._began > _AFTER and now - self._shown > _EVERY and is_watched():
            self._shown = now
            crossed = moved - self._before
            rate = crossed / (now - self._began)
            sys.stderr.write(f"\r\x1b[K{crossed / 1e6:,.0f} MB to and from the worker, {rate / 1e6:,.0f} MB/s")
            sys.stderr.flush()

    def _clear(self) -> None:
        if self._shown:
            self._shown = 0.0
            if is_watched():
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


class Waiting:
    """Shows what is waited for, if that is something and takes more than a second, for the length of a block.

    Where no terminal is, as in a log, it says so once, after ten seconds.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._began, self._shown = time.monotonic(), ""

    def __enter__(self) -> Waiting:
        return self

    def show(self) -> None:
        waited = time.monotonic() - self._began
        if not self.what or self.what == self._shown or waited < _AFTER:
            return
        if not is_watched():
            if not self._shown and waited >= _IN_A_LOG and is_open():
                self._shown = self.what
                sys.stderr.write(f"genie: {self.what}\n")
                sys.stderr.flush()
        else:
            self._shown = self.what
            width = shutil.get_terminal_size().columns - 1  # of a longer line, only the last row could be cleared
            sys.stderr.write(f"\r\x1b[K{self.what[:width]}")
            sys.stderr.flush()

    def __exit__(self, *_raised: object) -> None:
        if self._shown and is_watched():
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
