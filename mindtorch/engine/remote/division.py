"""In what parts workers run records, and what moves for that: of one device on several workers (SPEC R5).

Every storage has one home (`storage_homes`). A worker that reads a storage of another one gets a copy, which is good
until the storage is written. A worker that writes it becomes its home, and all copies end. So does a worker that is the
last to read what the segment has made and nobody keeps, and the worker of the module that takes what has just come. The
generator has a home, too, and moves to whoever draws.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .repeated import Repeatable, repeated
from .storage_homes import Record, placed

__all__ = ["GENERATOR", "GENERATOR_BYTES", "Division", "Part", "divided", "parted"]

GENERATOR = -1  # in place of a storage's slot
GENERATOR_BYTES = 5056  # of the state that a CPU's generator has


_NEVER: Mapping[int, int] = {}


@dataclass
class Part:
    """Records that one worker runs at once. ``sources``: the storages that come there before, by worker; ``moving``:
    those that are only there from then on. All others that are on another worker are copied. again: the part of another
    worker just before it, whose records it runs, too, for itself; shared: is there such a one of this?
    """

    worker: int
    positions: list[int] = field(default_factory=list)
    draws: bool = False
    sources: dict[int, list[int]] = field(default_factory=dict)
    moving: set[int] = field(default_factory=set)
    again: Part | None = None
    shared: bool = False


@dataclass
class Division:
    """``parts`` in the order in which they run; ``moves``: (storage, from, to) of all that crosses; ``stays``:
    (position, storage, worker, alone): from this record on, the worker has the storage, alone or besides others;
    copying: is what is read elsewhere copied? coming: what has found its home, which is where it stays.
    """

    parts: list[Part]
    moves: list[tuple[int, int, int]]
    places: list[int]  # of each record
    stays: list[tuple[int, int, int, bool]]
    copying: bool
    coming: Mapping[int, int] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """Exchanges in which something moves: all that a part needs of one worker goes in one."""
        return sum(len(part.sources) for part in self.parts)


def divided(
    records: Sequence[Record],
    homes: Mapping[int, int],
    worker_of: Mapping[int, int],
    generator: int,
    otherwise: Callable[[Sequence[int]], Sequence[int]],
    copies: Mapping[int, Collection[int]] | None = None,
    kept: Collection[int] = (),
    sizes: Mapping[int, int] | None = None,
    rooms: list[int] | None = None,
    coming: bool = False,
    repeatable: Repeatable | None = None,
) -> Division:
    """homes: worker of each storage that has one; worker_of: of module ids; generator: the worker that has it;
    otherwise: workers for so many bytes each that nothing decides about; copies: the workers that have copies of
    storages already, None where nothing is to be copied: what is read elsewhere moves then; kept: storages of results
    that something will name when all have run; sizes: bytes of storages, as far as they are known; rooms: bytes that
    each worker has left, less what comes to it; coming: is what was there before to come to its modules? repeatable:
    the records that may run on several workers; None: none."""
    places, come = placed(records, homes, worker_of, otherwise, copies is not None, kept, sizes, rooms, coming)
    twice: Mapping[int, Collection[int]] = {}
    if repeatable is not None and copies is not None and sizes is not None:
        there = {slot: {home, *copies.get(slot, ())} for slot, home in homes.items()}
        twice = repeated(records, places, sizes, there, repeatable)
    return parted(records, places, homes, generator, copies, kept, come, twice)


def parted(
    records: Sequence[Record], places: list[int], homes: Mapping[int, int], generator: int,
    copies: Mapping[int, Collection[int]] | None = None, kept: Collection[int] = (),
    coming: Mapping[int, int] | None = None, twice: Mapping[int, Collection[int]] | None = None,
) -> Division:  # fmt: skip
    """The parts, where it is known which worker runs each record. coming: storages that move to a worker when that
    reads them, as their home; twice: the workers that run a record besides."""
    found = _Parts(places, homes, generator, copies, kept, coming or {})
    twice = twice or {}
    if copies is not None:
        found.look_ahead(records)
    for k, record in enumerate(records):
        if k in twice:
            found.add_to_several(k, record, frozenset(twice[k]))
        else:
            found.add(k, record)
    return Division(found.parts, found.moves, places, found.stays, copies is not None, coming or {})


class _Parts:
    """A part takes in what its worker runs next until one of its records needs what was written elsewhere since the
    part began, or writes what was used elsewhere since: so what comes to a part comes before it begins, all at once,
    and parts that do not touch run side by side.
    """

    def __init__(
        self, places: list[int], homes: Mapping[int, int], generator: int,
        copies: Mapping[int, Collection[int]] | None, kept: Collection[int], coming: Mapping[int, int],
    ) -> None:  # fmt: skip
        self.parts: list[Part] = []
        self.moves: list[tuple[int, int, int]] = []
        self.stays: list[tuple[int, int, int, bool]] = []
        self._places, self._kept, self._copying, self._coming = places, kept, copies is not None, coming
        self._home = {**homes, GENERATOR: generator}
        self._copies = {slot: set(workers) for slot, workers in (copies or {}).items() if workers}
        self._current: dict[int, tuple[Part, int]] = {}  # worker -> its part, and the position at which that began
        # The same of workers that run the same records: a number of theirs, below those of all workers, and all parts.
        self._several: dict[tuple[int, frozenset[int]], tuple[int, list[Part], int]] = {}
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
        alone = written
        if self._coming:
            alone = [*written, *[slot for slot in reads if self._comes(slot, place) and slot in self._home]]
        part, began = self._current.get(place, (None, k))
        if (
            part is None
            or (alone and _elsewhere(self._used, alone, place, began))
            or _elsewhere(self._ready, reads, place, began)
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
                if slot not in self._home or self._comes(slot, place) or self._is_done(slot, place, began):
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

    def add_to_several(self, k: int, record: Record, others: frozenset[int]) -> None:
        """The next record, which the workers ``others`` run, too: what it makes is a copy there. It writes nothing."""
        takes, makes = dict.fromkeys(record[5]), record[7]
        place = self._places[k]
        number, parts, began = self._several.get((place, others), (-2 - len(self._several), [], k))
        if not parts or _elsewhere(self._ready, takes, number, began):
            first = Part(place, shared=True)
            parts, began = [first, *[Part(worker, again=first) for worker in sorted(others)]], k
            self._several[place, others] = number, parts, began
            self.parts += parts
        for part in parts:
            part.positions.append(k)
            for slot in takes:
                if slot not in self._home:  # an upload
                    self.stays.append((k, slot, part.worker, True))
                    part.moving.add(slot)
                    self._home[slot] = part.worker
                elif not self._has(slot, part.worker):
                    self._cross(slot, part)
                    self._copies.setdefault(slot, set()).add(part.worker)
                    self.stays.append((k, slot, part.worker, False))
        for slot, _nbytes in makes:
            if slot not in self._home:
                self._made.add(slot)
                self._home[slot] = place
                self._copies[slot] = set(others)
                self.stays += [(k + 1, slot, worker, False) for worker in sorted(others)]  # once it is made
            self._ready.setdefault(slot, {})[number] = k
        for slot in (*takes, *[slot for slot, _nbytes in makes]):
            self._used.setdefault(slot, {})[number] = k

    def _has(self, slot: int, place: int) -> bool:
        return self._home.get(slot) == place or place in self._copies.get(slot, ())

    def _comes(self, slot: int, place: int) -> bool:
        """Does it come home?"""
        return self._coming.get(slot) == place and not self._has(slot, place)

    def _is_done(self, slot: int, place: int, began: int) -> bool:
        """Does nobody else use it from then on?"""
        if slot not in self._made or slot in self._kept:
            return False
        return all(at < began for worker, at in self._last[slot].items() if worker != place)

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


def _elsewhere(when: Mapping[int, Mapping[int, int]], slots: Iterable[int], place: int, began: int) -> bool:
    """Did that happen to one of these storages on another worker since then?"""
    for slot in slots:
        for worker, at in when.get(slot, _NEVER).items():
            if at >= began and worker != place:
                return True
    return False
