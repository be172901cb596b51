"""What the DataLoaders of a measured program did: how often they started workers, and what that took."""

from __future__ import annotations

import time
import weakref
from typing import Any

from mindtorch.engine.semantics import phases
from mindtorch.profile.report.recording import Loaded

__all__ = ["Loading"]


class Loading:
    """Told of every iterator of a DataLoader, and of each batch that it is asked for, within the block."""

    def __init__(self) -> None:
        self._iterators = self._started = self._later = 0
        self._first_ns: list[int] = []  # of workers that start, until their first batch is there
        self._later_ns = self._ended_ns = 0
        self._again = self._anew = False
        self._begun: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # iterators without a batch yet
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()  # those that started workers
        self._loader_of: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()  # by dataset

    def __enter__(self) -> Loading:
        phases.watchers.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        phases.watchers.remove(self)

    def made(self, iterator: Any, loader: Any) -> None:
        self._iterators += 1
        if not loader.num_workers:
            return
        self._started += 1
        self._again |= loader in self._loaders
        self._loaders.add(loader)
        try:
            before = self._loader_of.get(loader.dataset)
            self._loader_of[loader.dataset] = weakref.ref(loader)
        except TypeError:  # a list, or what cannot be hashed: whether it was met before stays unknown
            before = None
        self._anew |= before is not None and before() is not loader
        self._begun[iterator] = time.perf_counter_ns()

    def asked(self, iterator: Any, began: int, is_last: bool) -> None:
        """For a batch, or for the end; that call has ended."""
        if not getattr(iterator, "_num_workers", 0):
            return
        now = time.perf_counter_ns()
        made = self._begun.pop(iterator, None)
        if is_last:
            self._ended_ns += now - began
        elif made is not None:
            self._first_ns.append(now - made)
        else:
            self._later += 1
            self._later_ns += now - began

    def facts(self) -> Loaded:
        usual = self._later_ns / self._later if self._later else 0.0
        starting = sum(max(ns - usual, 0.0) for ns in self._first_ns) + self._ended_ns
        whole = sum(self._first_ns) + self._later_ns + self._ended_ns
        return Loaded(self._iterators, self._started, self._again, self._anew, starting / whole if whole else 0.0)
