"""Plans: which module of a model runs on which of several workers (SPEC R5).

A plan is made of one segment, the first that needs more memory than a worker has. Units (modules of some depth) are
first divided as if each had a worker of its own: that gives what every two of them would have to move, and how much
memory each needs when. Then come the best cuts, by dynamic programming, of the units in the order in which they run, in
that order folded in the middle (for models whose last levels take what the first ones made), and with those together
that share parameters; single units move as long as it pays. At last each plan is divided as the executor will do it,
with copies of what several workers read if there is memory for them, and the cheapest that fits is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from .division import Division, divided
from .pricing import Plan, Work, memory_of, moves_of, on_one, paths_of, priced
from .run_time import Costs

__all__ = ["plans"]

_UNITS = 96  # at most
_MORE = (1, 1.1, 1.25, 1.5, 2)  # times its limit: what units need is not all needed at the same instant
_LARGE = 64  # of what a segment begins with such a part is large
_TIMES = 256  # in which a segment is cut to look at memory


def plans(work: Work, costs: Costs, known: Mapping[str, int], usual: Costs | None = None) -> list[Plan]:
    """All that were thought of, the best one first. costs: of what moves, as measured; known: worker by module path, of
    those that are to stay; usual: costs by which plans are made and compared; None: ``costs``."""
    units = _Units(work, usual or costs, known)
    found = [on_one(work)] if not known else []
    for name, chosen in units.candidates():
        workers = {path: chosen[unit] for path, unit in units.of.items()}
        if not workers or not any(plan.workers == workers for plan in found):
            found.append(priced(work, name, workers, costs, usual))
    return sorted(found, key=Plan.rank)


def _first(sizes: Sequence[int]) -> list[int]:
    return [0] * len(sizes)


class _Units:
    """Modules of some depth, in the order in which they first run; ``of``: the unit's number by module path."""

    def __init__(self, work: Work, costs: Costs, known: Mapping[str, int]) -> None:
        self._work, self._workers = work, len(work.limits)
        paths = paths_of(work)
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
        can = work.repeatable and work.repeatable._replace(alike=None)
        alone = divided(work.records, {}, ids, 0, _first, {}, work.stays, work.sizes, repeatable=can)
        #: What it costs in seconds if two are not on the same worker.
        self._apart = np.zeros((self._n, self._n))
        for nbytes, source, to in moves_of(work, _in_turn(work, alone)):
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
        self._memory = memory_of(work, moving, {}, max(self._n, 1), every)

    def candidates(self) -> Iterator[tuple[str, list[int]]]:
        """(name, worker of each unit)."""
        if not self._free:
            yield "as before" if self._n else "by values", [self._pinned[unit] for unit in range(self._n)]
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
