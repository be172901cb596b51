"""R5: how long a divided segment takes: sums of what comes one after another, the longest of what runs side by side."""

from __future__ import annotations

import math

import pytest

from mindtorch.engine.remote.division import Part
from mindtorch.engine.remote.run_time import Computing, Costs, end_of

SIZES = {7: 64, 8: 32}
THROUGH = Costs(message=1 / 2, byte=1 / 64)
DIRECT = Costs(message=1 / 2, byte=1 / 64, direct=True)
MOVE = 1 / 2 + 64 / 64  # of storage 7


def part(worker: int, *positions: int, **sources: list[int]) -> Part:
    """``_1=[7]``: storage 7 comes from worker 1."""
    return Part(worker, list(positions), sources={int(name[1:]): slots for name, slots in sources.items()})


def seconds(*parts: Part, costs: Costs = THROUGH, at_once: float = math.inf, **program: float) -> float:
    """Record k takes 2 ** k seconds, on any of three workers of one machine."""
    each = [2.0**k for k in range(8)]
    return end_of(parts, SIZES, costs, Computing([each] * 3, [("here", at_once)] * 3, **program))


def test_R5_on_one_worker_all_records_follow_each_other() -> None:
    assert seconds() == 0.0
    assert seconds(part(0, 0, 1, 3)) == 1 + 2 + 8
    assert seconds(part(0, 0), part(0, 1, 2)) == 1 + 2 + 4
    assert seconds(part(0, 0, 1), recorded=1 / 4, divided=8.0) == 2 / 4 + 3  # nothing is divided


def test_R5_the_program_records_and_divides_before_the_workers_begin() -> None:
    assert seconds(part(0, 0), part(1, 1), recorded=1 / 4, divided=1 / 8) == 2 * 3 / 8 + 2


def test_R5_a_part_takes_seconds_of_its_own_where_there_are_several_workers() -> None:
    assert seconds(part(0, 0), part(1, 1, _0=[7]), part=3.0) == (3 + 1) + MOVE + (3 + 2)
    assert seconds(part(0, 0), part(0, 1), part=3.0) == 1 + 2


@pytest.mark.parametrize("costs", [THROUGH, DIRECT])
def test_R5_a_part_begins_when_what_it_takes_has_come(costs: Costs) -> None:
    assert seconds(part(0, 0), part(1, 1, _0=[7]), costs=costs) == 1 + MOVE + 2
    assert seconds(part(0, 0), part(1, 1, _0=[7, 8]), part(2, 2, _1=[7]), costs=costs) == (
        1 + (MOVE + 32 / 64) + 2 + MOVE + 4
    )


@pytest.mark.parametrize("costs", [THROUGH, DIRECT])
def test_R5_parts_that_do_not_touch_run_side_by_side_as_far_as_there_are_cores(costs: Costs) -> None:
    parts = part(0, 1), part(1, 2), part(2, 1)
    assert seconds(*parts, costs=costs) == 4  # the longest
    assert seconds(*parts, costs=costs, at_once=2) == 4  # 8 seconds on two cores
    assert seconds(*parts, costs=costs, at_once=1.6) == 5
    assert seconds(*parts, costs=costs, at_once=1) == 8


def test_R5_workers_of_different_machines_share_no_cores() -> None:
    computing = Computing([[2.0, 4.0]] * 2, [("a", 1.0), ("b", 1.0)])
    assert end_of([part(0, 0), part(1, 1)], {}, THROUGH, computing) == 4


def test_R5_while_a_move_goes_through_the_program_only_its_source_works() -> None:
    """Worker 2 was given 8 seconds before, but begins at the end; a worker that is given more waits for no other."""
    parts = part(2, 3), part(0, 0), part(1, 1, _0=[7])
    assert seconds(*parts) == 1 + MOVE + 8
    assert seconds(*parts, at_once=1) == 1 + MOVE + 2 + 8
    assert seconds(*parts, costs=DIRECT) == 8
    assert seconds(*parts, costs=DIRECT, at_once=1) == 1 + 2 + 8


def test_R5_what_a_worker_was_given_runs_before_it_gives() -> None:
    assert seconds(part(0, 3), part(0, 0), part(1, 1, _0=[7])) == 8 + 1 + MOVE + 2
    assert seconds(part(0, 0), part(1, 1, _0=[7]), part(2, 2, _0=[7])) == 1 + MOVE + MOVE + 4
    assert seconds(part(0, 0), part(1, 1, _0=[7]), part(2, 2, _0=[7]), costs=DIRECT) == 1 + MOVE + 4


def test_R5_a_part_takes_from_several_workers_one_after_another_if_through_the_program() -> None:
    parts = part(0, 1), part(1, 2), part(2, 0, _0=[7], _1=[7])
    assert seconds(*parts) == (2 + MOVE) + (4 + MOVE) + 1
    assert seconds(*parts, costs=DIRECT) == max(2 + MOVE, 4 + MOVE) + 1


def test_R5_each_worker_has_seconds_of_its_own() -> None:
    computing = Computing([[1.0, 1.0], [8.0, 16.0]], [(0, math.inf), (1, math.inf)])
    assert end_of([part(0, 0), part(1, 1, _0=[7])], SIZES, THROUGH, computing) == 1 + MOVE + 16
