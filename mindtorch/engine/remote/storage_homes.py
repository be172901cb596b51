"""Which worker runs which record, by where storages are at home (SPEC R5).

A record runs at the home of what it writes, else, if it makes only views of what has been made just now, or small ones,
where that is, else on its module's worker, else at the home of the first storage that it takes and that has one. A
storage that has no home yet, and lasts, gets that of the first module that takes it.

All others form groups: what a record takes and makes is one, and has one home, which the first record decides on that
has a worker. But a small function of large storages, such as a sum, does not draw those to it, nor together: it moves
alone. So a program that reads all of its parameters at once does not put them on one worker. Nor do groups become
larger than part of what a worker has room for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

__all__ = ["Record", "of_storages", "placed"]

#: (module id, phase, index that it draws for or -1, device, grad mode, takes, writes, makes): see `Segment.facts`.
Record = tuple[int, int, int, int, bool, Sequence[int], Sequence[int], Sequence[tuple[int, int]]]

_NOWHERE = -1
_SMALL = 8  # times as large is a group of which something is a small part
_PARTS = 4  # of a worker's room: a group grows up to one of them


class _Group:
    """Storages that are to be together. weight: bytes of those that last; most: that a record makes besides."""

    __slots__ = ("into", "most", "weight", "worker")

    def __init__(self, weight: int = 0) -> None:
        self.worker = _NOWHERE
        self.weight, self.most = weight, 0
        self.into: _Group | None = None

    def last(self) -> _Group:
        found = self
        while found.into is not None:
            found = found.into
        return found

    def join(self, other: _Group) -> None:
        other.into = self
        self.weight += other.weight
        self.most = max(self.most, other.most)


def of_storages(
    records: list[Record], begins: dict[int, torch.Tensor], stays: set[int]
) -> tuple[list[Record], dict[int, torch.Tensor], set[int]]:
    """What `Segment.facts` gives, with one slot for each storage: tensors that `set_` or ``.data =`` put on one have
    two."""
    first: dict[int, int] = {}
    same = {slot: first.setdefault(mirror.untyped_storage()._cdata, slot) for slot, mirror in begins.items()}
    if len(first) == len(same):
        return records, begins, stays
    one: list[Record] = []
    for module, phase, draws, device, grad, takes, writes, makes in records:
        taken, written = ([same.get(slot, slot) for slot in slots] for slots in (takes, writes))
        one.append((module, phase, draws, device, grad, taken, written, makes))
    return one, {slot: begins[slot] for slot in first.values()}, {same.get(slot, slot) for slot in stays}


def placed(
    records: Sequence[Record],
    homes: Mapping[int, int],
    worker_of: Mapping[int, int],
    otherwise: Callable[[Sequence[int]], Sequence[int]],
    copying: bool,
    kept: Collection[int] = (),
    sizes: Mapping[int, int] | None = None,
    rooms: list[int] | None = None,
    coming: bool = False,
) -> tuple[list[int], dict[int, int]]:
    """The worker of each record; and of what was there before, the worker of its module, if it is not there yet. See
    `division.divided`."""
    found = _Homes(records, homes, worker_of, copying, kept, sizes or {}, rooms, coming)
    places = [found.place(*record) for record in records]
    groups = list(dict.fromkeys(place.last() for place in places if isinstance(place, _Group)))
    open_ = [group for group in groups if group.worker == _NOWHERE]
    for group, worker in zip(open_, otherwise([group.weight + group.most for group in open_]), strict=True):
        group.worker = worker
    return [place if isinstance(place, int) else place.last().worker for place in places], found.coming


class _Homes:
    """``coming``: what was there before -> the worker of a module that takes it, if it has no home there yet."""

    def __init__(
        self, records: Sequence[Record], homes: Mapping[int, int], worker_of: Mapping[int, int], copying: bool,
        kept: Collection[int], sizes: Mapping[int, int], rooms: list[int] | None, coming: bool,
    ) -> None:  # fmt: skip
        self._worker_of, self._copying, self._kept, self._sizes, self._rooms = worker_of, copying, kept, sizes, rooms
        self._largest = None if rooms is None else max(rooms) // _PARTS
        self._at: dict[int, int | _Group] = dict(homes)
        self.coming: dict[int, int] = {}
        self._passing = self._of_modules(records)  # what this segment makes, and nobody keeps: it has no lasting home
        if coming:
            self._of_plan(records, homes)

    def _of_modules(self, records: Sequence[Record]) -> set[int]:
        """Let what lasts and has no home yet be where the first module is that takes it. Returns what does not last."""
        at, kept, passing, lasting = self._at, self._kept, set[int](), set[int]()
        for module, _phase, _draws, device, _grad, takes, _writes, makes in records:
            worker = None if device else self._worker_of.get(module)
            if worker is not None:
                for slot in takes:
                    if slot not in at and slot not in passing:
                        self._comes(slot, worker)
                        if slot not in lasting:
                            self.coming[slot] = worker
            for slot, _nbytes in makes:
                if slot not in takes:
                    (lasting if slot in kept else passing).add(slot)
        return passing

    def _of_plan(self, records: Sequence[Record], homes: Mapping[int, int]) -> None:
        """Let what has a home where none of the modules is that take it come to the first of those."""
        takers: dict[int, list[int]] = {}
        for record in records:
            worker = None if record[3] else self._worker_of.get(record[0])
            if worker is not None:
                for slot in record[5]:
                    if slot in homes:
                        takers.setdefault(slot, []).append(worker)
        self.coming.update((slot, workers[0]) for slot, workers in takers.items() if homes[slot] not in workers)

    def _comes(self, slot: int, worker: int) -> None:
        """A storage that lasts gets its home."""
        self._at[slot] = worker
        if self._rooms is not None:
            self._rooms[worker] -= self._sizes.get(slot, 0)

    def place(
        self, module: int, _phase: int, _draws: int, device: int, _grad: bool, takes: Sequence[int],
        writes: Sequence[int], makes: Sequence[tuple[int, int]],
    ) -> int | _Group:  # fmt: skip
        """Where the next record runs: a worker, or a group that has one at last."""
        worker: int | None = device or None  # another index than the first is a worker
        chosen = worker is not None
        if worker is None and writes:
            worker = self._home_of(writes)
        if worker is None and self._only_names(takes, makes):
            worker = self._home_of(takes)
        if worker is None:
            worker = self._worker_of.get(module)
            chosen = worker is not None
        if worker is None:
            worker = self._taken(takes)
        if worker is None:
            worker = self._home_of([slot for slot, _nbytes in makes])
        if worker is None:
            return self._together(takes, writes, makes)
        at, passing, copying = self._at, self._passing, self._copying
        for slot in takes:
            home = at.get(slot)
            if not isinstance(home, int):
                self._draw(slot, home, worker, chosen or slot in writes)
            if not copying or slot in passing or slot in writes:
                at[slot] = worker
        for slot, _nbytes in makes:
            if slot not in at:
                self._comes(slot, worker)
            elif not copying or slot in passing or slot not in takes:
                at[slot] = worker
        return worker

    def _only_names(self, takes: Sequence[int], makes: Sequence[tuple[int, int]]) -> bool:
        """Does a record make nothing but views, of what this segment has made, or small ones (which have slots of their
        own besides)? They move nothing, or little, where that is."""
        views = [slot for slot, _nbytes in makes if slot in takes]
        return bool(views) and (len(views) < len(makes) or self._passing.issuperset(views))

    def _home_of(self, slots: Sequence[int]) -> int | None:
        """Of the first that has one."""
        for slot in slots:
            home = self._at.get(slot)
            if isinstance(home, _Group):
                home = home.last().worker
            if home is not None and home != _NOWHERE:
                return home
        return None

    def _weight(self, slot: int) -> int:
        """Bytes that last of the group that a storage without a home belongs to."""
        group = self._at.get(slot)
        return group.last().weight if isinstance(group, _Group) else self._sizes.get(slot, 0)

    def _taken(self, takes: Sequence[int]) -> int | None:
        """The home of the first that has one, unless others that have none are much larger."""
        first = self._home_of(takes)
        if first is None or all(isinstance(self._at.get(slot), int) for slot in takes):
            return first
        has = {slot: self._home_of((slot,)) is not None for slot in takes}
        little = _SMALL * max(self._sizes.get(slot, 0) for slot in takes if has[slot])
        if any(min(self._weight(slot), self._sizes.get(slot, 0)) > little for slot in takes if not has[slot]):
            return None
        return first

    def _draw(self, slot: int, group: _Group | None, worker: int, chosen: bool) -> None:
        """A record on this worker takes a storage that has no home: may it decide on that of all of its group?
        chosen: whatever room there is."""
        if group is None:
            self._comes(slot, worker)
            return
        group = group.last()
        if group.worker != _NOWHERE or self._is_small(slot, group):
            return
        if chosen or self._rooms is None or not group.weight or self._rooms[worker] >= group.weight:
            group.worker = worker
            if self._rooms is not None:
                self._rooms[worker] -= group.weight

    def _is_small(self, slot: int, group: _Group) -> bool:
        return self._sizes.get(slot, 0) * _SMALL < group.weight

    def _together(self, takes: Sequence[int], writes: Sequence[int], makes: Sequence[tuple[int, int]]) -> _Group:
        """The group of a record that nothing decides about: of what it writes, or else of the largest that it takes or
        makes. The others join it, if it takes a good part of them."""
        at, sizes = self._at, self._sizes
        groups: dict[int, _Group] = {}
        come: list[_Group] = []
        for slot in takes:
            home = at.get(slot)
            if home is None:
                home = at[slot] = _Group(sizes.get(slot, 0))  # it was there before, and nothing has used it
                come.append(home)
            if isinstance(home, _Group) and home.last().worker == _NOWHERE:
                groups[slot] = home.last()
        made = sum(nbytes for _slot, nbytes in makes)
        written = next((slot for slot in writes if slot in groups), None)
        largest = max(groups, key=lambda slot: sizes.get(slot, 0), default=None) if written is None else written
        found = _Group() if largest is None else groups[largest]
        if largest is not None and written is None:
            if made > sizes.get(largest, 0) and self._is_small(largest, found):
                found = _Group()
            found = next((group for group in come if not self._have_room(found, group)), found)
        for slot, group in groups.items():
            group = group.last()
            if group is not found and not self._is_small(slot, group) and self._have_room(found, group):
                found.join(group)
        found.most = max(found.most, made)
        for slot, nbytes in makes:
            if slot not in takes and slot not in self._passing:
                found.weight += nbytes
            if slot not in takes or slot in self._passing or not self._copying:
                at[slot] = found
        for slot in takes:
            if slot in self._passing or not self._copying:
                at[slot] = found
        return found

    def _have_room(self, one: _Group, other: _Group) -> bool:
        return self._largest is None or not other.weight or one.weight + other.weight <= self._largest
