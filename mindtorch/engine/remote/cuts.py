"""Plans: which module of a model runs on which of several workers, with what each plan costs (SPEC R5).

A plan is made of one segment, the first that needs more memory than a worker has. Units (modules of some depth) are
first divided as if each had a worker of its own: that gives what every two of them would have to move, and how much
memory each needs when. Then come the best cuts, by dynamic programming, of the units in the order in which they run, in
that order folded in the middle (for models whose last levels take what the first ones made), and with those together
that share parameters; single units move as long as it pays. At last each plan is divided as the executor will do it,
with copies of what several workers read if there is memory for them, and the cheapest that fits is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from .division import GENERATOR, GENERATOR_BYTES, Division, divided
from .homes import Record
from .run_time import Computing, Costs, end_of

__all__ = ["ALL_ON_ONE", "Costs", "Plan", "Work", "divided_as", "on_one", "plans", "roomiest"]

ALL_ON_ONE = "all on one"  # the name of a plan
_UNITS = 96  # at most
_MORE = (1, 1.1, 1.25, 1.5, 2)  # times its limit: what units need is not all needed at the same instant
_LARGE = 64  # of what a segment begins with such a part is large
_TIMES = 256  # in which a segment is cut to look at memory


@dataclass
class Work:
    """A segment, and where its values are.

    paths: of the module ids in it; homes: worker of each storage that it begins with and that has one; nbytes: of those
    and all others that it begins with; grows: the memory that they come to need besides, for gradients and states of
    optimizers; stays: see `Segment.facts`; generator: the worker that has it; limits, held: bytes that each worker may
    have, and that it has in storages that the segment does not touch; copies: the workers that have one, besides the
    home of a storage; computing: None where that is not known; coming: do its modules get workers, to which what is
    elsewhere comes?
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
        found, results = set(self.nbytes), set()
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
    return _priced(work, ALL_ON_ONE, dict.fromkeys(_paths(work), worker), Costs(), otherwise=worker)


def plans(work: Work, costs: Costs, known: Mapping[str, int], usual: Costs | None = None) -> list[Plan]:
    """All that were thought of, the best one first. costs: of what moves, as measured; known: worker by module path, of
    those that are to stay; usual: costs by which plans are made and compared; None: ``costs``."""
    units = _Units(work, usual or costs, known)
    found = [on_one(work)] if not known else []
    for name, chosen in units.candidates():
        workers = {path: chosen[unit] for path, unit in units.of.items()}
        if not any(plan.workers == workers for plan in found):
            found.append(_priced(work, name, workers, costs, usual))
    return sorted(found, key=Plan.rank)


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


def _paths(work: Work) -> list[str]:
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
            work.records, work.homes, ids, work.generator, rest, copies, work.stays, work.sizes, rooms, work.coming
        )
        most = _memory(work, division, work.homes, len(work.limits), len(work.records)).max(axis=1, initial=0)
        needs = [int(need) + held for need, held in zip(most, work.held, strict=True)]
        found.append((division, needs))
        if all(need <= limit for need, limit in zip(needs, work.limits, strict=True)):
            return found[-1]
    return min(found, key=lambda each: sum(map(_lacking, each[1], work.limits)))


def _first(sizes: Sequence[int]) -> list[int]:
    return [0] * len(sizes)


def _lacking(need: int, limit: int) -> int:
    return max(0, need - limit)


def _priced(
    work: Work,
    name: str,
    workers: dict[str, int],
    costs: Costs,
    usual: Costs | None = None,
    otherwise: int | None = None,
) -> Plan:
    ids = {module: workers[path] for module, path in work.paths.items() if path in workers}
    division, needs = divided_as(work, ids, otherwise)
    moved = sum(nbytes for nbytes, _source, _to in _moves(work, division))
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
    )


def _moves(work: Work, division: Division) -> Iterator[tuple[int, int, int]]:
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


def _memory(work: Work, division: Division, homes: Mapping[int, int], places: int, every: int) -> np.ndarray:
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
    found: list[list[int]] = [] if work.records else [now]
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


class _Units:
    """Modules of some depth, in the order in which they first run; ``of``: the unit's number by module path."""

    def __init__(self, work: Work, costs: Costs, known: Mapping[str, int]) -> None:
        self._work, self._workers = work, len(work.limits)
        paths = _paths(work)
        depth = max((path.count(".") for path in paths), default=0) + 1
        while depth > 1 and len({_above(path, depth) for path in paths}) > _UNITS:
            depth -= 1
        names = list(dict.fromkeys(_above(path, depth) for path in paths))
        self.of = {path: names.index(_above(path, depth)) for path in paths}
        self._n = len(names)
        self._pinned = {self.of[path]: known[path] for path in paths if path in known}
        self._free = [unit for unit in range(self._n) if unit not in self._pinned]
        # What is recorded for another index is on the worker of that, whatever the plan.
        work = replace(work, records=[record for record in work.records if not record[3]])
        ids = {module: self.of[path] for module, path in work.paths.items() if path in self.of}
        work = replace(work, homes={}, copies={})
        alone = divided(work.records, {}, ids, 0, _first, {}, work.stays, work.sizes)
        #: What it costs in seconds if two are not on the same worker.
        self._apart = np.zeros((self._n, self._n))
        for nbytes, source, to in _moves(work, _in_turn(work, alone)):
            self._apart[source, to] += nbytes * costs.byte
        for part in alone.parts:
            for source in part.sources:
                self._apart[source, part.worker] += costs.message
        self._apart += self._apart.T
        #: The first unit that takes the same parameters, of those that take large ones of another's.
        self._shares: dict[int, int] = {}
        large = sum(work.nbytes.values()) / _LARGE
        for slot, source, to in alone.moves:
            if work.nbytes.get(slot, 0) >= large:
                first, other = sorted((self._shares.get(source, source), to))
                self._shares.setdefault(other, first)
        every = max(1, len(work.records) // _TIMES)
        # Units on one worker have one copy of what they share: as if it moved on with each that reads it.
        moving = divided(work.records, {}, ids, 0, _first, sizes=work.sizes)
        self._memory = _memory(work, moving, {}, max(self._n, 1), every)

    def candidates(self) -> Iterator[tuple[str, list[int]]]:
        """(name, worker of each unit)."""
        if not self._free:
            yield "as before", [self._pinned[unit] for unit in range(self._n)]
            return
        if self._work.homes:
            yield "in place", self._whole(self._in_place())
        each = -(-len(self._free) // self._workers)
        yield "equal layers", self._whole({unit: k // each for k, unit in enumerate(self._free)})
        folded = sorted(self._free, key=lambda unit: min(unit, self._n - 1 - unit))
        together = sorted(self._free, key=lambda unit: (self._shares.get(unit, unit), unit))
        orders = {"cut": self._free, "folded": folded, "shared first": together}
        for name, order in orders.items():
            if name != "cut" and order == self._free:
                continue
            found = [(cut, more) for more in _MORE if (cut := self._cut(order, more)) is not None]
            for cut, more in found[:2]:
                yield name, self._better(self._whole(cut), more)
        yield "one by one", self._better(self._whole(self._filled()), 1)

    def _in_place(self) -> dict[int, int]:
        """Each unit where most of what it takes is, or where the one before it is."""
        there = np.zeros((self._n, self._workers))
        seen: set[int] = set()
        for record in self._work.records:
            unit = self.of.get(self._work.paths.get(record[0], ""))
            for slot in record[5] if unit is not None else ():
                if slot in self._work.homes and slot not in seen:
                    seen.add(slot)
                    there[unit, self._work.homes[slot]] += self._work.nbytes[slot]
        found: dict[int, int] = {}
        worker = 0
        for unit in self._free:
            worker = int(there[unit].argmax()) if there[unit].any() else worker
            found[unit] = worker
        return found

    def _whole(self, free: Mapping[int, int]) -> list[int]:
        return [self._pinned.get(unit, free.get(unit, 0)) for unit in range(self._n)]

    def _room(self, pinned: Mapping[int, int], more: float) -> np.ndarray:
        """(worker, time) -> bytes that it has left of so many times its limit."""
        each = np.multiply(self._work.limits, float(more)) - self._work.held
        left = np.repeat(each[:, None], self._memory.shape[1], axis=1)
        for unit, worker in pinned.items():
            left[worker] -= self._memory[unit]
        return left

    def _cut(self, order: list[int], more: float) -> dict[int, int] | None:
        """The cheapest cuts of the units in this order, the first part for the first worker; None where none fits."""
        n = len(order)
        apart = self._apart[np.ix_(order, order)]
        sums = np.zeros((n + 1, n + 1))
        sums[1:, 1:] = apart.cumsum(0).cumsum(1)
        before = sums - np.diagonal(sums)[:, None]  # (i, j): between all before i and those from i to before j
        memory = np.concatenate([np.zeros((1, self._memory.shape[1])), self._memory[order].cumsum(0)])
        need = memory[None, :, :] - memory[:, None, :]
        room = self._room(self._pinned, more)
        backwards = np.tri(n + 1, k=-1, dtype=bool)
        best = np.full(n + 1, np.inf)
        best[0] = 0
        came: list[np.ndarray] = []
        for worker in range(self._workers):
            elsewhere = [unit for unit, other in self._pinned.items() if other != worker]
            pinned = np.concatenate([[0.0], self._apart[np.ix_(order, elsewhere)].sum(1).cumsum()])
            costs = before + pinned[None, :] - pinned[:, None]
            costs[backwards | (need > room[worker]).any(axis=2) & ~np.eye(n + 1, dtype=bool)] = np.inf
            costs = costs + best[:, None]
            came.append(costs.argmin(axis=0))
            best = costs.min(axis=0)
        if not np.isfinite(best[n]):
            return None
        found: dict[int, int] = {}
        end = n
        for worker in reversed(range(self._workers)):
            begin = int(came[worker][end])
            found.update((order[k], worker) for k in range(begin, end))
            end = begin
        return found

    def _filled(self) -> dict[int, int]:
        """Each unit on the first worker from the last one's on that has room for it, else on that with the most."""
        room = self._room(self._pinned, 1)
        found: dict[int, int] = {}
        worker = 0
        for unit in self._free:
            fits = [w for w in range(worker, self._workers) if (room[w] >= self._memory[unit]).all()]
            worker = fits[0] if fits else worker
            at = worker if fits else int(room.min(axis=1).argmax())
            found[unit] = at
            room[at] -= self._memory[unit]
        return found

    def _better(self, workers: list[int], more: float) -> list[int]:
        """The same with single units moved, as long as that pays and they have room."""
        at = np.asarray(workers)
        room = self._room(dict(enumerate(workers)), more)
        for _ in range(4 * self._n):
            together = self._apart @ np.eye(self._workers)[at]  # (unit, worker): what it has to do with those there
            gain = together - together[np.arange(self._n), at][:, None]
            gain[list(self._pinned)] = 0
            for unit, worker in zip(*np.unravel_index(np.argsort(-gain, axis=None), gain.shape), strict=True):
                if gain[unit, worker] <= 1e-12:
                    return [int(w) for w in at]
                if (room[worker] >= self._memory[unit]).all():
                    room[worker] -= self._memory[unit]
                    room[at[unit]] += self._memory[unit]
                    at[unit] = worker
                    break
            else:  # there is no room for what would pay
                break
        return [int(w) for w in at]


def _in_turn(work: Work, alone: Division) -> Division:
    """The same with each copy of what was there before taken from the last unit that got one, not from the first: so
    it crosses once where units that share it are cut apart."""
    last: dict[int, int] = {}
    moves = []
    for slot, source, to in alone.moves:
        moves.append((slot, last.get(slot, source) if slot in work.nbytes else source, to))
        last[slot] = to
    return replace(alone, moves=moves)


def _above(path: str, depth: int) -> str:
    return ".".join(path.split(".")[:depth])
