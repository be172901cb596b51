"""What other packages offer by entry points: optimization passes, patterns, executors."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any, TypeVar

from .._ext.signals import by_signal_handler

__all__ = ["load", "names", "offered"]

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


def names(group: str) -> list[str]:
    """The names of the entry points of `group`."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=group)})


def load(name: str, group: str) -> Any:
    """What ``package.module:Class`` names, or the entry point `name` of `group`."""
    found = importlib.metadata.EntryPoint(name, name, group) if ":" in name else None
    return (found or next(iter(importlib.metadata.entry_points(group=group, name=name)))).load()
