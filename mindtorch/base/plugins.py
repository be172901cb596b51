"""What other packages offer by entry points: optimization passes, patterns."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any, TypeVar

from .._ext.signals import by_signal_handler

__all__ = ["offered"]

T = TypeVar("T")


def offered(group: str, kind: type[T], failed: Callable[[str, Exception], Any]) -> list[T]:
    """What the entry points of `group` give, each one a `kind` with a name.

    failed: gets the name of each entry point that gives none, and why.
    """
    found: list[T] = []
    for entry in importlib.metadata.entry_points(group=group):
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
