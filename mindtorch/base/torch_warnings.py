"""What torch warns of, it says once, at the program's call, though we run torch's code more often (SPEC L9).

Warnings that name a line of ours, or of how torch comes to us, are the program's line's. And a new call is predicted,
then tried on the kernel, and runs later: each may warn. What the first two say is caught and said once, at the call;
what runs later keeps silent about it.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

from .._ext.guards import Held
from . import PACKAGE

__all__ = ["Caught", "as_from_python", "listen", "relay", "say", "without_what_was_said"]

_OURS = PACKAGE + os.sep
_torch = importlib.util.find_spec("torch")  # not imported: `genie devices` does without
_BETWEEN = os.path.join(os.path.dirname((_torch and _torch.origin) or ""), "overrides.py")
_OPERATORS = os.path.join(os.path.dirname(_BETWEEN), "_ops.py")
_MOST = 1024
_said: dict[tuple[str, type[Warning]], None] = {}
_show: Any = None  # Python's own, once there is ours


class _Thread(threading.local):
    catching: Caught | None = None


_thread = _Thread()


class Caught(Held):
    """``with Caught() as caught:`` the block's warnings that the program's filters let through, not shown: messages.

    For this thread alone, which is what ``warnings.catch_warnings`` cannot do; and from `listen` on.
    """

    def __init__(self) -> None:
        super().__init__(_thread, "catching")
        self.messages: list[warnings.WarningMessage] = []

    def drop(self) -> None:
        """As if they had never been: what filters show only once is still to be shown."""
        once: Any = warnings.onceregistry  # type: ignore[attr-defined]
        for found in self.messages:
            once.pop((str(found.message), found.category), None)
        self.messages.clear()


class _Silent(Caught):
    def left(self) -> None:
        for found in self.messages:
            if (str(found.message), found.category) not in _said:
                _shown(found)


def listen() -> None:
    """From now on warnings pass here. Called where a program begins to use a device of ours, not before."""
    global _show
    if _show is None:
        _show = warnings._showwarnmsg  # type: ignore[attr-defined]
        warnings._showwarnmsg = _shown  # type: ignore[attr-defined]


def _shown(found: warnings.WarningMessage) -> None:
    inside, catching = sys._getframe(1), _thread.catching
    ours = _is_ours(found.filename, inside)
    if ours:
        _may_come_again(found.filename, inside)
    if catching is not None:
        catching.messages.append(found)
        return
    caller = _caller(inside) if ours else None
    if caller is None:
        _show(found)
        return
    # Filters are asked again: it is another line now.
    warnings.onceregistry.pop((str(found.message), found.category), None)  # type: ignore[attr-defined]
    warnings.warn_explicit(
        found.message,
        found.category,
        caller.f_code.co_filename,
        caller.f_lineno,
        caller.f_globals.get("__name__", "<string>"),  # None: nothing is shown
        caller.f_globals.setdefault("__warningregistry__", {}),
    )


def _may_come_again(filename: str, inside: FrameType | None) -> None:
    """Python has noted that a line of ours has warned, and would keep silent where other lines of the program do."""
    while inside is not None and inside.f_code.co_filename != filename:
        inside = inside.f_back
    if inside is not None:
        inside.f_globals.get("__warningregistry__", {}).clear()


def _is_ours(filename: str, inside: FrameType) -> bool:
    """Does a warning that comes from ``inside`` name a line of ours, or of how torch comes to us, or we to it?"""
    if filename != _OPERATORS:
        return filename == _BETWEEN or filename.startswith(_OURS)
    return inside.f_code is not _shown.__code__ and _calls_for_us(inside)  # else it was found to be the program's


def _calls_for_us(frame: FrameType | None) -> bool:
    """Is it an operator that we call? Some releases let a kernel's warning name the line in torch that called it."""
    while frame is not None and frame.f_code.co_filename == _OPERATORS:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_OURS)


def _caller(inside: Any) -> FrameType | None:
    """Who made the call that is being answered: not we, nor how torch comes to us from its functions in Python."""
    frame = inside
    while frame is not None and not _is_between(frame):
        frame = frame.f_back
    while frame is not None and _calls_for_us(frame):  # ours, and operators that ours call
        frame = frame.f_back
    if frame is not None and frame.f_code.co_filename == _BETWEEN:
        while frame is not None and frame.f_code.co_filename == _BETWEEN:
            frame = frame.f_back
        frame = frame and frame.f_back  # beyond the function that was called
    return None if frame is None or _is_between(frame) else frame


def _is_between(frame: FrameType) -> bool:
    return frame.f_code.co_filename == _BETWEEN or frame.f_code.co_filename.startswith(_OURS)


def say(messages: list[warnings.WarningMessage]) -> None:
    """Show what was caught, each text once."""
    for key, found in {(str(m.message), m.category): m for m in messages}.items():
        if len(_said) >= _MOST:
            _said.pop(next(iter(_said)))
        _said[key] = None
        _shown(found)


def relay(found: Iterable[tuple[str, str]]) -> None:
    """Show (category, text) that were warned of in another process, unless it was said here at the call already."""
    for name, text in found:
        kind = getattr(builtins, name, None)
        category = kind if isinstance(kind, type) and issubclass(kind, Warning) else UserWarning
        if (text, category) not in _said:
            warnings.warn(text, category, stacklevel=1)


def as_from_python(run: Callable[[], Any]) -> Any:
    """What ``run()`` gives, called within a function of torch's that Python calls: what C++ warns of is a warning of
    Python's by the end. Where operators are called, it would be one later, or printed.
    """
    import torch

    found: list[Any] = []

    def within(zero: int) -> int:
        found.append(run())
        return zero

    torch.zeros(1, dtype=torch.int64, device="cpu").apply_(within)
    return found[0]


def without_what_was_said() -> AbstractContextManager[Any]:
    """For running what was recorded: warnings that its calls gave are not shown again."""
    return _Silent() if _said else nullcontext()
