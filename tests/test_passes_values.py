"""Constants that are folded, copies and casts that are eliminated, and what is left alone (SPEC L13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mindtorch
from mindtorch.engine import passes
from mindtorch.engine.passes import Pass, SegmentGraph, Unproven, constant_folding

from .test_passes import CSE, IN_PLACE, LAZY, changed, same, using

pytestmark = pytest.mark.only_on("local", reason="passes that look at graphs are the executor's own")
FOLDING, COPIES = "constant folding", "copy elimination"


def ops_run(program: Callable[[], object]) -> int:
    before = mindtorch.stats()
    program()
    after = mindtorch.stats()
    return int(after["ops_executed"] - before["ops_executed"])


# ---- constants -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("program", "folded"),
    [
        pytest.param(lambda x: x + torch.full((4, 4), -1.5, device=x.device).triu(1)[:3], 3, id="a mask"),
        pytest.param(lambda x: x + torch.arange(4, device=x.device).view(1, -1) * 2, 3, id="positions"),
        pytest.param(lambda x: torch.ones_like(x) * 3 + x, 2, id="of an input's metadata"),
        pytest.param(lambda x: x.t() + torch.zeros_like(x.t()), 1, id="of a transposed input's metadata"),
        pytest.param(lambda x: x + torch.eye(4, device=x.device)[:3].cos(), 3, id="floats"),
        pytest.param(lambda x: torch.where(torch.ones(3, 4, device=x.device) > 0, x, -x), 2, id="a condition"),
    ],
)
def test_L13_values_made_of_constants_are_computed_once(program: Callable[[Tensor], Any], folded: int) -> None:
    assert changed(FOLDING, program, times=4) == folded


def test_L13_constants_that_only_constants_read_are_not_there() -> None:
    def program(x: Tensor) -> Tensor:
        return x + torch.arange(4, device=x.device).view(1, -1) * 2

    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    with using(FOLDING):
        ran = []
        for _ in range(4):
            there = x.to(LAZY)
            ran.append(ops_run(lambda there=there: same(program(there), program(x))))
    assert ran == [4, 2, 2, 2]  # arange, view, mul, add; then the product, which is there, and add


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x: (x + (y := torch.ones(4, device=x.device)), y), id="the program has it"),
        pytest.param(lambda x: (x + (y := torch.ones(4, device=x.device))[1], y[1:]), id="the program has a view"),
        pytest.param(lambda x: x + torch.ones(4, device=x.device).add_(1), id="it is written"),
        pytest.param(lambda x: (y := torch.ones(4, device=x.device), y[0].add_(1), x + y)[2], id="through a view"),
        pytest.param(lambda x: x + x.sum(0) * 2, id="of what the program gives"),
        pytest.param(lambda x: x * torch.empty(4, device=x.device).fill_(2), id="memory that is not filled yet"),
    ],
)
def test_L13_what_may_be_another_value_is_not_folded(program: Callable[[Tensor], Any]) -> None:
    assert changed(FOLDING, program) == 0


def test_L13_no_draw_is_folded() -> None:
    def program(device: str) -> Tensor:
        torch.manual_seed(3)
        return torch.rand(3, device=device) + torch.ones(3, device=device).bernoulli(0.5)

    with using(FOLDING):
        before = passes.counts()[0].get(FOLDING, 0)
        for _ in range(4):
            same(program(LAZY), program("cpu"))
        assert 0 < passes.counts()[0][FOLDING] - before < 4  # the ones


def test_L13_no_call_overwrites_a_folded_value() -> None:
    def program(x: Tensor) -> Tensor:
        return ((torch.arange(12.0, device=x.device) * 2).reshape(3, 4).mul(0.5) + 1) * x

    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    with using(IN_PLACE, FOLDING):
        for _ in range(5):
            same(program(x.to(LAZY)), program(x))
    assert passes.counts()[0][FOLDING] >= 4


def test_L13_folded_values_are_bounded_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor) -> Tensor:
        return x + torch.arange(12.0, device=x.device).reshape(3, 4).cos()

    monkeypatch.setattr(constant_folding, "MOST_BYTES", 47)
    assert changed(FOLDING, program) == 0
    monkeypatch.setattr(constant_folding, "MOST_BYTES", 48)
    assert changed(FOLDING, program) == 3
    kept = next(each for each in passes.known_passes() if each.name == FOLDING)
    monkeypatch.setattr(constant_folding, "MOST_BYTES_KEPT", kept.nbytes() + 48)  # type: ignore[attr-defined]
    assert changed(FOLDING, program) == 2  # the first value, and its view
    passes.optimizer_on(torch.device("cpu")).forms.forget()
    assert kept.nbytes() == 0  # type: ignore[attr-defined]


def test_L13_a_setting_that_changes_is_asked_for_anew() -> None:
    """Flushed denormals: they are what the setting at the time of the run makes of them."""

    def program(device: str) -> Tensor:
        return torch.full((4,), 2.0**-100, dtype=torch.float32, device=device).mul(2.0**-40).mul(2.0**40)

    def flushed(device: str) -> list[float]:
        return (program(device) + 0).tolist()

    with using(FOLDING):
        for flush in (False, True, False):
            if not torch.set_flush_denormal(flush):
                pytest.skip("this processor does not flush denormals")
            try:
                for _ in range(4):
                    assert flushed(LAZY) == flushed("cpu") == [0.0 if flush else 2.0**-100] * 4
            finally:
                torch.set_flush_denormal(False)


def test_L13_what_takes_a_failed_value_fails_whatever_is_folded_or_shared() -> None:
    def program(x: Tensor, index: Tensor) -> Tensor:
        picked = torch.index_select(x, 0, index)
        return picked.clone().double().float() + torch.ones_like(picked) * 2

    x = torch.ones(4)
    with using(FOLDING, COPIES):
        for index in ([1, 2], [1, 2], [1, 2], [1, 9], [1, 2], [1, 9]):
            got = program(x.to(LAZY), torch.tensor(index).to(LAZY))
            if 9 in index:
                with pytest.raises(IndexError):
                    got.cpu()
            else:
                same(got, program(x, torch.tensor(index)))


# ---- copies and casts ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("program", "gone"),
    [
        pytest.param(lambda x: x.clone() * 2, 1, id="a copy of what was there"),
        pytest.param(lambda x: (x + 1).clone() * 2, 1, id="of a result"),
        pytest.param(lambda x: x.t().clone() * 2, 1, id="of a view, in the same layout"),
        pytest.param(lambda x: (c := x.clone()) * 2 + c.sum(), 1, id="read twice"),
        pytest.param(lambda x: x.to(torch.float32, copy=True) * 2, 1, id="a cast to the same dtype"),
        pytest.param(lambda x: (x * 3).double().float() + 1, 2, id="a cast to a wider dtype and back"),
        pytest.param(lambda x: (w := (x * 3).double(), w.float() + w.sum())[1], 1, id="the wider one is read, too"),
        pytest.param(lambda x: x.int().long().int() + 1, 2, id="integers"),
        pytest.param(lambda x: x.int().double().int() + 1, 2, id="integers that a wider float holds"),
        pytest.param(lambda x: (x > 0).float().bool().logical_not(), 2, id="booleans"),
        pytest.param(lambda x: (x * 2).clone().double().float() + 1, 3, id="a cast of a copy"),
    ],
)
def test_L13_copies_that_nobody_can_tell_apart_are_not_made(program: Callable[[Tensor], Any], gone: int) -> None:
    assert changed(COPIES, program, times=4) == gone


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x: (c := x.clone(), x.add_(1), c * 2 + x)[2], id="the source is written before a read"),
        pytest.param(lambda x: (c := x.clone(), x[0].add_(1), c * 2 + x)[2], id="through a view"),
        pytest.param(lambda x: x.clone().add_(1) + x, id="the copy is written"),
        pytest.param(lambda x: x.clone()[0] * 2, id="a view of the copy"),
        pytest.param(lambda x: x.clone(), id="the program has it"),
        pytest.param(lambda x: x.t().contiguous() * 2, id="of another layout"),
        pytest.param(lambda x: x[1:].clone() * 2, id="of another offset"),
        pytest.param(lambda x: x.expand(2, 3, 4).clone() * 2, id="of an expanded one"),
        pytest.param(lambda x: (x * 3).half().float() + 1, id="through a narrower dtype"),
        pytest.param(lambda x: (x * 3).bfloat16().float().bfloat16() + 1, id="NaNs of bfloat16 are others afterwards"),
        pytest.param(lambda x: x.double().float() + 1, id="a signaling NaN may be among what is given"),
        pytest.param(lambda x: x.long().float().long() + 1, id="integers that a float does not hold"),
        pytest.param(lambda x: (w := (x * 3).double(), w.add_(1e-9), w.float() + 1)[2], id="the wider one is written"),
        pytest.param(lambda x: (w := (x * 3).double(), w[0].zero_(), w.float() + 1)[2], id="that, through a view"),
        pytest.param(lambda x: (x * 3).double().int() + 1, id="to a third dtype"),
    ],
)
def test_L13_copies_that_somebody_may_tell_apart_are_made(program: Callable[[Tensor], Any]) -> None:
    assert changed(COPIES, program) == 0


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FC00001, 0xFFC00001 - (1 << 32), 1])
def test_L13_casts_there_and_back_keep_the_bits_of_every_float(bits: int) -> None:
    x = torch.full((3,), bits, dtype=torch.int32).view(torch.float32)
    changed(COPIES, lambda x: x.double().float().view(torch.int32) + 0, x)
    changed(COPIES, lambda x: (x * 1).double().float().view(torch.int32) + 0, x)


def test_L13_a_lazy_conjugate_is_no_copy_of_what_it_conjugates() -> None:
    x = torch.complex(torch.linspace(-2, 2, 12), torch.linspace(1, 3, 12)).reshape(3, 4)

    def program(x: Tensor) -> Tensor:
        return torch.view_as_real(x.conj().clone().resolve_conj() * 2)

    changed(COPIES, program, x)
    changed(COPIES, lambda x: torch.view_as_real((x.conj() * 1j).clone() * 2), x)


def test_L13_what_is_skipped_runs_where_a_signal_handler_comes_in_between() -> None:
    class Interrupts(Pass):
        """Lets the last call raise what a signal handler would, once."""

        name = "interrupts"

        def __init__(self) -> None:
            self.wanted = True

        def run(self, graph: SegmentGraph) -> None:
            call = next(call for call in graph.calls if call.op == "aten::exp")

            def tried(x: Tensor) -> Tensor:
                if self.wanted:
                    self.wanted = False
                    raise MemoryError("once")  # nothing has happened: the call is pending again
                return torch.exp(x)

            graph.replace(call, tried, call.args, call.kwargs)

    def program(x: Tensor) -> Tensor:
        scale = torch.arange(4, device=x.device).view(1, -1) * 2  # the first two are skipped
        wide = (x * 3).double()  # this one, too, until it is cast back
        return x.exp() + wide.float() + scale

    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    interrupts, pending = Interrupts(), mindtorch.stats()["ops_pending"]
    with using(FOLDING, COPIES, interrupts):
        for _ in range(6):
            got = program(x.to(LAZY))
            try:
                same(got, program(x))
            except MemoryError:
                assert not interrupts.wanted
                same(got, program(x))  # from what went back on the tape
    assert not interrupts.wanted
    assert mindtorch.stats()["ops_pending"] == pending


def test_L13_a_graph_refuses_to_fold_and_skip_what_is_needed() -> None:
    refused: dict[str, set[str]] = {"fold": set(), "skip": set()}

    class Bold(Pass):
        name = "bold"

        def run(self, graph: SegmentGraph) -> None:
            for call in graph.calls:
                for what, change in (("fold", lambda call: graph.fold(call, torch.ones(4))), ("skip", graph.skip)):
                    before = dict(graph.steps)
                    try:
                        change(call)
                    except Unproven:
                        refused[what].add(call.op)
                    graph.steps = before

    x = torch.ones(4).to(LAZY)
    mindtorch.flush("test")
    with using(Bold(), after=1):
        y = x.exp()
        z = ((x.relu() * 2).add_(1), x.sin() + 1, torch.bernoulli(x * 0.5), *torch.var_mean(x.neg()))
        mindtorch.flush("test")
    del y, z
    fresh = {"aten::exp", "aten::mul", "aten::add_", "aten::add", "aten::bernoulli", "aten::var_mean"}
    assert refused["fold"] == fresh
    assert refused["skip"] == fresh | {"aten::relu", "aten::sin", "aten::neg"}


def test_L13_all_passes_at_once() -> None:
    def program(x: Tensor) -> Tensor:
        mask = torch.full((4, 4), -1.5, device=x.device).triu(1)[:3]
        y = (x.exp() + mask).clone() * (x.exp() + mask)
        return (y * 2).double().float() + torch.ones_like(y)

    names = [each.name for each in passes.known_passes()]
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    with using(*names):
        before = passes.counts()[0]
        for _ in range(5):
            same(program(x.to(LAZY)), program(x))
        after = passes.counts()[0]
    assert {name for name in (FOLDING, COPIES, CSE) if after[name] > before.get(name, 0)} == {FOLDING, COPIES, CSE}
