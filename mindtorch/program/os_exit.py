"""``os._exit``, by which a program ends without any ado, where a report follows: what ran until then is told.

Here it ends the program by an exception, as SIGTERM does, so that the command goes on with its report. Afterwards the
process ends by it: no exit handler runs, and no thread is waited for. The program's ``finally`` blocks, which Python
would not have run, do run; one that goes on all the same is ended after `PATIENCE` seconds.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

from .termination import PATIENCE

__all__ = ["Left", "at_the_end", "leave", "leaving_with_a_report"]

#: What the command does then, as its exit handlers do otherwise.
at_the_end: list[Callable[[], object]] = []
_exit = os._exit
_left = False


class Left(BaseException):
    """The program called ``os._exit``."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status & 0xFF


class _Leaver:
    def __init__(self) -> None:
        self.process = os.getpid()
        self.status: int | None = None
        self.timer: threading.Timer | None = None

    def __call__(self, status: int) -> None:
        """``os._exit``."""
        if os.getpid() != self.process:
            _exit(status)
        if threading.current_thread() is not threading.main_thread():
            sys.stderr.write(f"genie: the program called os._exit({status}) in a thread of its own: no report\n")
            sys.stderr.flush()
            _exit(status)
        if self.status is None:
            self.status = Left(status).status
            self.timer = threading.Timer(PATIENCE, _exit, (self.status,))
            self.timer.daemon = True
            self.timer.start()
        raise Left(self.status)


@contextlib.contextmanager
def leaving_with_a_report() -> Iterator[None]:
    """``os._exit`` raises `Left` in the block, if this is the main thread; so does its end if that was caught."""
    global _left
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from ..base.patching import Patches  # with what torch needs

    leaver, held = _Leaver(), Patches(yields=True)
    held.put([(os, "_exit", leaver)])
    try:
        yield
    finally:
        held.undo()
        if leaver.timer is not None:
            leaver.timer.cancel()
        if leaver.status is not None and os.getpid() == leaver.process:
            _left = True
            if not isinstance(sys.exc_info()[1], Left):
                raise Left(leaver.status) from None


def leave(code: int) -> None:
    """End the process as the program wanted to, if it wanted to leave by ``os._exit``."""
    if not _left:
        return
    for act in reversed(at_the_end):
        act()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    _exit(code)
