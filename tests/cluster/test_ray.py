"""R2: recordings run by an actor of a Ray cluster, as they would here."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest
import torch

import mindtorch
from mindtorch.cluster import actor as actors
from mindtorch.cluster.broker_client import Link
from mindtorch.cluster.ray_executor import RayExecutor

from ..remote.test_pipe import gone, is_there

pytest.importorskip("ray", reason="Ray is not installed: pip install 'mindtorch-genie[ray]'")
LAZY = "remote_accelerator:0"


def test_R2_values_are_in_the_actor_and_come_when_asked_for(ray_executor: RayExecutor) -> None:
    x = torch.arange(1000.0, device=LAZY)
    before = ray_executor.stats["messages"]
    y = (x * 2 + 1).sum()
    assert ray_executor.stats["messages"] == before
    assert y.item() == 1_000_000.0
    assert ray_executor.process == ray_executor.stats["process"]
    assert is_there(ray_executor.stats["process"])


def test_R2_training_gives_the_bits_of_eager(ray_executor: RayExecutor, same_as_eager: Callable[..., None]) -> None:
    def training(device: str) -> list[torch.Tensor]:
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.Linear(16, 4)).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        x = torch.randn(6, 8).to(device)
        torch.manual_seed(1)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return [torch.tensor(losses), *(p.detach() for p in net.parameters())]

    same_as_eager(training)


@pytest.mark.parametrize("threads", [1, 2])
def test_R2_the_actor_splits_work_as_the_program_does(ray_executor: RayExecutor, threads: int) -> None:
    """Ray starts its processes with one thread, and sums depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.rand(1_000_003)
        assert x.to(LAZY).sum().item() == x.sum().item()
        assert dict(ray_executor._ambient)["set_num_threads"] == threads
    finally:
        torch.set_num_threads(before)


def test_R2_messages_longer_than_a_call_takes(ray_executor: RayExecutor) -> None:
    x = torch.arange(3 * actors.PART // 8 + 5)
    assert torch.equal((x.to(LAZY) + 1).cpu(), x + 1)
    y = x[: actors.PART // 8]
    assert torch.equal(y.to(LAZY).cpu(), y)


def test_R2_what_fails_there_fails_here_and_the_session_goes_on(ray_executor: RayExecutor) -> None:
    x = torch.arange(4, device=LAZY)
    with pytest.raises(mindtorch.MaterializationError, match="index 9 is out of bounds"):
        x[torch.tensor([9], device=LAZY)].tolist()
    assert x.tolist() == [0, 1, 2, 3]


def test_R2_the_actor_ends_with_its_executor(link: Link) -> None:
    executor = RayExecutor(link)
    previous = mindtorch.set_executor(executor)
    x = torch.ones(3, device=LAZY) + 1
    assert x.tolist() == [2.0] * 3
    mindtorch.set_executor(previous)
    process = executor.stats["process"]
    del executor, previous
    gc.collect()
    assert gone(process)
    assert x.tolist() == [2.0] * 3


def test_R2_a_signal_handler_may_raise_while_a_reply_is_waited_for(ray_executor: RayExecutor) -> None:
    import signal

    class Mine(Exception):
        pass

    def raises(*_given: object) -> None:
        raise Mine

    before = signal.signal(signal.SIGALRM, raises)
    try:
        a = torch.rand(700, 700, device=LAZY)
        b = a.clone()
        for _ in range(60):
            b = torch.tanh(b @ a)
        total = b.sum()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        began = time.monotonic()
        with pytest.raises(Mine):
            total.item()
        assert time.monotonic() - began < 20
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert torch.equal(total.cpu(), b.cpu().sum())
