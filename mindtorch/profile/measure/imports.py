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

from mindtorch.base.import_hooks import find_elsewhere
from mindtorch.profile.report.lines import package_of


class ImportWatch:
    """A finder, first on ``sys.meta_path``, that calls ``begin(installed, nested)`` and ``end(installed)`` around the
    loading of a module.

    Modules that a module imports in turn are part of it; but that the first of a library (installed, or Python's own)
    is loaded within a program's own is told, too (nested). found: nanoseconds by package, what it imported included.
    within: of that, by (package, the outermost that was being loaded then).
    """

    def __init__(self, begin: Callable[[bool, bool], None], end: Callable[[bool], None]) -> None:
        self._begin, self._end = begin, end
        self.found: Counter[str] = Counter()
        self.within: Counter[tuple[str, str]] = Counter()
        self._loading: dict[int, list[str]] = {}  # by identity of a thread: packages, from the outermost
        self._installed: set[int] = set()  # threads that load one of a library

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
            installed = bool(package_of(spec.origin or ""))
            self._time(getattr(spec.loader, "loader", spec.loader), package, installed)
        return spec

    def _time(self, loader: Any, package: str, installed: bool) -> None:
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
            told = not within or (installed and thread not in self._installed)
            if told:
                self._begin(installed, bool(within))
                self._installed |= {thread} if installed else set()
            within.append(package)
            begun = time.perf_counter_ns()
            try:
                load(module)
            finally:
                took = time.perf_counter_ns() - begun
                self.found[package] += took
                within.pop()
                if within:
                    self.within[package, within[0]] += took
                else:
                    del self._loading[thread]
                if told:
                    self._installed.discard(thread)
                    self._end(installed)

        timed.timed = True  # type: ignore[attr-defined]
        attributes["exec_module"] = timed
