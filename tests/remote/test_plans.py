"""R1: where the numbers of a plan stand, which tensors its steps take, and from when on nobody needs one."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch

from mindtorch.engine.remote.definitions import Definition, Numbers, numbers_in
from mindtorch.engine.remote.plans import Plan, is_constant
from mindtorch.engine.remote.wire import HERE, Hole, Reference, WireError

F = torch.float32
RELU = Definition("op aten::relu.default", (Reference(0),), {}, -1, False, (), True, (0,), ((F, 1, False),))
SCALED = Definition(
    "op aten::add.Tensor", (Reference(0), Reference(1)), {"alpha": Hole.FLOAT}, -1, False, (), True, (0,),
    ((F, 2, True),),
)  # fmt: skip
GIVEN = (F, 1, False, 0)


def changed(plan: Plan, **numbers: float) -> None:
    """Numbers by place: `n3=5` an int, `f3=0.5` a float."""
    places = [int(name[1:]) for name in numbers]
    data = b"".join(struct.pack("q" if name[0] == "n" else "d", n) for name, n in numbers.items())
    plan.change(struct.pack(f"{len(places)}I", *places), data)


def test_R1_numbers_stand_behind_those_of_the_storages_call_by_call() -> None:
    plan = Plan([RELU, SCALED], [(0, True, 0), (1, False, 1, 2)], [GIVEN, (F, 2, True, 2)], [1])
    one, two = plan.steps
    assert (numbers_in(RELU), numbers_in(SCALED)) == (2, 6)
    assert (one.begin, two.begin, len(plan.ints)) == (2, 4, 2 + 2 + 6 + 2 + 5)
    assert (one.inputs, two.inputs, one.grad, two.grad) == ((0,), (2, 1), True, False)
    assert (one.dying, two.dying) == ((0,), (2, 1))  # the last output stays
    assert (two.tensors, two.nested, two.named) == (((0, 0), (1, 1)), (), ())
    changed(plan, n0=7, n1=9, n2=5, n3=0, f4=0.25, n5=3, n6=4, n7=4, n8=1, n9=6, n10=5, n11=2, n12=3, n13=8, n14=1)
    changed(plan, n15=2, n16=1)
    assert plan.described() == [(7, F, (5,), (1,), 2, 0), (9, F, (3, 8), (1, 2), 1, 2)]
    assert plan._stale == {0, 1}
    plan.fill()
    assert one.predicted == [(F, (5,), None, 0)]
    assert two.kwargs == {"alpha": 0.25} and two.predicted == [(F, (3, 4), (4, 1), 6)]


@pytest.mark.parametrize(("place", "stale", "again"), [
    (0, [False, False], 0), (2, [True, False], None), (3, [True, False], None), (4, [False, True], None),
    (5, [False, True], None), (6, [False, False], 0), (7, [False, False], 0),
])  # fmt: skip
def test_R1_only_what_a_number_is_in_is_made_anew(place: int, stale: list[bool], again: int | None) -> None:
    plan = Plan([RELU], [(0, True, 0), (0, True, 1)], [GIVEN, GIVEN], [1])
    before = plan.described()
    plan.fill()
    changed(plan, **{f"n{place}": 3})
    assert [k in plan._stale for k in range(len(plan.steps))] == stale
    after = plan.described()
    assert [a is not b for a, b in zip(after, before, strict=True)] == [again == 0, again == 1]
    assert plan.described() == after and all(a is b for a, b in zip(plan.described(), after, strict=True))


def test_R1_a_value_dies_at_the_call_that_takes_it_last_or_that_made_it_for_nobody() -> None:
    plan = Plan([RELU, SCALED], [(0, True, 0), (0, True, 0), (1, True, 0, 1), (0, True, 3)], [GIVEN], [3])
    assert [sorted(step.dying) for step in plan.steps] == [[], [], [0, 1, 3], [2]]
    plan = Plan([RELU], [(0, True, 0), (0, True, 0)], [GIVEN], [1])
    assert [sorted(step.dying) for step in plan.steps] == [[1], [0]]


@pytest.mark.parametrize(("records", "kept", "why"), [
    ([(1, True, 0)], [], "a definition in 0..0, got 1"), ([(-1, True, 0)], [], "a definition in 0..0, got -1"),
    ([(0, True, 2)], [], "among 1 tensors and 0 outputs"), ([(0, True, 1)], [], "among 1 tensors and 0 outputs"),
    ([(0, True, -1)], [], "among 1 tensors"), ([(0, True, -2)], [], "among 1 tensors"),
    ([(0, True, 0), (0, True, 3)], [], "among 1 tensors and 1 outputs"),
    ([(0, True, 0)], [1], "results among 1 outputs"), ([(0, True, 0)], [-1], "results among 1 outputs"),
])  # fmt: skip
def test_R3_a_plan_names_what_is_there(records: list[tuple], kept: list[int], why: str) -> None:
    with pytest.raises(WireError, match=why):
        Plan([RELU], records, [GIVEN], kept)


def test_R3_numbers_are_changed_where_there_are_some() -> None:
    plan = Plan([RELU], [(0, True, 0)], [GIVEN], [0])
    n = len(plan.ints)
    assert n == 1 + 2 + 2
    changed(plan, **{f"n{n - 1}": 1})
    with pytest.raises(WireError, match=f"the place of a number in 0..{n - 1}, got {n}"):
        changed(plan, **{f"n{n}": 1})
    for positions, values in ((b"\0" * 3, b"\0" * 6), (b"\0" * 4, b"\0" * 16), (b"\0" * 8, b"\0" * 8)):
        with pytest.raises(WireError, match="expected 4 and 8 bytes for each number"):
            plan.change(positions, values)


def test_R1_holes_take_their_numbers_in_order() -> None:
    data = bytearray(struct.pack("qddqd", 3, 0.5, 1.5, -4, 2.5))
    ints, floats = memoryview(data).cast("q"), memoryview(data).cast("d")
    numbers = Numbers(ints, floats, 0)
    a: Any = [Hole.INT, (Hole.COMPLEX, "text"), None, Reference(0), [Hole.INT], Hole.FLOAT]
    assert numbers.fill(a) == [3, (0.5 + 1.5j, "text"), None, Reference(0), [-4], 2.5] and numbers.at == 5
    numbers = Numbers(ints, floats, 3)
    assert numbers.several(1) == (-4,) and numbers.several(0) == () and numbers.at == 4


@pytest.mark.parametrize(("a", "constant"), [
    (3, True), (None, True), ([1, (2, "a")], True), (Reference(0), False), ([1, (Reference(0),)], False),
    (HERE, False), (slice(1, 2), False), ((), True),
])  # fmt: skip
def test_R1_what_is_the_same_for_any_tensors(a: Any, constant: bool) -> None:
    assert is_constant(a) is constant
