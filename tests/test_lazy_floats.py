"""Floats that change from call to call: they stand in the record, not in the call that is known (SPEC S5, L13, L14)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mindtorch
from mindtorch.engine import passes
from mindtorch.engine.execute import values
from tests.caching import counts

LAZY = "remote_accelerator:0"
FLOATS = [
    0.5,
    0.25,
    1.0,
    -0.5,
    -1.0,
    1.5,
    99.5,
    -3.5,
    100.0,
    100.5,
    0.0,
    -0.0,
    1e-310,
    1e30,
    math.inf,
    -math.inf,
    math.nan,
]


def calls() -> int:
    return int(values.tape.interner.counts()[1])


def bits(t: Tensor) -> Any:
    t = t.detach().cpu()
    return t.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()]).tolist()


def test_S5_a_float_that_changes_makes_no_new_call() -> None:
    x = torch.linspace(-2, 2, 6)
    y = x.to(LAZY)
    mul = [lambda t, f: t * f, lambda t, f: t.mul(f), lambda t, f: torch.mul(t, f), lambda t, f: f * t]
    others = [
        lambda t, f: torch.add(t, t, alpha=f),
        lambda t, f: t.clone().addcdiv_(t, t * t + 1, value=-f),
        lambda t, f: torch.lerp(t, t * t, f),
        lambda t, f: torch.where(t > 0, t, f),
    ]
    for program in (*mul, *others):
        program(y, 0.5).cpu()
        before = calls()
        for k in range(1, 50):
            f = 0.5 + k / 100
            assert bits(program(y, f)) == bits(program(x, f))
        assert calls() == before


@pytest.mark.parametrize(("one", "other", "alike"), [
    (0.5, 0.25, True), (0.5, 1.0, True), (1.0, 1.0000001, False), (1.5, 100.0, True), (100.0, 100.5, False),
    (100.5, 101.0, False), (100.5, 100.5, True), (0.5, -0.5, False), (-0.5, -1.0, True), (-1.0, -1.5, False),
    (-1.5, -100.0, True), (-100.0, -100.5, False), (0.0, 0.5, False), (0.0, -0.0, False), (1e-300, 0.5, True),
    (math.nan, 0.5, False), (math.inf, 100.0, False),
])  # fmt: skip
def test_S5_floats_are_alike_by_sign_and_by_what_holds_them(one: float, other: float, alike: bool) -> None:
    x = torch.ones(3, device=LAZY)
    for program in (lambda f: x * f, lambda f: torch.add(x, x, alpha=f)):
        first, second = program(one), program(other)
        assert (first._handle.sig == second._handle.sig) is alike


@pytest.mark.parametrize(("one", "other", "alike"), [
    ((0.25, 0.5), (0.5, 0.75), True), ((0.25, 0.5), (0.5, 0.25), False), ((0.25, 0.5), (0.5, 0.5), False),
    ((0.5, 0.5), (0.75, 0.75), True), ((-0.5, 0.5), (-1.0, 1.0), True), ((0.5, 2.0), (0.5, 0.75), False),
])  # fmt: skip
def test_S5_floats_of_one_call_are_alike_by_which_is_greater(
    one: tuple[float, float], other: tuple[float, float], alike: bool
) -> None:
    x = torch.ones(3, device=LAZY)
    assert (x.clamp(*one)._handle.sig == x.clamp(*other)._handle.sig) is alike  # type: ignore[attr-defined]


@pytest.mark.parametrize("n", [254, 255, 256, 257])
def test_S5_so_many_floats_of_a_call_stand_beside_its_key(n: int) -> None:
    """Each goes with another tensor: how they compare does not matter. What comes after 255 is in the key."""
    many = [torch.ones(1, device=LAZY) for _ in range(n)]
    base = calls()
    for k in range(6):
        torch._foreach_mul_(many, [0.5 + (k + i) % 7 / 100 for i in range(n)])
    assert calls() - base <= (1 if n <= 255 else 7)
    before = calls()
    for first in (0.5, 0.75, 0.875):
        torch._foreach_mul_(many, [first] + [0.5] * (n - 1))
    assert calls() - before <= 1  # the first is beside, whatever their number
    before = calls()
    for last in (0.5625, 0.625, 0.6875):
        torch._foreach_mul_(many, [0.5] * (n - 1) + [last])
    assert calls() - before == (0 if n <= 255 else 3)
    assert len({round(t.item(), 9) for t in many}) > 1


def outcome(program: Callable[[Tensor, float], Tensor], t: Tensor, f: float) -> Any:
    try:
        return program(t, f)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_S5_whatever_the_float_the_bits_are_those_of_eager(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 1.5, -2.5, math.inf, math.nan], dtype=dtype)
    programs: list[Callable[[Tensor, float], Tensor]] = [
        lambda t, f: t * f, lambda t, f: t + f, lambda t, f: t.pow(f), lambda t, f: torch.clamp(t, max=f),
        lambda t, f: torch.nn.functional.leaky_relu(t, f), lambda t, f: t.clone().mul_(f), lambda t, f: t == f,
    ]  # fmt: skip
    y = x.to(LAZY)
    for program in programs:
        recorded = [outcome(program, y, f) for f in FLOATS]  # all of them wait
        for out, f in zip(recorded, FLOATS, strict=True):
            expected = outcome(program, x, f)
            if isinstance(expected, str):
                assert out == expected
            else:
                assert out.dtype == expected.dtype
                assert bits(out.double()) == bits(expected.double())


def test_S5_several_floats_of_one_call() -> None:
    x = torch.linspace(-2, 2, 9)
    y = x.to(LAZY)
    for low, high in ((0.2, 0.7), (0.7, 0.2), (-0.5, 0.5), (0.3, 0.3), (-1.5, 1.25), (0.0, 0.5), (-0.4, 1e9)):
        assert bits(torch.clamp(y, low, high)) == bits(torch.clamp(x, low, high))
        assert bits(torch.nan_to_num(y / 0, high, 3 * low, low)) == bits(torch.nan_to_num(x / 0, high, 3 * low, low))
    for n in (1, 3, 7, 300):
        many, plain = [y.clone() for _ in range(n)], [x.clone() for _ in range(n)]
        for step in (0.5, 0.75):
            scalars = [step + k / 1000 for k in range(n)]
            torch._foreach_mul_(many, scalars)
            torch._foreach_mul_(plain, scalars)
        assert [bits(t) for t in many] == [bits(t) for t in plain]


def test_L9_a_refusal_that_depends_on_the_float_comes_at_the_call() -> None:
    half = torch.zeros(3, dtype=torch.float16).to(LAZY)
    mask = torch.tensor([True, False, True]).to(LAZY)
    assert half.masked_fill(mask, -0.5).tolist() == [-0.5, 0, -0.5]
    with pytest.raises(RuntimeError, match="overflow"):
        half.masked_fill(mask, -1e9)
    x = torch.ones(3).to(LAZY)
    torch.nn.functional.celu(x, 0.5)
    with pytest.raises(RuntimeError, match=r"alpha|zero"):
        torch.nn.functional.celu(x, 0.0)


def test_L12_a_tensor_knows_the_floats_of_its_own_call() -> None:
    x = torch.ones(3).to(LAZY)
    made = [torch.add(x, x, alpha=f) for f in (0.25, 0.75, 3.0)]
    bounded = torch.clamp(x, min=0.25, max=0.75)
    named = made[1].detach()
    assert [t.kwargs for t in (made[0] + bounded).inputs] == [{"alpha": 0.25}, {"min": 0.25, "max": 0.75}]
    for _ in range(2):
        assert [t.kwargs for t in made] == [{"alpha": 0.25}, {"alpha": 0.75}, {"alpha": 3.0}]
        assert bounded.kwargs == {"min": 0.25, "max": 0.75} and named.kwargs == {"alpha": 0.75}
        mindtorch.flush("test")  # once more, when they have run


def test_L11_graphs_show_the_floats_of_each_call() -> None:
    x = torch.ones(3).to(LAZY)
    out = (x * 0.25 + 0.5) * 0.75
    nodes = mindtorch.ComputationGraph.from_tensors(out).nodes
    assert [n.args[1] for n in nodes if n.op == "aten::mul"] == [0.25, 0.75]
    assert [n.args[1] for n in nodes if n.op == "aten::add"] == [0.5]


def training(device: str, steps: int, foreach: bool) -> tuple[list[Tensor], list[int], list[int]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=foreach)
    x = torch.randn(4, 5).to(device)
    known, forms = [], []
    found = passes.optimizer_on(torch.device("cpu")).forms
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        mindtorch.flush("test")
        known.append(calls())
        forms.append(found.totals().get("counting", (0, 0))[0])
    return [p.detach().cpu() for p in model.parameters()], known, forms


class Counting(passes.Pass):
    """Changes one call to itself, so that segments of a known form are counted."""

    name = "counting"

    def run(self, graph: passes.SegmentGraph) -> None:
        call = next(c for c in graph.calls if c.op == "aten::mul_" and isinstance(c.args[1], passes.Number))
        graph.replace(call, call.function, call.args, call.kwargs)
        self.note(graph, call)


@pytest.mark.only_on("local", reason="forms are the executor's own")
@pytest.mark.parametrize("foreach", [False, True])
def test_L13_steps_of_adam_are_one_form(foreach: bool) -> None:
    """Its factors are others at each step."""
    before = passes.set_passes([Counting()] if not foreach else [])
    try:
        got, known, forms = training(LAZY, 12, foreach)
    finally:
        passes.set_passes(before)
    expected = training("cpu", 12, foreach)[0]
    assert [bits(t) for t in got] == [bits(t) for t in expected]
    assert known[-1] == known[3]  # no call that is new
    if not foreach:
        assert forms[-1] - forms[-5] == 4  # each step repeats the one before


@pytest.mark.only_on("local", reason="passes are the executor's own")
def test_L13_equal_floats_are_told_from_others() -> None:
    from tests.test_passes import CSE, changed

    assert changed(CSE, lambda x: x * 0.5 + x * 0.5) == 1
    assert changed(CSE, lambda x: x * 0.5 + x * 0.25) == 0
    assert changed(CSE, lambda x, f=[]: (f.append(0) or len(f)) and x * 0.5 + x * (0.5 if len(f) > 4 else 0.25)) == 0


@pytest.mark.only_on("local", reason="the cache is the local executor's")
def test_L14_values_are_named_by_their_floats() -> None:
    x = torch.linspace(-1, 1, 8)
    with mindtorch.cache():
        for f in (0.25, 0.75, 0.25, 0.75):
            y = x.to(LAZY)
            out = ((y * f).exp() + f).cpu()
            assert bits(out) == bits((x * f).exp() + f)
    assert counts()[0] >= 2
