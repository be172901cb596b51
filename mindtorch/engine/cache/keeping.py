"""`mindtorch.cache`: segments whose values are there are not run again (SPEC L14)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from ..._ext.encoder import encode
from ...base.errors import UsageError
from ..execute import around_segments, triggers, values
from ..execute.local import LocalExecutor
from ..execute.wrapping import WrappingExecutor
from ..record.arguments import quiet
from ..remote.client import RemoteExecutor
from ..remote.spread import SpreadExecutor
from .content_names import Names, NotKept
from .shelves import Folder, Memory, Shelf
from .where_kept import Elsewhere, Here, Place

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Cache", "cache"]

_MOST = 1 << 30


def cache(folder: str | os.PathLike[str] | None = None, *, max_bytes: int = _MOST) -> Cache:
    """Within ``with mindtorch.cache():``, segments that ran on ``remote_accelerator`` before are not computed again.

    folder: where values are kept, also for other processes and later runs; None: in memory, as long as the object
    exists. max_bytes: largest size of the cache, and of what it keeps on each worker where recordings run on workers;
    the least recently used values are removed first.

    A segment gets values from the cache if its operations, inputs (by their bits), settings, torch's build and the
    processor equal those of one that ran before; the values are eager's, bit for bit, and generators advance as if it
    had run. A segment that may give different results another time runs as usual, and
    ``mindtorch.stats()["not_cacheable"]`` says why. UsageError if max_bytes is not above 0 or the folder cannot be
    used.
    """
    return Cache(folder, max_bytes=max_bytes)


class Cache:
    """The context manager that `cache` returns; can be entered repeatedly, and cleared."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, max_bytes: int = _MOST) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes <= 0:
            raise UsageError(f"[cache] expected a number of bytes above 0, got {max_bytes!r}")
        if folder is not None and (not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder)):
            raise UsageError(f"[cache] expected the path of a folder, or None, got {folder!r}")
        self._shelf: Shelf = Memory(max_bytes) if folder is None else Folder(folder, max_bytes)
        self._names = Names()
        self._workers: WeakKeyDictionary[RemoteExecutor, Elsewhere] = WeakKeyDictionary()
        self._outside: list[around_segments.Keeper | None] = []

    @property
    def nbytes(self) -> int:
        """Bytes that are kept now, here and on workers."""
        with values.lock:
            return sum(shelf.nbytes for shelf in self._shelves())

    def clear(self) -> None:
        """Forget all values."""
        with values.lock:
            for shelf in self._shelves():
                shelf.clear()

    def _shelves(self) -> list[Shelf]:
        for runs, place in self._workers.items():
            if runs.kept.is_lost:
                place.shelf.clear()
        return [self._shelf, *(place.shelf for place in self._workers.values())]

    def __enter__(self) -> Cache:
        with values.lock:
            if not self._outside:
                self._names = Names()  # what was written meanwhile nobody has told
            self._outside.append(around_segments.keeper)
            around_segments.keeper = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with values.lock:
            around_segments.keeper = self._outside.pop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.nbytes:,} of {self._shelf.most:,} bytes>"

    # ---- segments ----------------------------------------------------------------------------------------------------
    def submit(self, executor: Any, segment: Any) -> None:
        """Run a segment, or find its values. Several workers come again with each part of it."""
        runs = executor
        while isinstance(runs, WrappingExecutor):
            runs = runs.inner
        if isinstance(runs, SpreadExecutor):
            executor.submit(segment)
            return
        try:
            place = self._place(runs)
        except NotKept as reason:
            _refuse(str(reason))
            executor.submit(segment)
            return
        encoded = encode(segment)
        if not len(encoded):  # what it asks for has failed
            executor.submit(segment)
            return
        try:
            with quiet():
                structure = self._names.structure(encoded)
                name = place.name(encoded, structure)
        except NotKept as reason:
            _refuse(str(reason))
            place.runs(encoded)
            executor.submit(segment)
            return
        slots = [slot for slot, *_ in encoded.kept[: encoded.n_own]]
        segment.wanted = wanted = dict.fromkeys(slots)
        entry = place.shelf.get(name)
        found = entry is not None and place.settle(segment, encoded, name, entry)
        if not found:
            place.runs(encoded)
            executor.submit(segment)
        own = [value for value in wanted.values() if isinstance(value, torch.Tensor)]
        if len(own) < len(slots):
            _refuse("its executor runs it in parts")
            return
        if found:
            around_segments.counts["cache_hits"] += 1
            triggers.idle += len(encoded)
        try:
            place.call(name, encoded, structure, own)
            if not found:
                place.shelf.put(name, place.left(encoded, structure, own))
                around_segments.counts["cache_misses"] += 1
        except NotKept as reason:
            _refuse(str(reason))

    def _place(self, runs: Any) -> Place:
        """Where an executor has values. NotKept where none can be kept."""
        if isinstance(runs, LocalExecutor) and runs.device.type == "cpu":
            return Here(runs, self._names, self._shelf)
        if not isinstance(runs, RemoteExecutor):
            kind = "on a GPU" if isinstance(runs, LocalExecutor) else "with an executor that the cache does not know"
            raise NotKept(f"its values are {kind}")
        if self._shelf.fresh:
            raise NotKept("its values are on a worker: only a cache in memory keeps those")
        found = self._workers.get(runs)
        if found is None:
            found = self._workers[runs] = Elsewhere(runs, self._names, self._shelf.most)
        if not found.is_cpu:
            raise NotKept("its values are on a GPU")
        if runs.kept.is_lost:
            found.shelf.clear()
            raise NotKept("its worker is lost")
        return found


def _refuse(reason: str) -> None:
    around_segments.refused[reason] = around_segments.refused.get(reason, 0) + 1
