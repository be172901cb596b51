"""`mindtorch.cache`: segments whose values are there are not run again (SPEC L14)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from ..._ext.encoder import Encoded, encode
from ...base.errors import UsageError
from ...base.strides import contiguous, extent
from ..execute import around_segments, triggers, values
from ..execute.local import LocalExecutor
from ..execute.wrapping import WrappingExecutor
from ..record.arguments import quiet
from ..remote.mirrors import view
from .content_names import Names, NotKept, Structure, derived
from .shelves import Entry, Folder, Memory, Shelf

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Cache", "cache"]

_MOST = 1 << 30


def cache(folder: str | os.PathLike[str] | None = None, *, max_bytes: int = _MOST) -> Cache:
    """Within ``with mindtorch.cache():``, segments that ran on ``remote_accelerator`` before are not computed again.

    folder: where values are kept, also for other processes and later runs; None: in memory, as long as the object
    exists. max_bytes: largest size of the cache; the least recently used values are removed first.

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
        self._shelf: Shelf = Memory(max_bytes) if folder is None else Folder(folder, max_bytes)
        self._names = Names()
        self._outside: list[around_segments.Keeper | None] = []

    @property
    def nbytes(self) -> int:
        """Bytes that are kept now."""
        return self._shelf.nbytes

    def clear(self) -> None:
        """Forget all values."""
        with values.lock:
            self._shelf.clear()

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
        """Run a segment, or find its values."""
        runs = executor
        while isinstance(runs, WrappingExecutor):
            runs = runs.inner
        if not isinstance(runs, LocalExecutor) or runs.device.type != "cpu":
            _refuse("values are not on this process's CPU")
            executor.submit(segment)
            return
        encoded = encode(segment)
        if not len(encoded):  # what it asks for has failed
            executor.submit(segment)
            return
        try:
            with quiet():
                structure = self._names.structure(encoded)
                name = self._names.segment(encoded, structure, runs.states)
        except NotKept as reason:
            _refuse(str(reason))
            self._run(executor, segment, encoded)
            return
        entry = self._shelf.get(name)
        if entry is not None and self._settle(runs, segment, encoded, name, entry):
            around_segments.counts["cache_hits"] += 1
        else:
            self._keep(executor, runs, segment, encoded, structure, name)

    def _settle(self, runs: LocalExecutor, segment: Any, encoded: Encoded, name: bytes, entry: Entry) -> bool:
        """Let the segment have these values; False where they cannot be its."""
        written = _written(encoded)
        if len(entry.own) != encoded.n_own or list(entry.written) != written:
            return False
        with quiet():
            made: dict[int, torch.Tensor] = {}
            storages = {root: value.untyped_storage() for value, root in encoded.given}
            own = iter(entry.own)
            for k, (slot, root, _ordinal, (dtype, sizes, strides, offset, _place), bits) in enumerate(encoded.kept):
                strides = contiguous(sizes) if strides is None else strides
                if k < encoded.n_own:
                    storage = next(own).untyped_storage()
                    if storage.nbytes() < extent(sizes, strides, offset) * dtype.itemsize:
                        return False
                    storages[slot] = storage if self._shelf.fresh else storage.clone()
                made[slot] = view(storages[root], dtype, sizes, strides, offset, bits)
            whole = [_whole(encoded.given[place][0]) for place in written]
            if any(there.numel() != now.numel() for there, now in zip(whole, entry.written.values())):
                return False
        states = {index: state.clone() for index, state in entry.states.items()}
        for there in whole:
            self._names.forget(there.untyped_storage())
        runs.settle(segment, made, list(zip(whole, entry.written.values())), states)
        triggers.idle += len(encoded)
        self._name(name, encoded, [made[slot] for slot, *_ in encoded.kept[: encoded.n_own]])
        return True

    def _run(self, executor: Any, segment: Any, encoded: Encoded) -> None:
        for place in _written(encoded):
            self._names.forget(encoded.given[place][0].untyped_storage())
        executor.submit(segment)

    def _keep(
        self, executor: Any, runs: LocalExecutor, segment: Any, encoded: Encoded, structure: Structure, name: bytes
    ) -> None:
        slots = [slot for slot, *_ in encoded.kept[: encoded.n_own]]
        wanted: dict[int, Any] = dict.fromkeys(slots)
        segment.wanted = wanted
        self._run(executor, segment, encoded)
        own = [wanted[slot] for slot in slots]
        if not all(isinstance(value, torch.Tensor) for value in own):
            _refuse("its executor runs it in parts")
            return
        memory = {value.untyped_storage()._cdata for value in own}
        if len(memory) < len(own) or not memory.isdisjoint(v.untyped_storage()._cdata for v, _root in encoded.given):
            _refuse("results share memory, although they were recorded as separate")
            return
        self._name(name, encoded, own)
        given = {place: encoded.given[place][0] for place in _written(encoded)}
        nbytes = sum(value.untyped_storage().nbytes() for value in (*own, *given.values()))
        if nbytes > self._shelf.most:
            _refuse("its values are larger than the cache")
            return
        with quiet():
            copies = [runs.copied_storage(value) for value in own]
            written = {place: runs.copied_storage(value) for place, value in given.items()}
        self._shelf.put(name, Entry(copies, written, {index: runs.states[index].clone() for index in structure.draws}))
        around_segments.counts["cache_misses"] += 1

    def _name(self, name: bytes, encoded: Encoded, own: list[torch.Tensor]) -> None:
        for place, value in enumerate(own):
            self._names.give(value.untyped_storage(), derived(name, "own", place))
        self._names.wrote([encoded.given[place][0].untyped_storage() for place in _written(encoded)], name)


def _refuse(reason: str) -> None:
    around_segments.refused[reason] = around_segments.refused.get(reason, 0) + 1


def _written(encoded: Encoded) -> list[int]:
    """Places among what a segment begins with of the storages that it writes to, one each."""
    first: dict[int, int] = {}
    for place, (_value, root) in enumerate(encoded.given):
        first.setdefault(root, place)
    storages = {
        encoded.given[first[root]][0].untyped_storage()._cdata: first[root] for root in encoded.written if root in first
    }
    return sorted(storages.values())


def _whole(value: torch.Tensor) -> torch.Tensor:
    """All of its storage, as bytes."""
    storage = value.untyped_storage()
    return view(storage, torch.uint8, (storage.nbytes(),), (1,), 0)
