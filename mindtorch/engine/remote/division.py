"""Which worker runs which record, in what parts, and what moves for that: of one device on several workers (SPEC R5).

Every storage has one home. A record goes to the home of what it writes, else to its module's worker, else to the home
of the first storage that it takes and that has one; for this, what the segment has made counts as at home where it was
last taken. What has no home yet (an upload that nothing has used, what is made of nothing) gets that of the first
record which takes it.

A worker that reads a storage of another one gets a copy, which is good until the storage is written. A worker that
writes it becomes its home, and all copies end. So does a worker that is the last to read what the segment has made and
nobody keeps. The generator has a home, too, and moves to whoever draws.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["GENERATOR", "Division", "Part", "divided", "parted"]

GENERATOR = -1  # in place of a storage's slot
GENERATOR_BYTES = 5056  # of the state that a CPU's generator has

#: (module id, phase, index that it draws for or -1, device, grad mode, takes, writes, makes): see `Segment.facts`.
Record = tuple[int, int, int, int, bool, Sequence[int], Sequence[int], Sequence[tuple[int, int]]]


@dataclass
class Part:
    """Records that one worker runs at once. ``sources``: the storages that come there before, by worker; ``moving``:
    those that are only there from then on. All others that are on another worker are copied.
    """

    worker: int
    positions: list[int] = field(default_factory=list)
    draws: bool = False
    sources: dict[int, list[int]] = field(default_factory=dict)
    moving: set[int] = field(default_factory=set)


@dataclass
class Division:
    """``parts`` in the order in which they run; ``moves``: (storage, from, to) of all that crosses; ``stays``:
    (position, storage, worker, alone): from this record on, the worker has the storage, alone or besides others;
    copying: is what is read elsewhere copied?
    """

    parts: list[Part]
    moves: list[tuple[int, int, int]]
    places: list[int]  # of each record
    stays: list[tuple[int, int, int, bool]]
    copying: bool

    @property
    def messages(self) -> int:
        """Exchanges in which something moves: all that a part needs of one worker goes in one."""
        return sum(len(part.sources) for part in self.parts)


class _Undecided:
    """A home that the first record decides on which has a worker."""

    __slots__ = ("into", "nbytes", "worker")

    def __init__(self) -> None:
        self.worker: int | None = None
        self.nbytes = 0
        self.into: _Undecided | None = None

    def last(self) -> _Undecided:
        found = self
        while found.into is not None:
            found = found.into
        return found


def divided(
    records: Sequence[Record],
    homes: Mapping[int, int],
    worker_of: Mapping[int, int],
    generator: int,
    otherwise: Callable[[int], int],
    copies: Mapping[int, Collection[int]] | None = None,
    kept: Collection[int] = (),
) -> Division:
    """homes: worker of each storage that has one; worker_of: of module ids; generator: the worker that has it;
    otherwise: the worker for so many bytes that nothing decides about; copies: the workers that have copies of storages
    already, None where nothing is to be copied: what is read elsewhere moves then; kept: storages of results that
    something will name when all have run."""
    chosen = _chosen(records, homes, worker_of, copies is not None)
    for choice, (*_, makes) in zip(chosen, records, strict=True):
        if isinstance(choice, _Undecided):
            choice.last().nbytes += sum(nbytes for _slot, nbytes in makes)
    places: list[int] = []
    for choice in chosen:
        if isinstance(choice, _Undecided):
            last = choice.last()
            if last.worker is None:
                last.worker = otherwise(last.nbytes)
            places.append(last.worker)
        else:
            places.append(choice)
    return parted(records, places, homes, generator, copies, kept)


def _chosen(
    records: Sequence[Record], homes: Mapping[int, int], worker_of: Mapping[int, int], copying: bool
) -> list[int | _Undecided]:
    at: dict[int, int | _Undecided] = dict(homes)
    chosen: list[int | _Undecided] = []
    made: set[int] = set()

    def known(slots: Sequence[int]) -> int | None:
        for slot in slots:
            home = at.get(slot)
            if isinstance(home, _Undecided):
                home = home.last().worker
            if home is not None:
                return home
        return None

    for module, _phase, _draws, device, _grad, takes, writes, makes in records:
        made.update([slot for slot, _nbytes in makes if slot not in at and slot not in takes])
        worker: int | None = device or None  # another index than the first is a worker
        if worker is None:
            worker = known(writes)
        if worker is None:
            worker = worker_of.get(module)
        if worker is None:
            worker = known(takes)
        if worker is None:
            together = _Undecided()
            for slot in takes:
                home = at.get(slot)
                if isinstance(home, _Undecided) and home.last() is not together.last():
                    home.last().into = together.last()
            for slot in (*takes, *[slot for slot, _nbytes in makes]):
                at[slot] = together
            chosen.append(together)
            continue
        for slot in takes:
            home = at.get(slot)
            if isinstance(home, _Undecided):
                home.last().worker = home.last().worker if home.last().worker is not None else worker
            if not copying or home is None or slot in made or slot in writes:
                at[slot] = worker
        for slot, _nbytes in makes:
            if slot in made or not copying:
                at[slot] = worker
        chosen.append(worker)
    return chosen


def parted(
    records: Sequence[Record], places: list[int], homes: Mapping[int, int], generator: int,
    copies: Mapping[int, Collection[int]] | None = None, kept: Collection[int] = (),
) -> Division:  # fmt: skip
    """The parts, where it is known which worker runs each record."""
    found = _Parts(places, homes, generator, copies, kept)
    if copies is not None:
        found.look_ahead(records)
    for k, record in enumerate(records):
        found.add(k, record)
    return Division(found.parts, found.moves, places, found.stays, copies is not None)


class _Parts:
    """A part takes in what its worker runs next until one of its records needs what was written elsewhere since the
    part began, or writes what was used elsewhere since: so what comes to a part comes before it begins, all at once,
    and parts that do not touch run side by side.
    """

    def __init__(
        self, places: list[int], homes: Mapping[int, int], generator: int,
        copies: Mapping[int, Collection[int]] | None, kept: Collection[int],
    ) -> None:  # fmt: skip
        self.parts: list[Part] = []
        self.moves: list[tuple[int, int, int]] = []
        self.stays: list[tuple[int, int, int, bool]] = []
        self._places, self._kept, self._copying = places, kept, copies is not None
        self._home = {**homes, GENERATOR: generator}
        self._copies = {slot: set(workers) for slot, workers in (copies or {}).items() if workers}
        self._current: dict[int, tuple[Part, int]] = {}  # worker -> its part, and the position at which that began
        # Storage -> worker -> position of its last use there so far; of the last record that made it what others take:
        # wrote it, gave it a home, or made a view of it; of its last use at all.
        self._used: dict[int, dict[int, int]] = {}
        self._ready: dict[int, dict[int, int]] = {}
        self._last: dict[int, dict[int, int]] = {}
        self._made: set[int] = set()

    def look_ahead(self, records: Sequence[Record]) -> None:
        """See which worker uses what until when."""
        for k, (record, place) in enumerate(zip(records, self._places, strict=True)):
            for slot in record[5]:
                self._last.setdefault(slot, {})[place] = k

    def add(self, k: int, record: Record) -> None:
        """The next record."""
        _module, _phase, draws, _device, _grad, takes, writes, makes = record
        place = self._places[k]
        reads = [slot for slot in takes if slot not in writes] if writes else takes
        if not self._copying:
            writes, reads = takes, ()
        written = [*writes, GENERATOR] if draws == 0 else writes
        part, began = self._current.get(place, (None, k))
        if (
            part is None
            or any(_elsewhere(self._used, slot, place, began) for slot in written)
            or any(_elsewhere(self._ready, slot, place, began) for slot in reads)
        ):
            part, began = Part(place), k
            self._current[place] = part, began
            self.parts.append(part)
        part.positions.append(k)
        part.draws |= draws == 0
        for slot in dict.fromkeys(written):
            self._alone(k, slot, part)
        for slot in dict.fromkeys(reads):
            if not self._has(slot, place):
                if slot not in self._home or self._is_done(slot, place, began):
                    self._alone(k, slot, part)
                else:
                    self._cross(slot, part)
                    self._copies.setdefault(slot, set()).add(place)
                    self.stays.append((k, slot, place, False))
            self._used.setdefault(slot, {})[place] = k
        for slot, _nbytes in makes:
            if slot not in self._home:  # else a view of what there is
                self._made.add(slot)
                self._home[slot] = place
            self._ready.setdefault(slot, {})[place] = k
            self._used.setdefault(slot, {})[place] = k

    def _has(self, slot: int, place: int) -> bool:
        return self._home.get(slot) == place or place in self._copies.get(slot, ())

    def _is_done(self, slot: int, place: int, began: int) -> bool:
        """Does nobody else use it from then on?"""
        last = self._last[slot]
        if slot not in self._made or slot in self._kept:
            return False
        return all(at < began for worker, at in last.items() if worker != place)

    def _cross(self, slot: int, part: Part) -> None:
        source = self._home[slot]
        self.moves.append((slot, source, part.worker))
        part.sources.setdefault(source, []).append(slot)

    def _alone(self, k: int, slot: int, part: Part) -> None:
        """From here on, only the worker of this part has it."""
        place = part.worker
        if not self._has(slot, place) and slot in self._home:
            self._cross(slot, part)
        if self._home.get(slot) != place or slot in self._copies:
            if slot != GENERATOR:
                self.stays.append((k, slot, place, True))
                part.moving.add(slot)
            self._copies.pop(slot, None)
            self._home[slot] = place
        self._ready.setdefault(slot, {})[place] = k
        self._used.setdefault(slot, {})[place] = k


def _elsewhere(when: Mapping[int, Mapping[int, int]], slot: int, place: int, began: int) -> bool:
    """Did that happen to a storage on another worker since then?"""
    return any(at >= began for worker, at in when.get(slot, {}).items() if worker != place)
