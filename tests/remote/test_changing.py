"""R1: changing the executor: what goes along, what is refused, and one that wraps another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import mindtorch
from mindtorch.engine.remote.spread import SpreadExecutor
from mindtorch.engine.remote.worker import Worker

LAZY = "remote_accelerator:0"


@pytest.fixture(autouse=True)
def put_back(nothing_pending: None) -> Iterator[None]:
    before = mindtorch.get_executor()
    yield
    mindtorch.set_executor(before)


def test_R1_what_is_no_executor_changes_nothing() -> None:
    class Half(mindtorch.WrappingExecutor):
        def __init__(self) -> None:
            self.device = torch.device("cpu")

    x = torch.ones(2, device=LAZY) + 1
    assert x.tolist() == [2.0, 2.0]
    before = mindtorch.get_executor()
    with pytest.raises(mindtorch.UsageError, match="expected an Executor, got str"):
        mindtorch.set_executor("loopback")  # type: ignore[arg-type]
    with pytest.raises(mindtorch.UsageError, match=r"Half\.place to be a torch.device, got None"):
        mindtorch.set_executor(Half())
    with pytest.raises(mindtorch.UsageError, match=r"\[WrappingExecutor\] expected an Executor, got 'pipe'"):
        mindtorch.WrappingExecutor("pipe")  # type: ignore[arg-type]
    assert mindtorch.get_executor() is before and (x + 1).tolist() == [3.0, 3.0]


def test_R1_an_executor_that_cannot_take_values_over_is_not_the_one_in_use() -> None:
    class Full(mindtorch.LoopbackExecutor):
        def adopt(self, tensors: object) -> list[torch.Tensor]:
            raise MemoryError("full")

    x = torch.ones(2, device=LAZY) + 1
    assert x.tolist() == [2.0, 2.0]
    before = mindtorch.get_executor()
    with pytest.raises(MemoryError, match="full"):
        mindtorch.set_executor(Full())
    assert mindtorch.get_executor() is before and (x + 1).tolist() == [3.0, 3.0]


def test_R1_what_an_executor_does_not_run_is_the_next_ones() -> None:
    class Broken(mindtorch.LocalExecutor):
        def submit(self, segment: object) -> None:
            raise OSError("log disk full")

    mindtorch.set_executor(Broken())
    x = torch.ones(2, device=LAZY) + 1
    with pytest.raises(mindtorch.MaterializationError, match=r"aten::ones.*log disk full"):
        x.tolist()
    mindtorch.set_executor(mindtorch.LocalExecutor())
    assert x.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("name", ["LoopbackExecutor", "LocalExecutor"])
def test_R1_what_fails_as_the_executor_changes_fails_where_it_is_read(name: str) -> None:
    bad = torch.ones(10, device=LAZY).gather(0, torch.full((10,), 70, device=LAZY))
    good = torch.ones(2, device=LAZY) + 1
    mindtorch.set_executor(getattr(mindtorch, name)())
    assert good.tolist() == [2.0, 2.0]
    with pytest.raises(mindtorch.MaterializationError, match=r"aten::gather.*test_changing\.py:\d+"):
        bad.tolist()


@pytest.mark.parametrize("made", [
    mindtorch.LoopbackExecutor, mindtorch.LocalExecutor,
    lambda: SpreadExecutor([mindtorch.LoopbackExecutor() for _ in range(3)]),
])  # fmt: skip
def test_R1_generators_go_along(made: Callable[[], mindtorch.Executor]) -> None:
    def draws(change: bool) -> list[torch.Tensor]:
        torch.manual_seed(7)
        found = []
        for _ in range(2):
            found += [torch.rand(3, device=f"remote_accelerator:{i}") for i in (0, 2)]
            if change:
                mindtorch.set_executor(made())
        found.append(torch.rand(3, device="remote_accelerator:1"))
        return [t.cpu() for t in found]

    assert all(map(torch.equal, draws(True), draws(False)))
    assert torch.remote_accelerator.initial_seed() == 7


def test_R1_generators_of_a_lost_session_begin_again_from_the_seed() -> None:
    worker, gone = Worker(), False

    def send(message: bytearray) -> bytearray:
        if gone:
            raise ConnectionError("gone")
        return worker.handle(message)

    torch.manual_seed(5)
    expected = torch.rand(2, device=LAZY).tolist()
    mindtorch.set_executor(mindtorch.RemoteExecutor(send))
    torch.manual_seed(5)
    z = torch.ones(200, device=LAZY)
    assert z.sum().item() == 200
    gone = True
    with pytest.raises(mindtorch.MaterializationError, match="session lost: gone"):
        (z + 1).sum().item()
    mindtorch.set_executor(mindtorch.LocalExecutor())
    assert torch.rand(2, device=LAZY).tolist() == expected


def test_R1_a_worker_in_the_programs_own_process_leaves_its_settings_alone() -> None:
    """It is told what they are with the first message, and setting one asks for pending work to be run."""
    mindtorch.set_executor(mindtorch.RemoteExecutor(Worker().handle))
    x = torch.ones(3, device=LAZY, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0] * 3


@pytest.mark.parametrize("name", ["LocalExecutor", "LoopbackExecutor", "PipeExecutor"])
def test_R1_one_that_wraps_another_gives_what_that_gives(name: str, same_as_eager: Callable[..., None]) -> None:
    class Logged(mindtorch.WrappingExecutor):
        log: list[object]

        def submit(self, segment: object) -> None:
            self.log.append([name for name, *_ in segment.instructions()])  # type: ignore[attr-defined]
            super().submit(segment)

    logged = Logged(getattr(mindtorch, name)())
    logged.log = []
    mindtorch.set_executor(logged)

    def program(device: str) -> object:
        net = torch.nn.Linear(8, 2).to(device)
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(3):
            loss = net(torch.linspace(-1, 1, 16).view(2, 8).to(device)).square().sum()
            loss.backward()
            optimizer.step()
            assert loss.item() >= 0
        x = torch.arange(6.0).to(device)
        return list(net.parameters()), x[x > 2].unique(), x.view(2, 3).t().contiguous()

    same_as_eager(program)
    assert any("aten::addmm" in names for names in logged.log)
