"""Tell the time that goes into importing apart from the program's own, also in the middle of a run.

Torch imports much of itself when it is first needed (the first optimizer loads its compiler: seconds).
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from mindtorch.base.loading import find_elsewhere


class ImportWatch:
    """A finder, first on ``sys.meta_path``, that calls ``begin()`` and ``end()`` around the loading of a module.

    Modules that a module imports in turn are part of it. found: nanoseconds by package, what it imported included.
    """

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin, self._end = begin, end
        self.found: Counter[str] = Counter()
        self._loading: dict[int, list[str]] = {}  # by identity of a thread: packages, from the outermost

    def __enter__(self) -> ImportWatch:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in sys.meta_path:  # the program may have replaced the list
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find, its loader timed; None while a module of its package is being loaded."""
        package = name.partition(".")[0]
        if package in self._loading.get(threading.get_ident(), ()):
            return None
        spec: ModuleSpec | None = find_elsewhere(self, name, path, target)
        if spec is not None:
            # A lazy loader loads nothing until the module is used, and then by the one that it holds.
            self._time(getattr(spec.loader, "loader", spec.loader), package)
        return spec

    def _time(self, loader: Any, package: str) -> None:
        attributes = getattr(loader, "__dict__", None)
        # Loaders of built-in modules are classes; one that several modules share may be timed already.
        if attributes is None or isinstance(loader, type) or hasattr(attributes.get("exec_module"), "timed"):
            return
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def timed(module: ModuleType) -> None:
            attributes.pop("exec_module", None)
            thread = threading.get_ident()
            within = self._loading.setdefault(thread, [])
            if package in within:
                return load(module)
            if not within:
                self._begin()
            within.append(package)
            begun = time.perf_counter_ns()
            try:
                load(module)
            finally:
                self.found[package] += time.perf_counter_ns() - begun
                within.pop()
                if not within:
                    del self._loading[thread]
                    self._end()

        timed.timed = True  # type: ignore[attr-defined]
        attributes["exec_module"] = timed
