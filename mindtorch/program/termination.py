"""SIGTERM, as a job's end sends it, where a report follows: what ran until then is told, and the process ends by it.

Python ends at once by this signal. Here it ends the program by an exception, as Ctrl-C does, so that its ``finally``
blocks run. A program that goes on all the same is ended after `PATIENCE` seconds, or by the next such signal. A handler
of the program's own is its own affair, and it is told that there was none before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["EXIT_CODE", "Terminated", "ending_with_a_report"]

EXIT_CODE = 128 + signal.SIGTERM
PATIENCE = 10.0  # seconds

_set, _get = signal.signal, signal.getsignal


_handlers: list[_Handler] = []


class Terminated(BaseException):
    """The program got SIGTERM."""


class _Handler:
    def __init__(self) -> None:
        self.timer: threading.Timer | None = None
        self.waits = True  # for the signal
        self.paused = False

    def __call__(self, number: int, frame: Any) -> None:
        self.waits = False
        _set(signal.SIGTERM, signal.SIG_DFL)
        self.timer = threading.Timer(PATIENCE, os.kill, (os.getpid(), number))
        self.timer.daemon = True
        self.timer.start()
        raise Terminated

    def _is_there(self) -> bool:
        return _get(signal.SIGTERM) is self

    def over(self) -> None:
        self.waits = False
        if self._is_there():
            _set(signal.SIGTERM, signal.SIG_DFL)
        if self.timer is not None:
            self.timer.cancel()

    def pause(self) -> None:
        """A child is forked, which begins without a handler: it forgets signals that it gets before it is ready."""
        if self.waits and self._is_there() and threading.current_thread() is threading.main_thread():
            _set(signal.SIGTERM, signal.SIG_DFL)
            self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            _set(signal.SIGTERM, self)

    # ---- what the program sees

    def signal(self, number: Any, handler: Any) -> Any:
        """``signal.signal``."""
        given = self if number == signal.SIGTERM and handler == signal.SIG_DFL and self.waits else handler
        return self._seen(_set(number, given))

    def getsignal(self, number: Any) -> Any:
        """``signal.getsignal``."""
        return self._seen(_get(number))

    def _seen(self, handler: Any) -> Any:
        return signal.SIG_DFL if handler is self else handler


@contextlib.contextmanager
def ending_with_a_report() -> Iterator[None]:
    """SIGTERM raises `Terminated` in the block, if this is the main thread and nobody handles or ignores it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _get(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    from ..base.patching import Patches  # with what torch needs

    handler = _Handler()
    _handlers.append(handler)
    held = Patches(yields=True)
    _set(signal.SIGTERM, handler)
    held.put([(signal, "signal", handler.signal), (signal, "getsignal", handler.getsignal)])
    try:
        yield
    finally:
        held.undo()
        handler.over()
        _handlers.remove(handler)


def _pause() -> None:
    for handler in _handlers:
        handler.pause()


def _resume() -> None:
    for handler in _handlers:
        handler.resume()


def _leave() -> None:
    for handler in _handlers:
        handler.over()
    _handlers.clear()


os.register_at_fork(before=_pause, after_in_parent=_resume, after_in_child=_leave)
