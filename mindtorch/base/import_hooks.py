"""What is done to a module once the program has loaded it, if ever: nobody else's package is imported for us.

How a finder of ours asks the finders of others, which may ask all finders, too; how imports search for no garbage.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["find_elsewhere", "forget", "is_asking", "when_loaded", "without_collecting"]
#: By name of a module: who waits for it, and what is then called with it.
_waiting: dict[str, dict[Any, Callable[[Any], None]]] = {}


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """For code that makes many objects and no garbage, as imports do: each collection goes through all of torch."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Asking(threading.local):
    """Who asks the others for which module: two that ask all others would ask each other for ever."""

    def __init__(self) -> None:
        self.now: list[tuple[Any, str, list[Any]]] = []  # and who has been asked already


_asking = _Asking()


def is_asking(finder: Any, name: str) -> bool:
    """Does this finder ask the others for the module now, in this thread?"""
    return any(each is finder and wanted == name for each, wanted, _asked in _asking.now)


def find_elsewhere(finder: Any, name: str, path: Any = None, target: Any = None) -> Any:
    """The spec that the finders other than this one find; None where there is none, or one of them asks back.

    Of several that ask for a module, each asks those whom none before it has asked: else they would try all orders.
    """
    if is_asking(finder, name):
        return None
    asked: list[Any] = next((asked for _each, wanted, asked in _asking.now if wanted == name), [])
    _asking.now.append((finder, name, asked))
    try:
        for other in list(sys.meta_path):
            if any(other is each for each in asked):
                continue
            asked.append(other)
            find = getattr(other, "find_spec", None)
            spec = find(name, path, target) if find is not None else None  # this finder's own answer is None
            if spec is not None:
                return spec
    finally:
        _asking.now.pop()
    return None


def _loaded(name: str) -> Any:
    """The module; None where it is not there, or is still being loaded. What another thread loads is waited for."""
    module = sys.modules.get(name)
    if _is_being_loaded(module):
        with contextlib.suppress(Exception):  # whatever its code raises: the program, which loads it, is told
            importlib.import_module(name)
        module = sys.modules.get(name)
    return None if _is_being_loaded(module) else module


def _is_being_loaded(module: Any) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


class _Finder:
    """Finds what the other finders find, and sees the module after it was loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _waiting:
            return None
        spec = find_elsewhere(self, name, path, target)
        if spec is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        load = getattr(loader, "exec_module", None)
        if load is None or not hasattr(loader, "__dict__"):
            return

        def exec_module(module: Any) -> None:
            load(module)
            for then in _waiting.pop(module.__name__, {}).values():
                then(module)

        loader.exec_module = exec_module


_finder: Any = _Finder()


def when_loaded(name: str, then: Callable[[Any], None], who: Any = None) -> Callable[[], object]:
    """Call ``then(module)`` now, or as soon as the module is loaded; of what one waits with, the last is called.

    Gives what ends the waiting.
    """
    if (module := _loaded(name)) is not None:
        then(module)
        return lambda: None
    who = who or then
    _waiting.setdefault(name, {})[who] = then
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    return lambda: _waiting.get(name, {}).pop(who, None)


def forget() -> None:
    """Wait for nothing any more."""
    _waiting.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
