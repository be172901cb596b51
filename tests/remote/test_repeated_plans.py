"""R1, L13: what a worker runs of a plan that repeats: by the shortest way and in place, with the same bits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mindtorch
from mindtorch._ext.plan_steps import ReadyStep, ReadySteps
from mindtorch.engine import passes
from mindtorch.engine.remote.worker import Failed

from ..executors import using

LAZY = "remote_accelerator:0"
IN_PLACE, DIRECT = "in place", "direct calls"
pytestmark = pytest.mark.usefixtures("nothing_pending")


def changed(name: str, program: Callable[[Tensor], Tensor], x: Tensor | None = None, times: int = 4) -> int:
    """How many calls of its last run the pass had changed; results are compared with eager's."""
    x = torch.linspace(-2, 2, 12).reshape(3, 4) if x is None else x
    for k in range(times):
        before = passes.counts()[0].get(name, 0)
        with torch.no_grad():
            got, expected = program((x + k).to(LAZY)).cpu(), program(x + k)
        assert got.dtype is expected.dtype and got.stride() == expected.stride()
        assert torch.equal(got.view(torch.int32), expected.view(torch.int32))
    return passes.counts()[0].get(name, 0) - before


def training(device: str, steps: int = 6) -> list[list[float]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Dropout(0.25), torch.nn.Linear(8, 2))
    x = torch.randn(4, 8)
    model, x = model.to(device), x.to(device)
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters())
    read = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        read.append([loss.item()])
    return [*read, *(p.detach().flatten().tolist() for p in model.parameters())]


def test_L13_a_worker_overwrites_what_nobody_needs(loopback: None) -> None:
    assert changed(IN_PLACE, lambda x: ((x + 1) * 2).exp()) == 2
    assert changed(IN_PLACE, lambda x: torch.relu(torch.sub(x, x + 1, alpha=2))) == 1
    assert changed(IN_PLACE, lambda x: (x + 1) + x.sum(0)) == 1  # which is as large


def test_R1_the_work_for_a_long_segment_grows_with_its_length(loopback: None) -> None:
    """First runs send the plan, second ones make its calls ready: neither compares each call with all others."""

    def calls(n: int) -> list[int]:
        def program() -> Tensor:
            x = torch.ones(2, device=LAZY)
            for _ in range(n):
                x = x * 1.001
            return x.cpu()

        found: list[int] = []

        def count(_frame: Any, event: str, _what: Any) -> None:
            found[-1] += event == "call"

        for _ in range(3):
            found.append(0)
            sys.setprofile(count)
            try:
                program()
            finally:
                sys.setprofile(None)
        return found

    calls(10)  # what comes once per process
    short, long = calls(150), calls(600)
    assert all(few > 0 and many < 5 * few for few, many in zip(short, long, strict=True)), (short, long)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x: torch.stack([(y := x.exp()).neg(), y]), id="another call needs it"),
        pytest.param(lambda x: (y := x + 1) * y, id="the same call needs it twice"),
        pytest.param(lambda x: (v := (y := x + 1)[0], (y * 2)[1] + v)[1], id="a view of it is read later"),
        pytest.param(lambda x: (x + 1).t() * 2, id="it is a view"),
        pytest.param(lambda x: x.detach() * 2, id="it was there before"),
        pytest.param(lambda x: x.sum(0, keepdim=True) + x, id="the result is larger"),
    ],
)
def test_L13_a_worker_does_not_overwrite_what_may_still_be_read(
    program: Callable[[Tensor], Tensor], loopback: None
) -> None:
    assert changed(IN_PLACE, program) == 0


def test_L13_what_the_program_keeps_is_not_overwritten_by_a_worker(loopback: None) -> None:
    for k in range(4):
        x = torch.linspace(-2, 2, 6) + k
        y = x.to(LAZY) + 1
        z = y * 2
        mindtorch.flush("test")
        assert torch.equal(z.cpu(), (x + 1) * 2) and torch.equal(y.cpu(), x + 1)


@pytest.mark.parametrize("executor", [mindtorch.LoopbackExecutor, mindtorch.PipeExecutor])
def test_L13_training_through_messages_has_eagers_bits_and_says_what_passes_did(
    executor: type[mindtorch.Executor],
) -> None:
    expected = training("cpu")
    for chosen in (None, [], [DIRECT]):
        before = passes.set_passes(chosen)
        try:
            with using(executor("cpu")):
                start = passes.counts()
                assert training(LAZY) == expected
                calls, saved = passes.counts()
        finally:
            passes.set_passes(before)
        found = {name for name in (IN_PLACE, DIRECT) if calls.get(name, 0) > start[0].get(name, 0)}
        by_default = {each.name for each in passes.known_passes() if each.on} & {IN_PLACE, DIRECT}
        assert found == (by_default if chosen is None else set(chosen))
        assert (saved[IN_PLACE] > start[1][IN_PLACE]) == (IN_PLACE in found)


def test_R1_small_uploads_go_with_the_calls_that_read_them() -> None:
    weights = torch.ones(3, 2, requires_grad=True)
    with using(mindtorch.PipeExecutor("cpu")) as executor:
        w = weights.detach().to(LAZY).requires_grad_()
        for k in range(4):
            before = dict(executor.stats)
            x, y, scale = (t.to(LAZY) for t in (torch.ones(4, 3) * k, torch.zeros(4, 2), torch.tensor(2.0)))
            loss = ((x @ w - y).square().mean() * scale).item()
            assert loss == ((torch.ones(4, 3) * k @ weights).square().mean() * 2).item()
        assert executor.stats["messages"] - before["messages"] == executor.stats["waits"] - before["waits"] == 1


def fails_by_itself(runs: str) -> None:
    """A program runs with good ("g") and bad ("b") indices: a call that fails takes what depends on it along."""
    x = torch.linspace(0, 3, 4)

    def program(index: Tensor, device: str) -> tuple[Tensor, Tensor]:
        y = (x.to(device) + 1).exp()
        picked = torch.index_select(y * 2, 0, index.to(device))
        return (picked + 1).neg(), y.sum()

    good, bad = torch.tensor([1, 2]), torch.tensor([1, 9])
    for run in runs:
        mindtorch.flush("test")
        picked, total = program(bad if run == "b" else good, LAZY)
        if run == "b":
            with pytest.raises(IndexError):
                picked.cpu()
        else:
            assert torch.equal(picked.cpu(), program(good, "cpu")[0])
        assert torch.equal(total.cpu(), program(good, "cpu")[1])


def test_R1_a_repeated_call_that_fails_says_so_and_takes_with_it_what_depends_on_it(loopback: None) -> None:
    fails_by_itself("gggbgbg")


def test_R1_sizes_that_change_are_predicted_and_compared_anew(loopback: None) -> None:
    def program(x: Tensor) -> Tensor:
        return ((x + 1) * 2).sum(0).view(1, -1).exp()

    for n in (3, 3, 3, 5, 5, 5, 3, 5, 2, 2, 2, 2):
        x = torch.linspace(-1, 1, 4 * n).reshape(4, n)
        assert torch.equal(program(x.to(LAZY)).cpu(), program(x))


def test_R1_floats_that_change_are_those_of_the_run(loopback: None) -> None:
    for k in range(8):
        x, factor = torch.linspace(-1, 1, 6), 0.5 + k
        got = torch.add(x.to(LAZY) * factor, x.to(LAZY), alpha=factor + 1).clamp(min=-factor, max=factor)
        assert torch.equal(got.cpu(), torch.add(x * factor, x, alpha=factor + 1).clamp(min=-factor, max=factor))


def test_R1_a_ready_call_takes_values_at_positions_that_it_has() -> None:
    with pytest.raises(IndexError, match="expected a position below 2, got 2"):
        ReadyStep(torch.sub, (None, 1), {}, ((2, 0),), (0,), (), False, True)
    with pytest.raises(ValueError, match="at most 32 arguments, got 33"):
        ReadyStep(max, (0,) * 32, {"key": None}, (), (0,), (), False, True)
    steps = ReadySteps(3)
    steps.steps[0] = ReadyStep(torch.sub, (None, 1.0), {"alpha": 2}, ((0, 0),), (0,), (0,), True, True)
    steps.steps[1] = ReadyStep(torch.max, (None, 0), {}, ((0, 1),), (0, 1), (), False, False, direct=True)
    modes: list[bool] = []
    values = [torch.arange(3.0)]
    steps.run(values, 0, modes.append, Failed)
    assert (
        steps.at == 2 and steps.counted() == (1, 0, 0, 0) and steps.counted() == (0, 0, 0, 0) and modes == [True, False]
    )
    assert values[0] is None and values[1].tolist() == [-2, -1, 0] and [v.item() for v in values[2:]] == [0, 2]
    values = [Failed(3)]
    steps.run(values, 0, modes.append, Failed)
    assert steps.at == 0 and values == [Failed(3)]
    steps.steps[0].put(1, 2.0)
    values = [torch.arange(3.0)]
    steps.run(values, 0, modes.append, Failed)
    assert values[1].tolist() == [-4, -3, -2]
    values = [torch.arange(0.0)]
    with pytest.raises(IndexError):
        steps.run(values, 0, modes.append, Failed)
    assert steps.at == 1
