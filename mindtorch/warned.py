"""What torch warns of, it says once, at the program's call, though we run torch's code more often (SPEC L9).

A new call is predicted, then tried on the kernel, and runs later: each may warn, from a line of ours. What the first
two say is caught and said again where the program made the call; what runs later keeps silent about it.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

import torch

__all__ = ["Caught", "say", "without_what_was_said"]

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_BETWEEN = os.path.join(os.path.dirname(torch.__file__), "overrides.py")
_MOST = 1024
_said: dict[tuple[str, type[Warning]], None] = {}
_show: Any = None  # Python's own, once there is ours


class _Thread(threading.local):
    catching: Caught | None = None


_thread = _Thread()


class Caught:
    """``with Caught() as caught:`` the block's warnings that the program's filters let through, not shown: messages.

    For this thread alone, which is what ``warnings.catch_warnings`` cannot do.
    """

    def __init__(self) -> None:
        self.messages: list[warnings.WarningMessage] = []

    def __enter__(self) -> Caught:
        global _show
        if _show is None:
            _show = warnings._showwarnmsg  # type: ignore[attr-defined]
            warnings._showwarnmsg = _shown  # type: ignore[attr-defined]
        self._outer = _thread.catching
        _thread.catching = self
        return self

    def __exit__(self, *exception: object) -> None:
        _thread.catching = self._outer

    def drop(self) -> None:
        """As if they had never been: what filters show only once is still to be shown."""
        once: Any = warnings.onceregistry  # type: ignore[attr-defined]
        for found in self.messages:
            once.pop((str(found.message), found.category), None)
        self.messages.clear()


    def pass_on(self) -> None:
        """To whoever catches outside of this block, else to the program."""
        for found in self.messages:
            _shown(found)


class _Silent(Caught):
    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self.messages = [m for m in self.messages if (str(m.message), m.category) not in _said]
        self.pass_on()


def _shown(found: warnings.WarningMessage) -> None:
    catching = _thread.catching
    if catching is not None:
        catching.messages.append(found)
        return
    if found.filename == _BETWEEN:  # "the caller's line" of a function in Python to which torch came by way of us
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != _BETWEEN:
            frame = frame.f_back
        if frame is not None and (caller := _caller(frame)).f_code.co_filename != _BETWEEN:
            _say_at(caller, found)
            return
    _show(found)


def say(messages: list[warnings.WarningMessage]) -> None:
    """Show what was caught: what torch's Python code said where it did, what came from a line of ours at the call."""
    seen = set()
    for found in messages:
        key = (str(found.message), found.category)
        if key in seen:
            continue
        seen.add(key)
        if len(_said) >= _MOST:
            _said.pop(next(iter(_said)))
        _said[key] = None
        if found.filename.startswith(_OURS):
            _say_at(_caller(sys._getframe(1)), found)
        else:
            _shown(found)


def _say_at(frame: FrameType, found: warnings.WarningMessage) -> None:
    warnings.onceregistry.pop((str(found.message), found.category), None)  # type: ignore[attr-defined]
    warnings.warn_explicit(found.message, found.category, frame.f_code.co_filename, frame.f_lineno,
                           frame.f_globals.get("__name__"), frame.f_globals.setdefault("__warningregistry__", {}))


def _caller(inside: FrameType) -> FrameType:
    """Who made the call that is being answered: not we, nor how torch comes to us from its functions in Python."""
    frame: Any = inside
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    if frame.f_code.co_filename == _BETWEEN:
        while frame.f_back is not None and frame.f_code.co_filename == _BETWEEN:
            frame = frame.f_back
        frame = frame.f_back or frame  # beyond the function that was called
    return frame


def without_what_was_said() -> AbstractContextManager[Any]:
    """For running what was recorded: warnings that its calls gave are not shown again."""
    return _Silent() if _said else nullcontext()
