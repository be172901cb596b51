"""Tell the time that goes into importing apart from the program's own, also in the middle of a run.

Torch imports much of itself when it is first needed (the first optimizer loads its compiler: seconds).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from mindtorch.patch.late import find_elsewhere


class ImportWatch:
    """A finder, first on ``sys.meta_path``, that calls ``begin()`` and ``end()`` around the loading of a module.

    Modules that a module imports in turn are part of it.
    """

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin, self._end = begin, end
        self._loading: set[int] = set()  # identities of threads

    def __enter__(self) -> ImportWatch:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in sys.meta_path:  # the program may have replaced the list
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find, its loader timed; None while a module is being loaded already."""
        if threading.get_ident() in self._loading:
            return None
        spec: ModuleSpec | None = find_elsewhere(self, name, path, target)
        if spec is not None:
            self._time(spec.loader)
        return spec

    def _time(self, loader: Any) -> None:
        attributes = getattr(loader, "__dict__", None)
        # Loaders of built-in modules are classes; one that several modules share may be timed already.
        if attributes is None or isinstance(loader, type) or "exec_module" in attributes:
            return
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def timed(module: ModuleType) -> None:
            attributes.pop("exec_module", None)
            thread = threading.get_ident()
            if thread in self._loading:
                return load(module)
            self._loading.add(thread)
            self._begin()
            try:
                load(module)
            finally:
                self._end()
                self._loading.discard(thread)

        attributes["exec_module"] = timed
