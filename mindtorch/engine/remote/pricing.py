"""What a plan costs: what moves, how long it takes, and how much memory each worker needs (SPEC R5)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .division import GENERATOR, GENERATOR_BYTES, Division, divided
from .repeated import Repeatable
from .run_time import Computing, Costs, end_of
from .storage_homes import Record

__all__ = [
    "ALL_ON_ONE", "Plan", "Work", "divided_as", "memory_of", "moves_of", "on_one", "paths_of", "priced", "roomiest",
]  # fmt: skip

ALL_ON_ONE = "all on one"  # the name of a plan


@dataclass
class Work:
    """A segment, and where its values are.

    paths: of the module ids in it; homes: worker of each storage that it begins with and that has one; nbytes: of those
    and all others that it begins with; grows: the memory that they come to need besides, for gradients and states of
    optimizers; stays: see `Segment.facts`; generator: the worker that has it; limits, held: bytes that each worker may
    have, and that it has in storages that the segment does not touch; copies: the workers that have one, besides the
    home of a storage; computing: None where that is not known; coming: do its modules get workers, to which what is
    elsewhere comes? repeatable: the records that may run on several workers.
    """

    records: Sequence[Record]
    paths: Mapping[int, str]
    homes: Mapping[int, int]
    nbytes: Mapping[int, int]
    grows: Mapping[int, int]
    stays: set[int]
    generator: int
    limits: Sequence[int]
    held: Sequence[int]
    computing: Computing | None = None
    copies: Mapping[int, Collection[int]] = field(default_factory=dict)
    coming: bool = False
    repeatable: Repeatable | None = None

    @cached_property
    def sizes(self) -> dict[int, int]:
        """Bytes of each storage."""
        found = dict(self.nbytes)
        for record in self.records:
            for slot, nbytes in record[7]:
                if slot not in found:
                    found[slot] = nbytes
        found[GENERATOR] = GENERATOR_BYTES
        return found

    @cached_property
    def given(self) -> set[int]:
        """Storages that are there before a module runs, and stay: parameters, buffers and inputs, but no results."""
        found, results = set(self.nbytes), set[int]()
        for module, _phase, _draws, _device, _grad, takes, _writes, makes in self.records:
            for slot, _nbytes in makes:
                if slot in takes:
                    continue
                if module or not results.isdisjoint(takes):
                    results.add(slot)
                elif slot in self.stays:
                    found.add(slot)
        return found


@dataclass
class Plan:
    """``workers``: worker by module path. The rest is what one run of the segment costs: bytes and messages that move,
    the seconds that it takes (moves_only: only for what moves), and the most bytes that each worker has at a time;
    replicas: bytes of copies, by worker, of what is there before a module runs, such as weights that several read;
    again: bytes that workers compute for themselves, by worker, because others compute them, too;
    cost: seconds by usual speeds, by which plans are compared, so that each run has the same; None: ``seconds``.
    """

    name: str
    workers: dict[str, int]
    moved: int
    messages: int
    seconds: float
    memory: list[int]
    limits: Sequence[int]
    moves_only: bool = True
    replicas: Mapping[int, int] = field(default_factory=dict)
    cost: float | None = None
    again: Mapping[int, int] = field(default_factory=dict)

    @property
    def used(self) -> int:
        """How many workers compute or hold memory."""
        return len({*self.workers.values(), *[worker for worker, nbytes in enumerate(self.memory) if nbytes]})

    @property
    def excess(self) -> int:
        """Bytes that the workers lack, all together: 0 where it fits."""
        return sum(map(_lacking, self.memory, self.limits))

    def rank(self) -> tuple[int, float, int]:
        """The least is the best."""
        return self.excess, self.seconds if self.cost is None else self.cost, self.used


def on_one(work: Work, worker: int = 0) -> Plan:
    """Everything on one worker, where nothing moves."""
    return priced(work, ALL_ON_ONE, dict.fromkeys(paths_of(work), worker), Costs(), otherwise=worker)


def roomiest(rooms: Sequence[int]) -> Callable[[Sequence[int]], list[int]]:
    """Gives workers for so many bytes each: one worker after the other, each until it has about as much room left as
    all will have if that is shared evenly; next is the one that has most."""

    def found(sizes: Sequence[int]) -> list[int]:
        room, workers = list(rooms), []
        even = (sum(room) - sum(sizes)) / len(room)
        worker = room.index(max(room))
        for nbytes in sizes:
            if room[worker] - nbytes / 2 < even or (room[worker] < nbytes and even >= 0):
                worker = room.index(max(room))
            room[worker] -= nbytes
            workers.append(worker)
        return workers

    return found


def paths_of(work: Work) -> list[str]:
    """The module paths, in the order in which they first run."""
    return list(dict.fromkeys(work.paths[record[0]] for record in work.records if work.paths.get(record[0])))


def divided_as(work: Work, ids: Mapping[int, int], otherwise: int | None = None) -> tuple[Division, list[int]]:
    """How the executor divides a segment, and the most bytes that each worker has then: with copies of what several
    workers read, or, where there is no memory for them, without. otherwise: the worker of what nothing decides about;
    None: the one with the most room."""
    found: list[tuple[Division, list[int]]] = []
    for copies in (work.copies, None):
        rooms = [limit - held for limit, held in zip(work.limits, work.held, strict=True)]
        for slot, home in work.homes.items():
            rooms[home] -= work.nbytes[slot] + work.grows.get(slot, 0)
        rest = roomiest(rooms) if otherwise is None else lambda sizes: [otherwise] * len(sizes)
        division = divided(
            work.records,
            work.homes,
            ids,
            work.generator,
            rest,
            copies,
            work.stays,
            work.sizes,
            rooms,
            work.coming,
            work.repeatable,
        )
        most = memory_of(work, division, work.homes, len(work.limits), len(work.records)).max(axis=1, initial=0)
        needs = [int(need) + held for need, held in zip(most, work.held, strict=True)]
        found.append((division, needs))
        if all(need <= limit for need, limit in zip(needs, work.limits, strict=True)):
            return found[-1]
    return min(found, key=lambda each: sum(map(_lacking, each[1], work.limits)))


def _lacking(need: int, limit: int) -> int:
    return max(0, need - limit)


def priced(
    work: Work,
    name: str,
    workers: dict[str, int],
    costs: Costs,
    usual: Costs | None = None,
    otherwise: int | None = None,
) -> Plan:
    ids = {module: workers[path] for module, path in work.paths.items() if path in workers}
    division, needs = divided_as(work, ids, otherwise)
    moved = sum(nbytes for nbytes, _source, _to in moves_of(work, division))
    back = moved - sum(work.sizes[slot] for slot, _source, _to in division.moves)

    def seconds(costs: Costs, computing: Computing | None) -> float:
        if computing is None:
            return division.messages * costs.message + moved * costs.byte
        return end_of(division.parts, work.sizes, costs, computing) + back * costs.byte

    known = work.computing
    copied = {(slot, to) for _k, slot, to, alone in division.stays if not alone and slot in work.given}
    replicas: dict[int, int] = {}
    for slot, to in sorted(copied):
        replicas[to] = replicas.get(to, 0) + work.sizes[slot]
    again: dict[int, int] = {}
    for part in division.parts:
        if part.again is not None:
            made = [nbytes for k in part.positions for _slot, nbytes in work.records[k][7]]
            again[part.worker] = again.get(part.worker, 0) + sum(made)
    cost = seconds(usual or costs, known and (known.usual or known))
    return Plan(
        name,
        workers,
        moved,
        division.messages,
        seconds(costs, known),
        needs,
        work.limits,
        known is None,
        replicas,
        cost,
        again,
    )


def moves_of(work: Work, division: Division) -> Iterator[tuple[int, int, int]]:
    """(bytes, from, to), and back again of what was there before: the next run finds it where this one leaves it."""
    sizes = work.sizes
    ends: dict[int, tuple[int, int]] = {}  # where it was at first, and is at last
    for slot, source, to in division.moves:
        yield sizes[slot], source, to
    for _k, slot, to, alone in division.stays:
        if alone and slot in work.nbytes and slot not in division.coming:
            ends[slot] = ends.get(slot, (work.homes.get(slot, to), to))[0], to
    for slot, (first, last) in ends.items():
        if first != last:
            yield sizes[slot], last, first


def memory_of(work: Work, division: Division, homes: Mapping[int, int], places: int, every: int) -> np.ndarray:
    """(place, time) -> the most bytes there in that time, of so many records."""
    sizes = work.sizes
    last: dict[int, int] = {}
    for k, (*_, takes, _writes, makes) in enumerate(work.records):
        for slot in takes:
            last[slot] = k
        for slot, _nbytes in makes:
            last[slot] = k
    ends: dict[int, list[int]] = {}  # what dies with each record
    for slot, k in last.items():
        if slot not in work.stays and slot not in work.nbytes:
            ends.setdefault(k, []).append(slot)
    now = [0] * places
    has: dict[int, set[int]] = {}  # the places of each storage
    for slot, home in homes.items():
        now[home] += sizes[slot]
        has[slot] = {home}
        for other in work.copies.get(slot, ()) if division.copying else ():
            now[other] += sizes[slot]
            has[slot].add(other)
    at = {**homes, **{slot: to for _k, slot, to, alone in division.stays if alone}}  # in the end
    if any(slot not in at for slot in work.grows):
        for record, place in zip(work.records, division.places, strict=True):
            for slot, _nbytes in record[7]:
                at.setdefault(slot, place)
    for slot, nbytes in work.grows.items():
        if slot in at:
            now[at[slot]] += nbytes
    found: list[list[int]] = [now.copy()]
    stays = iter(division.stays)
    coming = next(stays, None)
    for k, (record, place) in enumerate(zip(work.records, division.places, strict=True)):
        more = []  # places that have more than before
        while coming is not None and coming[0] == k:
            _k, slot, to, alone = coming
            if alone:
                for other in has.get(slot, ()):
                    now[other] -= sizes[slot]
                now[to] += sizes[slot]
                has[slot] = {to}
            else:
                has[slot].add(to)
                now[to] += sizes[slot]
            more.append(to)
            coming = next(stays, None)
        for slot, nbytes in record[-1]:
            if slot not in has:
                has[slot] = {place}
                now[place] += nbytes
                more.append(place)
        if k % every == 0:
            most = now.copy()
            found.append(most)
        for each in more:
            most[each] = max(most[each], now[each])
        for slot in ends.get(k, ()):
            for each in has[slot]:
                now[each] -= sizes[slot]
    return np.array(found, float).T
