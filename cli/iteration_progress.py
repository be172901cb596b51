"""Where long work is, said on the terminal now and then (SPEC C8)."""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import time
from collections.abc import Callable
from types import FrameType

import click

from mindtorch.base.terminal import is_watched

from .units import counted

__all__ = ["HowFar", "Iterations", "note"]

_FIRST = 5.0  # seconds after which it is said
_LATER = 1.5  # times as long until it is said again
_PATIENCE = 1.0  # seconds to wait for a line that is being said
_COMMAND = os.path.dirname(__file__)


def note(text: str) -> None:
    """One line on stderr for whoever is waiting at a terminal."""
    if is_watched():
        click.echo(f"genie: {text}", err=True)


class HowFar:
    """Within the block a thread says what is being done: whole lines, and few, as a program may write there, too.

    doing: asked for the words. line: say also which line of the program's own the thread that enters the block is at.
    Off a terminal there is no thread.
    """

    def __init__(self, doing: Callable[[], str], line: bool = False) -> None:
        self._doing, self._line = doing, line
        self._worker = 0
        self._over, self._gone = _thread.allocate_lock(), _thread.allocate_lock()

    def __enter__(self) -> HowFar:
        self._began = time.monotonic()
        if is_watched():
            self._worker = _thread.get_ident()
            self._over.acquire()
            self._gone.acquire()
            # None of `threading`: a program that lists its threads does not meet it.
            _thread.start_new_thread(self._run, ())
            self._pid = os.getpid()
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker and self._pid == os.getpid():  # a forked process has no such thread
            self._over.release()
            self._gone.acquire(timeout=_PATIENCE)

    def _run(self) -> None:
        due = _FIRST
        try:
            while not self._over.acquire(timeout=max(due - self._passed(), 0)):
                due = _following(due)
                self._say()
        finally:
            self._gone.release()

    def _passed(self) -> float:
        return time.monotonic() - self._began

    def _say(self) -> None:
        if not is_watched():
            return
        words = [f"genie: {self._doing()} after {self._passed():.0f} s"]
        if self._line and (place := _place(sys._current_frames().get(self._worker))):
            words.append(f"at {place}")
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone, or the program has closed the stream
            sys.stderr.write(", ".join(words) + "\n")  # in one piece
            sys.stderr.flush()


class Iterations:
    """The words of a profile: how many iterations have ended, as it is told.

    wanted: how many there will be, if that is known. of: what the run is, "rank 3 of 8".
    """

    def __init__(self, wanted: int | None = None, of: str = "") -> None:
        self._wanted, self._of = wanted, of
        self._ended = 0

    def __call__(self, ended: int) -> None:
        self._ended = ended

    def words(self) -> str:
        ended = self._ended
        known = self._wanted is not None and ended <= self._wanted
        done = f"{ended:,} of {counted(self._wanted or 0, 'iteration')}" if known else counted(ended, "iteration")
        return f"{self._of}, {done}" if self._of else done


def _following(due: float) -> float:
    """When to say it again, in seconds since the beginning: more and more seldom."""
    return due + max((_LATER - 1) * due, _FIRST)


def _place(frame: FrameType | None) -> str:
    """The innermost line that is the program's own, which this command has called; empty where none is."""
    from mindtorch.engine.semantics import installed_folders, skipped_prefixes

    others = (*skipped_prefixes(), *installed_folders(), "<")
    while frame is not None and os.path.dirname(file := frame.f_code.co_filename) != _COMMAND:
        if not file.startswith(others):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
