"""Where a cache's values are: in this process, or where a worker has them (SPEC L14)."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..._ext.strides import contiguous, extent
from ..record.arguments import quiet
from ..remote.kept_values import STATE_BYTES
from ..remote.mirrors import as_bytes, view
from .content_names import LITTLE, Names, NotKept, Structure, derived
from .shelves import Entry, Memory, Shelf

if TYPE_CHECKING:
    from ..._ext.encoder import Encoded
    from ..execute.local import LocalExecutor
    from ..remote.client import RemoteExecutor

__all__ = ["Elsewhere", "Here", "Place"]


class Place(ABC):
    """How segments of one executor are named, and have and leave values."""

    shelf: Shelf

    @abstractmethod
    def name(self, encoded: Encoded, structure: Structure) -> bytes:
        """The segment's name. NotKept where its values cannot be kept."""

    @abstractmethod
    def settle(self, segment: Any, encoded: Encoded, name: bytes, entry: Entry) -> bool:
        """Let a segment of this name have these values; False where they cannot be its."""

    @abstractmethod
    def call(self, name: bytes, encoded: Encoded, structure: Structure, own: list[torch.Tensor]) -> None:
        """Give names to what a segment of this name has made or written to. own: values on storages of its own, one
        each. NotKept where they are not."""

    @abstractmethod
    def left(self, encoded: Encoded, structure: Structure, own: list[torch.Tensor]) -> Entry:
        """What a segment has left. NotKept where that cannot be kept."""

    @abstractmethod
    def runs(self, encoded: Encoded) -> None:
        """A segment is going to run."""

    @staticmethod
    def written_storages(encoded: Encoded) -> dict[int, torch.Tensor]:
        """What the segment writes to of what it begins with, by place: a value of each storage."""
        first: dict[int, int] = {}
        for place, (_value, root) in enumerate(encoded.given):
            first.setdefault(root, place)
        storages = {
            encoded.given[first[root]][0].untyped_storage()._cdata: first[root]
            for root in encoded.written
            if root in first
        }
        return {place: encoded.given[place][0] for place in sorted(storages.values())}

    def _fits(self, encoded: Encoded, entry: Entry) -> bool:
        """Can the entry be what the segment would make?"""
        written = self.written_storages(encoded)
        if len(entry.own) != encoded.n_own or entry.written.keys() != written.keys():
            return False
        own = all(
            kept.numel() >= extent(sizes, contiguous(sizes) if strides is None else strides, offset) * dtype.itemsize
            for kept, (_, _, _, (dtype, sizes, strides, offset, _), _) in zip(entry.own, encoded.kept)
        )
        return own and all(entry.written[k].numel() == there.untyped_storage().nbytes() for k, there in written.items())

    def _check_size(self, structure: Structure, own: Iterable[torch.Tensor], written: Iterable[torch.Tensor]) -> None:
        nbytes = sum(value.untyped_storage().nbytes() for value in (*own, *written))
        if nbytes + STATE_BYTES * len(structure.draws) > self.shelf.most:
            raise NotKept("its values are larger than the cache")


class Here(Place):
    """In this process, on its CPU."""

    def __init__(self, runs: LocalExecutor, names: Names, shelf: Shelf) -> None:
        self._runs, self._names, self.shelf = runs, names, shelf

    def name(self, encoded: Encoded, structure: Structure) -> bytes:
        states = [self._runs.states[index].numpy().tobytes() for index in structure.states]
        return self._names.segment(encoded, structure, states)

    def settle(self, segment: Any, encoded: Encoded, name: bytes, entry: Entry) -> bool:
        if not self._fits(encoded, entry):
            return False
        with quiet():
            made: dict[int, torch.Tensor] = {}
            storages = {root: value.untyped_storage() for value, root in encoded.given}
            own = iter(entry.own)
            for k, (slot, root, _ordinal, (dtype, sizes, strides, offset, _place), bits) in enumerate(encoded.kept):
                if k < encoded.n_own:
                    storage = next(own).untyped_storage()
                    storages[slot] = storage if self.shelf.fresh else storage.clone()
                strides = contiguous(sizes) if strides is None else strides
                made[slot] = view(storages[root], dtype, sizes, strides, offset, bits)
            whole = [as_bytes(encoded.given[place][0]) for place in entry.written]
        states = {index: state.clone() for index, state in entry.states.items()}
        for there in whole:
            self._names.forget(there.untyped_storage())
        self._runs.settle(segment, made, list(zip(whole, entry.written.values())), states)
        return True

    def runs(self, encoded: Encoded) -> None:
        for there in self.written_storages(encoded).values():
            self._names.forget(there.untyped_storage())

    def call(self, name: bytes, encoded: Encoded, structure: Structure, own: list[torch.Tensor]) -> None:
        memory = {value.untyped_storage()._cdata for value in own}
        if len(memory) < len(own) or not memory.isdisjoint(v.untyped_storage()._cdata for v, _root in encoded.given):
            raise NotKept("results share memory, although they were recorded as separate")
        for place, value in enumerate(own):
            self._names.give(value.untyped_storage(), derived(name, "own", place))
        self._names.wrote([there.untyped_storage() for there in self.written_storages(encoded).values()], name)

    def left(self, encoded: Encoded, structure: Structure, own: list[torch.Tensor]) -> Entry:
        given = self.written_storages(encoded)
        self._check_size(structure, own, given.values())
        with quiet():
            copies = [self._runs.copied_storage(value) for value in own]
            written = {place: self._runs.copied_storage(value) for place, value in given.items()}
        return Entry(copies, written, {index: self._runs.states[index].clone() for index in structure.draws})


class Elsewhere(Place):
    """Where one worker has them, on its CPU: nothing of them crosses.

    The worker is asked for the digest of what nobody has named: once for a weight, whoever uploaded it. It may be one
    of several, and then another one be asked, which has an input. States of generators come and go with messages.
    """

    def __init__(self, runs: RemoteExecutor, names: Names, most: int) -> None:
        self._runs = weakref.proxy(runs)  # which ends when the program lets go of it, whatever a cache has of it
        self._names, self.shelf = names, Memory(most)
        self._failures = runs.kept.failures
        self.is_cpu = runs.machine().kind == "cpu"

    def name(self, encoded: Encoded, structure: Structure) -> bytes:
        names = self._runs.kept.names([value for value, _root in encoded.given])
        states = [self._runs.kept.state_name(index) for index in structure.states]
        if self._failures != self._runs.kept.failures:  # some of the values may never have been
            self._failures = self._runs.kept.failures
            self.shelf.clear()
        known = [name for name in names if name is not None]
        if len(known) < len(names):
            raise NotKept("an input could not be computed")
        return self._names.segment(encoded, structure, states, known)

    def settle(self, segment: Any, encoded: Encoded, name: bytes, entry: Entry) -> bool:
        if not self._fits(encoded, entry) or not all(map(self._runs.kept.has_come, entry.states.values())):
            return False
        self._runs.kept.settle(segment, encoded, entry.own, entry.written, entry.states)
        return True

    def runs(self, encoded: Encoded) -> None:
        """The executor knows what is written to, by whatever."""
        self._runs.kept.settle_given(encoded)

    def call(self, name: bytes, encoded: Encoded, structure: Structure, own: list[torch.Tensor]) -> None:
        for place, value in enumerate(own):
            self._runs.kept.name(value, derived(name, "own", place))
        for place, there in enumerate(self.written_storages(encoded).values()):
            if there.untyped_storage().nbytes() > LITTLE:
                self._runs.kept.name(there, derived(name, "written", place))
        for index in structure.draws:
            self._runs.kept.name_state(index, derived(name, "state", index))

    def left(self, encoded: Encoded, structure: Structure, own: list[torch.Tensor]) -> Entry:
        given = self.written_storages(encoded)
        self._check_size(structure, own, given.values())
        written = dict(zip(given, self._runs.kept.copies(list(given.values()))))
        little = [place for place, copy in written.items() if copy.numel() <= LITTLE]
        self._runs.kept.learn([given[place] for place in little], [written[place] for place in little])
        states = {index: self._runs.kept.state(index) for index in structure.draws}
        return Entry(self._runs.kept.copies(own), written, states)
