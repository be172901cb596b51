"""Whose a GPU's time is (SPEC C2): on streams of events that are written out, or drawn, here. No GPU is needed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from mindtorch.profile.measure import device_time
from mindtorch.profile.measure.device_ops import implausible
from mindtorch.profile.measure.device_time import ANY, KERNEL, LAUNCH, SPAN, Traced, attribute

PYTHON, ADD, MM, SUM = range(4)  # rows


def spans(*rows: tuple[int, int, int, int]) -> Any:
    return np.array(list(rows), SPAN)


def launches(*rows: tuple[int, int, int]) -> Any:
    return np.array(list(rows), LAUNCH)


def kernels(*rows: tuple[int, int, int, int, int, bool]) -> Any:
    return np.array(list(rows), KERNEL)


def test_C2_an_instant_is_the_ops_whose_kernel_runs_and_else_the_hosts() -> None:
    host = spans((0, 10, ADD, 0), (10, 90, PYTHON, 0))
    found = attribute(host, launches((1, 5, 0)), kernels((1, 20, 30, 7, 0, False)))
    assert found.moved == {(PYTHON, ADD): 30}
    assert (found.device, found.kernels, found.busy, found.idle, found.lost) == ({ADD: 30}, {ADD: 1}, 30, 70, 0)
    use = found.uses[0]
    assert (use.busy, use.idle, use.longest, use.kernels, use.copies) == (30, 70, 50, 1, 0)
    assert use.starved == 5 + 50  # until the launch, and after the kernel


def test_C2_kernels_at_once_on_two_streams_are_counted_once_and_their_own_times_in_full() -> None:
    host = spans((0, 5, ADD, 0), (5, 5, MM, 0), (10, 90, PYTHON, 0))
    work = kernels((2, 30, 40, 8, 0, False), (1, 20, 30, 7, 0, False))
    found = attribute(host, launches((1, 2, 0), (2, 7, 0)), work)
    assert found.moved == {(PYTHON, ADD): 30, (PYTHON, MM): 20}
    assert found.device == {ADD: 30, MM: 40}
    assert (found.busy, found.idle, found.uses[0].busy, found.uses[0].streams) == (50, 50, 50, {7, 8})


def test_C2_devices_have_idle_times_of_their_own() -> None:
    host = spans((0, 5, ADD, 0), (5, 5, MM, 0), (10, 90, PYTHON, 0))
    work = kernels((1, 20, 30, 7, 0, False), (2, 40, 40, 7, 1, False))
    found = attribute(host, launches((1, 2, 0), (2, 7, 0)), work)
    assert (found.busy, found.idle) == (60, 40)
    assert [(found.uses[i].busy, found.uses[i].idle) for i in (0, 1)] == [(30, 70), (40, 60)]


def test_C2_one_launch_of_a_graph_has_many_kernels() -> None:
    host = spans((0, 100, PYTHON, 0))
    found = attribute(host, launches((1, 2, 0)), kernels(*((1, 10 * i, 5, 7, 0, False) for i in range(1, 6))))
    assert (found.kernels, found.device, found.moved) == ({PYTHON: 5}, {PYTHON: 25}, {})
    assert (found.busy, found.idle) == (25, 75)


def test_C2_a_kernel_launched_between_ops_is_of_the_place_that_the_host_was_at() -> None:
    elsewhere = 9
    host = spans((0, 10, ADD, 0), (10, 20, PYTHON, 0), (30, 10, ADD, 0), (40, 60, elsewhere, 0))
    found = attribute(host, launches((1, 15, 0)), kernels((1, 35, 10, 7, 0, False)))
    assert found.moved == {(ADD, PYTHON): 5, (elsewhere, PYTHON): 5}


def test_C2_a_launch_is_of_its_threads_op_and_of_any_threads_where_that_is_not_known() -> None:
    host = spans((0, 100, PYTHON, 0), (10, 50, ADD, 1))
    work = kernels((1, 20, 10, 7, 0, False))
    assert attribute(host, launches((1, 15, 0)), work).device == {PYTHON: 10}
    assert attribute(host, launches((1, 15, 1)), work).device == {ADD: 10}
    assert attribute(host, launches((1, 15, ANY)), work).device == {ADD: 10}  # what began last


def test_C2_copies_and_fills_are_told_apart_from_kernels() -> None:
    host = spans((0, 100, ADD, 0))
    work = kernels((1, 10, 5, 7, 0, True), (2, 12, 20, 7, 0, False), (3, 50, 5, 7, 0, True))
    use = attribute(host, launches((1, 5, 0), (2, 6, 0), (3, 7, 0)), work).uses[0]
    assert (use.copies, use.copying, use.kernels, use.busy) == (2, 10, 1, 27)


def test_C2_a_kernel_without_a_launch_stays_the_hosts_and_is_counted() -> None:
    host = spans((0, 100, ADD, 0))
    found = attribute(host, launches((1, 5, 0)), kernels((1, 10, 5, 7, 0, False), (4, 20, 5, 7, 0, False)))
    assert (found.lost, found.device, found.moved) == (1, {ADD: 5}, {})


def test_C2_a_launch_that_one_call_makes_through_another_is_one() -> None:
    """cudaGraphLaunch and the driver's own call have one number: the first of them counts."""
    host = spans((0, 10, MM, 0), (10, 90, PYTHON, 0))
    found = attribute(host, launches((1, 12, 0), (1, 5, 0)), kernels((1, 20, 5, 7, 0, False)))
    assert found.device == {MM: 5}


def test_C2_without_anything_nothing_is_moved() -> None:
    none = attribute(spans(), launches(), kernels())
    assert (none.moved, none.busy, none.idle, none.uses) == ({}, 0, 0, {})
    only = attribute(spans(), launches((1, 5, 0)), kernels((1, 10, 5, 7, 0, False)))
    assert (only.moved, only.lost) == ({}, 1)
    assert attribute(spans((0, 7, ADD, 0)), launches(), kernels()).idle == 7


def test_C2_what_runs_while_the_host_is_only_watched_is_told_apart() -> None:
    host = spans((0, 10, ADD, 0), (40, 10, PYTHON, 0))
    found = attribute(host, launches((1, 5, 0)), kernels((1, 8, 37, 7, 0, False)))
    assert (found.moved, found.hidden, found.busy, found.idle) == ({(PYTHON, ADD): 5}, {ADD: 30}, 7, 13)


def slow(host: Any, launched: Any, work: Any) -> tuple[dict[tuple[int, int], int], int]:
    """The definition, instant by instant."""
    moved: dict[tuple[int, int], int] = {}
    busy = 0
    row_of = {}
    for number, at, thread in launched.tolist():
        mine = [(s["start"], i) for i, s in enumerate(host) if s["start"] <= at and thread in (ANY, s["thread"])]
        row_of[number] = int(host["row"][max(mine)[1]]) if mine else -1
    for t in range(int((host["start"] + host["ns"]).max())):
        here = [(s["start"], i) for i, s in enumerate(host) if s["start"] <= t < s["start"] + s["ns"]]
        runs = [(k["start"], i) for i, k in enumerate(work) if k["start"] <= t < k["start"] + k["ns"]]
        if not here or not runs:
            continue
        busy += 1
        a, b = int(host["row"][min(here)[1]]), row_of.get(int(work["correlation"][min(runs)[1]]), -1)
        if b >= 0 and a != b:
            moved[a, b] = moved.get((a, b), 0) + 1
    return moved, busy


@pytest.mark.parametrize("seed", range(20))
def test_C2_what_is_moved_is_that_of_the_definition_instant_by_instant(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n = 30
    host = np.zeros(n, SPAN)
    host["thread"] = draw.integers(0, 2, n)
    for thread in (0, 1):
        mine = np.flatnonzero(host["thread"] == thread)
        cuts = np.sort(draw.choice(400, 2 * len(mine), replace=False))
        host["start"][mine], host["ns"][mine] = cuts[::2], cuts[1::2] - cuts[::2]
    host["row"] = draw.integers(0, 5, n)
    launched = np.zeros(25, LAUNCH)
    launched["correlation"], launched["at"] = np.arange(25), draw.integers(0, 380, 25)
    launched["thread"] = draw.integers(-1, 2, 25)
    work = np.zeros(40, KERNEL)
    work["correlation"] = draw.integers(0, 28, 40)  # some share a launch, some have none
    work["start"], work["ns"] = draw.integers(0, 400, 40), draw.integers(0, 15, 40)
    work["stream"], work["device"] = draw.integers(0, 3, 40), draw.integers(0, 2, 40)
    host = host[draw.permutation(n)]
    found = attribute(host, launched, work)
    moved, busy = slow(host, launched, work)
    assert (found.moved, found.busy) == (moved, busy)
    covered = {t for s in host for t in range(s["start"], s["start"] + s["ns"])}
    assert found.busy + found.idle == len(covered)
    assert sum(found.kernels.values()) + found.lost == len(work)
    first, last = min(covered), max(covered)
    for device, use in found.uses.items():
        mine = [k for k in work.tolist() if k[4] == device]
        runs = {t for _, start, ns, *_ in mine for t in range(start, start + ns)}
        idle = covered - runs
        assert (use.busy, use.idle) == (len([t for t in runs if first <= t <= last]), len(idle))
        assert use.starved <= use.idle
        # Stretches between two kernels, in which the host's own stretches are counted.
        cuts = sorted({first - 1, last + 1} | runs)
        assert use.longest == max(len(idle & set(range(a, b))) for a, b in pairwise(cuts))


def test_C2_what_is_taken_from_the_host_is_never_more_than_it_had() -> None:
    draw = np.random.default_rng(1)
    n = 2000
    host = np.zeros(n, SPAN)
    host["start"], host["ns"], host["row"] = np.arange(n) * 10, 10, draw.integers(0, 9, n)
    launched = np.zeros(n, LAUNCH)
    launched["correlation"], launched["at"] = np.arange(n), host["start"] + 3
    work = np.zeros(n, KERNEL)
    work["correlation"], work["start"] = np.arange(n), host["start"] + draw.integers(3, 500, n)
    work["ns"] = draw.integers(1, 40, n)
    found = attribute(host, launched, work)
    left = {row: int(host["ns"][host["row"] == row].sum()) for row in range(9)}
    for (a, _), ns in found.moved.items():
        left[a] -= ns
    assert min(left.values()) >= 0
    assert found.busy + found.idle == 10 * n


# ---- what is not plausible


GOOD = Traced(launches((1, 5, 0)), kernels((1, 20, 30, 7, 0, False)))
HOST = spans((0, 100, ADD, 0))


def test_C2_a_trace_that_cannot_be_is_refused_with_a_reason() -> None:
    assert implausible(HOST, GOOD, "torch's tracer") == ""
    assert implausible(HOST, Traced(launches(), kernels()), "torch's tracer") == ""  # nothing ran
    assert "no kernels" in implausible(HOST, Traced(GOOD.launches, kernels()), "torch's tracer")
    assert "without their launch" in implausible(HOST, Traced(launches(), GOOD.kernels), "torch's tracer")
    late = Traced(launches((1, 10_000_000, 0)), GOOD.kernels)
    assert "before their launch" in implausible(HOST, late, "torch's tracer")
    away = Traced(GOOD.launches, kernels((1, 10**15, 30, 7, 0, False)))
    assert "outside the traced time" in implausible(HOST, away, "torch's tracer")
    assert device_time.launched(*GOOD)[0].tolist() == [5]
