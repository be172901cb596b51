"""R5: the numbers of plans, of segments that are written down here: the best cuts by trying all, memory to the byte."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mindtorch.engine.remote.cuts import _Units, plans
from mindtorch.engine.remote.pricing import Plan, Work, on_one, roomiest
from mindtorch.engine.remote.run_time import Costs

Makes = Sequence[tuple[int, int]]


def record(module: int, takes: Sequence[int], makes: Makes, writes: Sequence[int] = (), device: int = 0) -> Any:
    return module, 0, -1, device, False, takes, writes, makes


def chain(limits: Sequence[int], layers: int = 4, held: Sequence[int] | None = None, **other: Any) -> Work:
    """Layer k has 100 bytes of weights, slot 10 + k, and makes 10 bytes, slot 20 + k, of what was made before it."""
    made: dict[str, Any] = {
        "records": [record(k + 1, [20 + k - 1, 10 + k], [(20 + k, 10)]) for k in range(layers)],
        "paths": {k + 1: f"Net.{k}" for k in range(layers)},
        "homes": {},
        "nbytes": {19: 10, **{10 + k: 100 for k in range(layers)}},
        "grows": {},
        "stays": {20 + layers - 1},
        "generator": 0,
        "limits": limits,
        "held": held or [0] * len(limits),
        **other,
    }
    return Work(**made)


def test_R5_memory_is_counted_to_the_byte() -> None:
    alone = on_one(chain([1000, 1000]))
    # The input and the weights stay; of what layers make, two are there at once.
    assert (alone.memory, alone.moved, alone.messages, alone.seconds, alone.used) == ([430, 0], 0, 0, 0, 1)
    assert on_one(chain([1000, 1000], held=[7, 9])).memory == [437, 9]
    assert on_one(chain([1000, 1000]), 1).memory == [0, 430]
    assert on_one(chain([1000], grows={11: 50})).memory == [480]
    assert on_one(chain([1000], homes={11: 0}, grows={11: 50})).memory == [480], "also where it lies already"
    assert on_one(chain([1000], stays={20, 21, 23})).memory == [450], "what is read later is not gone"
    assert on_one(chain([1000], homes={10: 0, 12: 0})).memory == [430]


@pytest.mark.parametrize(("limit", "excess"), [(430, 0), (429, 1), (431, 0), (0, 430)])
def test_R5_a_plan_fits_up_to_the_last_byte(limit: int, excess: int) -> None:
    plan = on_one(chain([limit, limit]))
    assert plan.excess == excess and plan.rank() == (excess, 0, 1)


def test_R5_what_lacks_on_some_workers_is_not_made_up_for_by_others() -> None:
    plan = Plan("some", {"a": 0, "b": 1, "c": 1}, 0, 0, 0.5, [5, 10, 20], [10, 8, 19])
    assert plan.excess == 3 and plan.used == 3 and plan.rank() == (3, 0.5, 3)  # the last holds what no module has


def test_R5_a_chain_that_is_cut_in_two_moves_what_is_between() -> None:
    best, *_ = plans(chain([230, 230]), Costs(1, 0.125), {})
    assert best.workers == {"Net.0": 0, "Net.1": 0, "Net.2": 1, "Net.3": 1}
    assert best.excess == 0 and best.memory == [230, 220], best
    assert (best.moved, best.messages, best.seconds) == (10, 1, 1 + 10 * 0.125)
    assert plans(chain([230, 219]), Costs(1, 0.125), {})[0].excess == 1


def test_R5_what_stays_on_another_worker_is_copied() -> None:
    work = chain([500, 500], homes={10: 1, 11: 0})
    alone = on_one(work)
    assert (alone.moved, alone.messages, alone.memory, alone.replicas) == (100, 1, [430, 100], {0: 100})
    again = on_one(chain([500, 500], homes={10: 1, 11: 0}, copies={10: [0]}))
    assert (again.moved, again.messages, again.memory) == (0, 0, [430, 100])


def tied(limits: Sequence[int], write: bool = False) -> Work:
    """Units 0 and 3 read one weight of 100 bytes, and the units between, of 100 bytes each, have what is made of it."""
    weights = {0: 10, 1: 11, 2: 12, 3: 10}
    records = [record(k + 1, [20 + k - 1, weights[k]], [(20 + k, 10)]) for k in range(4)]
    if write:
        records.append(record(0, [10, 23], [], [10]))
    return chain(limits, records=records, nbytes={19: 10, 10: 100, 11: 100, 12: 100})


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(("limit", "workers"), [(240, {0, 1}), (330, {0})])
def test_R5_units_that_share_a_weight_are_cut_apart_where_that_fits(write: bool, limit: int, workers: set[int]) -> None:
    """A copy takes memory and crosses once; in each run, if that writes the weight at its end."""
    best = plans(tied([limit, limit], write), Costs(1, 0.125), {})[0]
    assert best.excess == 0 and set(best.workers.values()) == workers
    apart = [plan for plan in plans(tied([limit, limit], write), Costs(1, 0.125), {}) if plan.replicas]
    assert apart and all(plan.replicas == {1: 100} and plan.moved >= 100 for plan in apart)
    if limit == 330:
        assert best.moved == 0 and not best.replicas
    else:
        assert max(best.memory) <= 240


def made_there(kept: Sequence[int]) -> Work:
    """A weight of 100 bytes and one of 50, made in no module; the modules 1 and 2 read the first one; what module 1
    makes of them, and what is made of that, is read by module 2."""
    records = [
        record(0, [], [(1, 100)]),
        record(0, [1], [], [1]),
        record(0, [], [(2, 50)]),
        record(1, [1, 2], [(3, 30)]),
        record(0, [3], [(4, 30)]),
        record(2, [1, 3, 4], [(5, 8)]),
        record(1, [3, 4, 5], [(6, 8)]),
    ]
    paths = {1: "Net.a", 2: "Net.b"}
    return Work(records, paths, {}, {}, {}, set(kept), 0, [1000, 1000], [0, 0])


def test_R5_copies_of_weights_that_are_made_in_the_segment_are_told_and_no_activations() -> None:
    (two,) = (each for each in plans(made_there([1, 2, 3, 4, 6]), Costs(), {}) if each.name == "equal layers")
    assert two.workers == {"Net.a": 0, "Net.b": 1} and two.replicas == {1: 100}
    assert two.moved == 100 + 30 + 30 + 8
    (two,) = (each for each in plans(made_there([6]), Costs(), {}) if each.name == "equal layers")
    assert not two.replicas, "what nobody keeps is no weight"
    assert made_there([1, 2, 3, 4, 6]).given == {1, 2} and made_there([6]).given == set()


def test_R5_weights_that_are_made_in_the_segment_grow_where_they_are() -> None:
    """As those do that were there before: from the start, on the worker that has them in the end."""
    alone = on_one(made_there([1, 2, 6]))
    work = replace(made_there([1, 2, 6]), grows={1: 200, 2: 100})
    assert on_one(work).memory == [alone.memory[0] + 300, 0]
    assert on_one(work, 1).memory == [0, alone.memory[0] + 300]
    moved = on_one(chain([1000, 1000], homes={10: 1}, grows={10: 50}, coming=True))
    stays = on_one(chain([1000, 1000], homes={10: 1}, grows={10: 50}))
    assert moved.memory == [480, 100] and stays.memory == [430, 150]


def test_R5_what_comes_to_its_module_moves_once_and_stays() -> None:
    """A run that makes a plan moves it; it is no copy, and no later run moves it back."""
    work = chain([1000, 1000], homes={10: 1, 11: 0})
    moved, copied = on_one(replace(work, coming=True)), on_one(work)
    assert (moved.moved, moved.messages, moved.replicas) == (100, 1, {})
    assert (copied.moved, copied.messages, copied.replicas) == (100, 1, {0: 100})


def test_R5_units_are_left_where_their_weights_are_if_that_is_best() -> None:
    """Also if those are in no order."""
    homes = {10: 1, 11: 0, 12: 0, 13: 1}
    best, *others = plans(chain([230, 230], homes=homes, coming=True), Costs(0, 1), {})
    assert best.name == "in place" and list(best.workers.values()) == [1, 0, 0, 1]
    assert best.moved == 20 and all(plan.excess or plan.moved > 100 for plan in others)


@pytest.mark.parametrize(
    ("sizes", "workers"),
    [
        ([1], [1]),  # the first that has most
        ([111, 1], [1, 0]),
        ([50, 40, 40, 60, 40], [1, 1, 0, 0, 2]),
        ([60, 60, 60], [1, 0, 2]),
        ([300], [1]),
        ([300, 10, 10], [1, 0, 0]),
        ([], []),
    ],
)
def test_R5_what_nothing_decides_about_fills_one_worker_after_the_other(sizes: list[int], workers: list[int]) -> None:
    """They have 100, 110 and 90 bytes left."""
    assert roomiest([100, 110, 90])(sizes) == workers


class Case:
    """Units with random costs, memory at two times, limits, and some that are on a worker already."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.n, self.workers = rng.randint(1, 6), rng.randint(1, 3)
        apart = np.zeros((self.n, self.n))
        for i, j in itertools.combinations(range(self.n), 2):
            apart[i, j] = apart[j, i] = rng.randint(0, 5)
        self.memory = [[rng.randint(0, 4), rng.randint(0, 4)] for _ in range(self.n)]
        self.limits = [rng.randint(2, 12) for _ in range(self.workers)]
        self.held = [rng.randint(0, 2) for _ in range(self.workers)]
        self.pinned = {unit: rng.randrange(self.workers) for unit in range(self.n) if rng.random() < 0.25}
        self.free = [unit for unit in range(self.n) if unit not in self.pinned]
        self.apart = apart
        self.units = object.__new__(_Units)
        vars(self.units).update(
            _work=chain(self.limits, held=self.held), _workers=self.workers, _n=self.n, _pinned=self.pinned,
            _free=self.free, _apart=apart, _memory=np.array(self.memory, float).reshape(self.n, 2), _shares={},
        )  # fmt: skip

    def cost(self, at: Sequence[int]) -> float:
        pairs = itertools.combinations(range(self.n), 2)
        return float(sum(self.apart[i, j] for i, j in pairs if at[i] != at[j]))

    def need(self, at: Sequence[int], worker: int) -> list[int]:
        return [sum(self.memory[unit][t] for unit in range(self.n) if at[unit] == worker) for t in range(2)]

    def fits(self, at: Sequence[int], more: float) -> bool:
        """A worker that gets none of the free ones may have too much already."""
        return all(
            max(self.need(at, w)) <= self.limits[w] * more - self.held[w]
            for w in range(self.workers)
            if any(at[unit] == w for unit in self.free)
        )

    def cuts(self, order: Sequence[int]) -> list[list[int]]:
        """Each way to give the first of these to the first worker, the next to the second …"""
        found = []
        for ends in itertools.combinations_with_replacement(range(len(order) + 1), self.workers - 1):
            at = [self.pinned.get(unit, 0) for unit in range(self.n)]
            for k, unit in enumerate(order):
                at[unit] = sum(k >= end for end in ends)
            found.append(at)
        return found


@pytest.mark.parametrize("more", [1, 1.5])
def test_R5_the_cheapest_cuts_are_found_that_fit(more: float) -> None:
    none = 0
    for seed in range(400):
        case = Case(seed)
        for order in (case.free, case.free[::-1]):
            costs = [case.cost(at) for at in case.cuts(order) if case.fits(at, more)]
            found = case.units._cut(order, more)
            assert (found is None) == (not costs), seed
            if found is None:
                none += 1
                continue
            at = case.units._whole(found)
            assert at in case.cuts(order) and case.fits(at, more) and case.cost(at) == min(costs), seed
    assert 100 < none < 700


def test_R5_units_fill_one_worker_after_the_other() -> None:
    for seed in range(200):
        case = Case(seed)
        at = dict(case.pinned)

        def left(worker: int, case: Case = case, at: dict[int, int] = at) -> list[int]:
            used = [[case.memory[unit][t] for unit, other in at.items() if other == worker] for t in range(2)]
            return [case.limits[worker] - case.held[worker] - sum(each) for each in used]

        begin = 0
        for unit in case.free:
            fits = [w for w in range(begin, case.workers) if all(map(int.__ge__, left(w), case.memory[unit]))]
            begin = fits[0] if fits else begin
            at[unit] = begin if fits else max(range(case.workers), key=lambda w: min(left(w)))
        assert case.units._whole(case.units._filled()) == [at[unit] for unit in range(case.n)], seed


def test_R5_single_units_move_as_long_as_it_pays_and_they_have_room() -> None:
    moved = 0
    for seed in range(300):
        case = Case(seed)
        begin = case.units._whole({unit: (seed + unit) % case.workers for unit in case.free})
        end = case.units._better(begin, 1)
        assert case.cost(end) <= case.cost(begin) and all(end[unit] == at for unit, at in case.pinned.items())
        room = {w: [case.limits[w] - case.held[w] - need for need in case.need(end, w)] for w in range(case.workers)}
        for w in range(case.workers):
            assert min(room[w]) >= 0 or not set(np.flatnonzero(np.array(end) == w)) - set(
                np.flatnonzero(np.array(begin) == w)
            ), seed
        for unit, w in itertools.product(case.free, range(case.workers)):
            other = [*end[:unit], w, *end[unit + 1 :]]
            assert case.cost(other) >= case.cost(end) or any(map(int.__lt__, room[w], case.memory[unit])), seed
        moved += begin != end
    assert moved > 50


@pytest.mark.parametrize(("layers", "units"), [(1, 1), (96, 96), (97, 49), (192, 96), (193, 1)])
def test_R5_units_are_the_innermost_modules_of_which_there_are_96_at_most(layers: int, units: int) -> None:
    paths = {k + 1: f"Net.{k // 2}.{k % 2}" for k in range(layers)}
    of = _Units(chain([1000, 1000], layers=layers, paths=paths), Costs(), {}).of
    size = 1 if units == layers else 2 if units > 1 else layers
    assert list(of.values()) == [k // size for k in range(layers)] and len(set(of.values())) == units


def test_R5_levels_that_are_folded_in_the_middle_and_equal_layers_are_tried() -> None:
    found = {plan.name: plan.workers for plan in plans(chain([1, 1], layers=5), Costs(), {})}
    assert list(found["equal layers"].values()) == [0, 0, 0, 1, 1]
    known = plans(chain([1, 1], layers=3), Costs(), {"Net.1": 1})
    assert all(plan.workers["Net.1"] == 1 for plan in known) and "all on one" not in {plan.name for plan in known}
    (only,) = plans(chain([1, 1], layers=2), Costs(), {"Net.0": 1, "Net.1": 0})
    assert only.name == "as before" and only.workers == {"Net.0": 1, "Net.1": 0}
