"""What other packages offer by entry points: optimization passes, patterns, executors."""

from __future__ import annotations

import _thread
import importlib.metadata
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from .._ext.signals import by_signal_handler
from .threads import start_unwatched

__all__ = ["load", "names", "offered"]

T = TypeVar("T")


def _entries(group: str) -> list[importlib.metadata.EntryPoint]:
    """Entry points of `group`, looked up in a thread of its own: importlib suppresses what is raised while it lists a
    folder, so also what a signal handler of the program's raises. Handlers run in the main thread alone.
    """
    found: list[importlib.metadata.EntryPoint] = []
    failed: list[BaseException] = [MemoryError("no memory for a thread that looks for entry points")]

    def look(_ends: object) -> None:
        try:
            found.extend(importlib.metadata.entry_points(group=group))
            failed.clear()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that asked
            failed[0] = error

    # Not threading.Thread: where a handler raises in its start(), its own KeyError replaces what was raised. What the
    # thread is given goes when it is over, also where it had no memory to begin.
    done = _thread.allocate_lock()
    done.acquire()
    ends = _Ends()
    over = weakref.ref(ends, done.__exit__)  # type: ignore[arg-type]  # takes anything, and is no Python
    try:
        start_unwatched(look, (ends,))
    except RuntimeError:  # no more threads, as while the interpreter shuts down
        look(None)
    del ends
    done.acquire()
    del over
    if failed:
        raise failed[0]
    return found


class _Ends:
    """Goes when nobody has it any more."""


def offered(group: str, kind: type[T], failed: Callable[[str, Exception], Any]) -> list[T]:
    """What the entry points of `group` give, each one a `kind` with a name.

    failed: gets the name of each entry point that gives none, and why.
    """
    found: list[T] = []
    for entry in _entries(group):
        try:
            given = entry.load()
            if not isinstance(given, kind) or not getattr(given, "name", ""):
                raise TypeError(
                    f"expected a {kind.__name__} with a name from the entry point {entry.name}, got {given!r}"
                )
        except Exception as error:
            if by_signal_handler(error):
                raise
            failed(entry.name, error)
        else:
            found.append(given)
    return found


def names(group: str) -> list[str]:
    """The names of the entry points of `group`."""
    return sorted({entry.name for entry in _entries(group)})


def load(name: str, group: str) -> Any:
    """What ``package.module:Class`` names, or the entry point `name` of `group`."""
    found = importlib.metadata.EntryPoint(name, name, group) if ":" in name else None
    return (found or next(entry for entry in _entries(group) if entry.name == name)).load()
