"""L7, C4: what is predicted once for calls that differ in floats alone, and which values an estimate may keep."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mindtorch._ext import intern
from mindtorch.engine.record import predict

I64, F32, BOOL = torch.int64, torch.float32, torch.bool
MOST, MOST_FLOATS = 1 << 20, 1 << 12
SMALL, BLIND = intern.SMALL, intern.SMALL | intern.BLIND


@pytest.mark.parametrize(("dtype", "numel", "random", "kept"), [
    (I64, MOST, False, True), (I64, MOST + 1, False, False), (BOOL, MOST, True, True), (torch.uint16, 1, False, True),
    (F32, MOST_FLOATS, False, True), (F32, MOST_FLOATS + 1, False, False), (F32, 1, True, False),
    (torch.bfloat16, 0, False, True), (torch.complex64, 1, False, False), (torch.float8_e4m3fn, 1, False, False),
])  # fmt: skip
def test_C4_values_are_kept_up_to_a_size_and_no_drawn_floats(
    dtype: torch.dtype, numel: int, random: bool, kept: bool
) -> None:
    assert predict.little(dtype, numel, random) is kept


def fact(n: int = 3, dtype: torch.dtype = I64) -> tuple:
    return (dtype, torch.Size([n]), None, 0, -1)


@pytest.mark.parametrize(("name", "outs", "inputs", "expected"), [
    ("aten::index_select", [fact(MOST)], [fact(), fact()], SMALL),
    ("aten::index_select", [fact(MOST + 1)], [fact(), fact()], 0),
    ("aten::index_select", [fact(), fact(MOST + 1)], [fact()], 0),
    ("aten::index_select", [fact()], [fact(MOST), fact()], SMALL),
    ("aten::index_select", [fact()], [fact(), fact(MOST + 1)], 0),
    ("aten::index_select", [], [], 0),
    ("aten::zeros_like", [fact()], [fact(MOST + 1)], BLIND),
    ("aten::bitwise_and", [fact(dtype=I64)], [fact(MOST + 1)] * 2, BLIND),  # compared, of any size
    ("aten::cat", [fact()], [fact()] * 2, BLIND),
    ("aten::cat", [fact(dtype=F32)], [fact(dtype=F32)] * 2, SMALL),
])  # fmt: skip
def test_C4_what_is_worth_knowing_of_a_call(name: str, outs: list, inputs: list, expected: int) -> None:
    written = bytes(len(inputs))
    assert predict._worth_knowing(name, False, (outs, [-1] * len(outs), None, written, 0), inputs) == expected


def test_C4_views_are_not_worth_knowing_and_writes_are() -> None:
    knowing = predict._worth_knowing
    assert knowing("aten::index_select", False, ([fact()], [0], None, b"\0", intern.VIEW), [fact()]) == 0
    assert knowing("aten::index_select", False, ([fact()], [0], None, b"\0", 0), [fact()]) == 0
    for n, expected in ((MOST, SMALL), (MOST + 1, 0)):
        assert knowing("aten::index_add_", False, ([], [], (), b"\1\0", intern.WRITES), [fact(n), fact()]) == expected
    assert knowing("aten::scatter_", False, ([], [], (), b"\1\0", intern.WRITES), [fact(), fact()]) == BLIND
    assert knowing("aten::rand", True, ([fact(dtype=F32)], [-1], None, b"", 0), []) == BLIND  # numbers between bounds
    assert knowing("aten::randn", True, ([fact(dtype=F32)], [-1], None, b"", 0), []) == 0


@pytest.mark.parametrize(("args", "found"), [
    (((2, 3), (1, -1)), True), (((-2, 3), (1, 1)), False), (((2,), [0]), False), (((2,), (-1,), None), True),
    ((), False), ((3, -1), False), (((),), False),
])  # fmt: skip
def test_L9_negative_strides_are_found_in_the_last_list(args: tuple, found: bool) -> None:
    assert predict._negative(args) is found


class Info(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.fixture
def inferred(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """The arguments of calls that were predicted."""
    found: list[tuple] = []
    monkeypatch.setattr(predict, "_same_but_floats", {})
    monkeypatch.setattr(predict, "_infer", lambda _info, args, *_: found.append(args) or "spec")
    return found


def once(info: Info, *args: Any, check: bool = True, messages: tuple = (), **kwargs: Any) -> None:
    caught: Any = SimpleNamespace(messages=messages)
    given = kwargs.pop("device", None)
    assert predict._infer_once(info, args, kwargs, False, given, check, caught) == "spec"


ADD = Info(name="aten::add", random=False, pointwise=True, bumps=False)


@pytest.mark.parametrize(("first", "second", "alike"), [
    ((0.5,), (0.25,), True), ((0.5,), (1.0,), True), ((1.0,), (1.0000001,), False), ((2.0,), (100.0,), True),
    ((0.5, 100.0), (0.5, 100.5), False), ((0.5, 100.5), (0.5, 101.0), False), ((0.5,), (-0.5,), False),
    ((1.0, 0.0), (1.0, 0.5), False), ((1.0, 0.0), (1.0, -0.0), True),
    ((-2.0,), (-100.0,), True), ((2.0, 3.0), (5.0, 7.0), True), ((2.0, 3.0), (7.0, 5.0), False),
    ((2.0, 3.0), (5.0, 5.0), False), ((0.5, 1), (0.5, 1.5), False), ((0.5, 1), (0.5, True), False),
    ((0.5, (1, 2)), (0.5, [1, 2]), False), ((0.5, (1, 2)), (0.25, (1, 3)), False), ((0.5, [0.5]), (0.5, [0.5]), True),
    ((0.5, "a"), (0.5, "b"), False),
])  # fmt: skip
def test_L7_calls_that_differ_in_floats_of_a_kind_are_predicted_once(
    first: tuple, second: tuple, alike: bool, inferred: list[tuple]
) -> None:
    for args in (first, first, second, second):
        once(ADD, *args)
    assert inferred == ([first] if alike else [first, second])


def test_L7_what_is_predicted_each_time(inferred: list[tuple]) -> None:
    """No floats, a creation, no kernel asked, random numbers, other functions than element-wise ones, a warning."""
    ways: list[tuple[Info, tuple, dict]] = [
        (ADD, (3,), {}),
        (ADD, (0.5,), {"device": 0}),
        (ADD, (0.5,), {"check": False}),
        (ADD, (0.5,), {"messages": ("mind",)}),
        (Info(name="a", random=True, pointwise=True, bumps=False), (0.5,), {}),
        (Info(name="b", random=False, pointwise=False, bumps=False), (0.5,), {}),
    ]
    for info, args, how in ways:
        once(info, *args, **how), once(info, *args, **how)
    assert len(inferred) == 2 * len(ways)
    inferred.clear()
    for info in (ADD, Info(name="c", random=False, pointwise=False, bumps=True)):
        once(info, 0.5), once(info, 0.5, alpha=0.5), once(info, 0.25, alpha=0.25)
        with torch.no_grad():
            once(info, 0.25)
    assert len(inferred) == 6


def test_L7_as_many_predictions_are_kept_as_were_said(inferred: list[tuple], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "_MOST_REMEMBERED", 2)
    for n in (1, 2, 1, 3, 3, 1):
        once(ADD, 0.5, n)
    assert [args[1] for args in inferred] == [1, 2, 3, 1]
    predict.forget()
    once(ADD, 0.5, 1)
    assert len(inferred) == 5


@pytest.mark.parametrize(("first", "second", "folds"), [
    ((2, 3, 4), (2, 4, 5), False), ((1, 3, 4), (2, 4, 5), True), ((2, 3, 4), (1, 4, 5), True),
    ((1, 3, 4), (1, 4, 5), False), ((4, 5), (5, 6), False), ((4,), (4, 2, 3), True), ((3, 4), (2, 4, 5), True),
    ((2, 3, 4, 5), (2, 3, 5, 6), False), ((2, 3, 4, 5), (3, 5, 6), False), ((2, 3, 4), (4,), False),
    ((2, 3, 4, 5), (5, 6), False), ((5, 6), (2, 3, 6, 4), True),
])  # fmt: skip
def test_L7_products_that_torch_makes_in_another_way_where_the_small_operand_requires_grad(
    first: tuple, second: tuple, folds: bool
) -> None:
    facts = [(F32, torch.Size(size), None, 0, 0) for size in (first, second)]
    assert predict._folds(*facts) is folds
    strided = (F32, torch.Size(first), tuple(range(len(first))), 0, 0)
    assert predict._folds(strided, facts[1]) is (folds or len(first) >= 3 > len(second))


def test_L7_results_that_a_backward_op_is_not_asked_for_are_none() -> None:
    aten, out = torch.ops.aten, (1, 2, 3)
    info = Info(func=aten.native_batch_norm_backward.default)
    for mask in ((True, False, True), (False, True, True), (False, False, False)):
        asked = predict._asked_for(info, out, (*[None] * 9, list(mask)))
        assert asked == tuple(n if wanted else None for n, wanted in zip(out, mask, strict=True))
    assert predict._asked_for(info, out, (None,) * 9) is out, "it was given by name, or not at all"
    assert predict._asked_for(info, [1, 2], (*[None] * 9, [True] * 3)) == [1, 2]
    assert predict._asked_for(Info(func=aten.max.dim), out, (None, [False] * 3)) is out
    assert predict._asked_for(Info(func=len), out, ([False] * 3,)) is out
