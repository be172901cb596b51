"""L13: a worker makes calls of plans that repeat without Python: with the same bits, and within the same rules."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mindtorch
from mindtorch._ext import replay
from mindtorch.base import torch_facts
from mindtorch.engine import passes
from mindtorch.engine.remote import speculation
from mindtorch.engine.remote.worker import Worker

from ..executors import using
from .test_repeated_plans import LAZY, changed, fails_by_itself, training

NATIVE, DIRECT, IN_PLACE = "native calls", "direct calls", "in place"
pytestmark = [
    pytest.mark.usefixtures("nothing_pending"),
    pytest.mark.skipif(not torch_facts.native_calls_made(), reason="no native calls with this build of torch"),
]


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """Workers of this process make calls without Python that have run once as ready ones."""
    before = replay.native_after(1)
    yield
    replay.native_after(before)


@pytest.mark.parametrize(
    ("program", "native"),
    [
        pytest.param(lambda x: ((x + 1) * 2).exp(), 3, id="element by element, in place"),
        pytest.param(lambda x: torch.add(x.t(), x.t(), alpha=0.5).contiguous(), 4, id="views"),
        pytest.param(lambda x: x.max(1)[0] + x.max(1)[1], 3, id="one of several results"),
        pytest.param(lambda x: torch.cat([part * 2 for part in x.unbind(0)]), 1 + 3, id="not those of lists"),
        pytest.param(lambda x: F.layer_norm(F.linear(x, x.t() @ x), [4]).softmax(-1), None, id="layers"),
        pytest.param(lambda x: (y := x + 1, y.mul_(3), y[0].fill_(7), y.sum())[0], None, id="writes"),
        pytest.param(lambda x: x.clamp(-0.5, 0.75).lerp(x, 0.3), 2, id="floats"),
        pytest.param(lambda x: (x.double() @ x.double().t()).float(), None, id="casts and products"),
    ],
)
def test_L13_a_worker_makes_calls_without_python_with_eager_s_bits(
    program: Callable[[Tensor], Tensor], native: int | None, loopback: None
) -> None:
    found = changed(NATIVE, program, times=6)
    assert found == native if native is not None else found > 1


def test_L13_floats_that_change_are_those_of_the_run_without_python(loopback: None) -> None:
    before = passes.counts()[0][NATIVE]
    for k in range(10):
        x, factor = torch.linspace(-1, 1, 6), 0.5 + k
        got = torch.add(x.to(LAZY) * factor, x.to(LAZY), alpha=factor + 1).clamp(min=-factor, max=factor)
        assert torch.equal(got.cpu(), torch.add(x * factor, x, alpha=factor + 1).clamp(min=-factor, max=factor))
    assert passes.counts()[0][NATIVE] - before >= 3 * 5


@pytest.mark.parametrize("executor", [mindtorch.LoopbackExecutor, mindtorch.PipeExecutor])
def test_L13_training_without_python_has_eager_s_bits_and_is_counted(executor: type[mindtorch.Executor]) -> None:
    """The process of the pipe makes them after 200 times."""
    steps = 10 if executor is mindtorch.LoopbackExecutor else 215
    expected = training("cpu", steps)
    for chosen in (None, [NATIVE], [DIRECT, IN_PLACE]):
        before = passes.set_passes(chosen)
        try:
            with using(executor("cpu")):
                start = passes.counts()[0][NATIVE]
                assert training(LAZY, steps) == expected
                found = passes.counts()[0][NATIVE] - start
        finally:
            passes.set_passes(before)
        by_default = any(each.name == NATIVE and each.on for each in passes.known_passes())
        assert found > 10 * 3 if chosen == [NATIVE] or (chosen is None and by_default) else found == 0


def test_L13_a_change_of_passes_ends_calls_without_python(loopback: None) -> None:
    def program(x: Tensor) -> Tensor:
        return (x + 1).sin().mean(0)

    for chosen, native in ((None, True), ([DIRECT], False), ([NATIVE], True), ([], False)):
        before = passes.set_passes(chosen)
        try:
            assert (changed(NATIVE, program, times=6) > 0) == native
        finally:
            passes.set_passes(before)


def test_L13_what_is_drawn_or_called_on_lists_in_between_sees_values_made_without_python(loopback: None) -> None:
    def program(device: str) -> list[list[float]]:
        torch.manual_seed(2)
        found = []
        for k in range(7):
            x = torch.linspace(0, 1, 8).to(device)
            y = (x * (k + 0.5) + 1).sqrt()
            z = F.dropout(y * 2, 0.5) + y
            several = torch._foreach_mul([y, z], 0.5 + k)
            found.append((several[0].sum() - several[1].exp() + z).tolist())
        return found

    before = passes.counts()[0][NATIVE]
    assert program(LAZY) == program("cpu") and passes.counts()[0][NATIVE] - before > 10


def test_L13_a_call_that_fails_without_python_says_so_and_takes_with_it_what_depends_on_it(loopback: None) -> None:
    fails_by_itself("gggggbgbgg")


def test_L13_values_made_without_python_are_freed_with_the_run(loopback: None, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    run = Worker.run

    def counted(self: Worker, *given: object) -> tuple:
        found = run(self, *given)  # type: ignore[arg-type]
        held.append(len(self._storages))
        return found

    monkeypatch.setattr(Worker, "run", counted)
    monkeypatch.setattr(speculation, "_ROOM", 0)  # for results of steps that run ahead
    x = torch.ones(100).to(LAZY)
    for _ in range(50):
        ((x + 1) * 2).exp().sum().item()
    gc.collect()
    assert (
        max(held[-10:]) <= max(held[:10])
        and sum(isinstance(o, Tensor) and o.shape == (100,) for o in gc.get_objects()) < 10
    )


def test_L13_sizes_that_change_end_calls_without_python_until_they_have_been_compared(loopback: None) -> None:
    def program(x: Tensor) -> Tensor:
        return ((x + 1) * 2).sum(0).view(1, -1).exp()

    for n in (3,) * 6 + (5,) * 6 + (3, 5, 2, 2, 2, 2, 2):
        x = torch.linspace(-1, 1, 4 * n).reshape(4, n)
        assert torch.equal(program(x.to(LAZY)).cpu(), program(x))
