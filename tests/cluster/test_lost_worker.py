"""R4: a worker on a cluster that is gone: one error that says so, at once, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import mindtorch
from mindtorch.cluster import ray_errors
from mindtorch.cluster.actor import PART
from mindtorch.cluster.broker_client import Link
from mindtorch.cluster.ray_executor import RayExecutor
from mindtorch.engine.execute import values

from ..executors import using
from ..remote.test_pipe import gone

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'mindtorch-genie[ray]'")
LAZY = "remote_accelerator:0"
InPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def process(own_actor: RayExecutor) -> Iterator[int]:
    yield own_actor.stats["process"]


def lost(process: int, why: str) -> object:
    return pytest.raises(
        mindtorch.MaterializationError,
        match=rf"^session lost: the worker \(process {process} on node [0-9a-f]{{8}}\) {why}$",
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda s: s.name)
def test_R4_a_worker_that_was_ended_while_idle(
    number: int, process: int, shared_actor: RayExecutor, capfd: pytest.CaptureFixture[str]
) -> None:
    held = torch.ones(100, device=LAZY) * 2
    assert held.sum().item() == 200.0
    os.kill(process, number)
    pending = held + 1
    for _ in range(2):
        with lost(process, r"has ended: it was killed \(SIGKILL, SIGTERM\), or crashed"):
            pending.tolist()
        with lost(process, ".*"):
            torch.ones(3).to(LAZY).tolist()
    assert "".join(capfd.readouterr()) == ""
    assert gone(process)
    mindtorch.set_executor(shared_actor)  # what has nothing to do with the other one goes on
    with lost(process, ".*"):
        held.tolist()
    assert (torch.ones(2, device=LAZY) + 1).tolist() == [2.0, 2.0]


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda s: s.name)
def test_R4_a_worker_that_goes_while_it_computes(number: int, process: int) -> None:
    a = torch.rand(1500, 1500, device=LAZY)
    assert a.sum().item() > 0
    for _ in range(3000):
        a = torch.tanh(a @ a)
    timer = threading.Timer(0.5, os.kill, (process, number))
    timer.start()
    with lost(
        process,
        r"has ended: it was killed \(SIGKILL, SIGTERM\), or crashed"
        if number == signal.SIGKILL
        else "is not running: it was stopped",
    ):
        a.sum().item()
    timer.join()
    assert gone(process)


def test_R4_a_worker_that_is_let_go_while_it_computes(
    process: int, own_actor: RayExecutor, shared_actor: RayExecutor
) -> None:
    a = torch.rand(1500, 1500, device=LAZY)
    assert a.sum().item() > 0
    for _ in range(3000):
        a = torch.tanh(a @ a)
    values.go_on()  # and does not wait
    own_actor.close()
    assert gone(process)
    with lost(process, "was released"):
        a.sum().item()
    mindtorch.set_executor(shared_actor)  # nobody else's business
    assert (torch.ones(2, device=LAZY) + 1).tolist() == [2.0, 2.0]


def test_R4_a_worker_that_goes_while_it_sends(process: int) -> None:
    """In between the parts of a long reply."""
    x = torch.zeros(40 << 20, dtype=torch.uint8).to(LAZY)
    assert x[3].item() == 0
    y = x + 1
    timer = threading.Timer(0.15, os.kill, (process, signal.SIGKILL))
    timer.start()
    with lost(process, r"has ended: it was killed \(SIGKILL, SIGTERM\), or crashed"):
        for _ in range(200):
            y = y + 1
            assert len(y.cpu()) > PART
    timer.join()


def test_R4_no_memory_for_a_value_is_not_the_end(ray_executor: RayExecutor) -> None:
    x = torch.ones(3, device=LAZY)
    with pytest.raises(RuntimeError, match="memory"):
        x.expand(1 << 40, 3).contiguous().sum().item()
    assert x.tolist() == [1.0] * 3


def test_R4_a_worker_that_takes_too_much_memory_is_ended_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Ray's memory monitor, whose limit is a little above what is used now."""
    known = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in Path("/proc/meminfo").read_text().splitlines()}
    total, free = known["MemTotal"], known["MemAvailable"]
    if free < 4 << 30:
        pytest.skip("less than 4 GiB of memory are free")
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{1 - (free - (1200 << 20)) / total:.4f}")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "50")
    cluster = Link(None, cpus=1, gpus=0)
    executor = RayExecutor(cluster)
    try:
        with (
            using(executor),
            pytest.raises(mindtorch.MaterializationError, match=r"lost: .* low on memory"),
        ):
            held = [torch.ones(3, device=LAZY)]
            for _ in range(16):
                held.append(torch.ones(50_000_000, device=LAZY))
                assert held[-1][7].item() == 1
            time.sleep(2)
            held[0].sum().item()
    finally:
        executor.close()
        cluster.close()


def test_R4_what_ray_says_of_an_end_becomes_one_sentence() -> None:
    """The texts are Ray 2.60's, of a worker that its memory monitor ended and of a node that was lost."""
    short = (
        "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 127.0.0.1) was "
        "4.64GB used / 23.54GB limit (0.197067)\nOOM kill reason: Memory usage 4946853888B exceeded threshold of "
        "4903641600B\nRay killed 1 worker(s) based on the killing policy\nConsidered workers: [..."
    )

    def died(text: str) -> Exception:
        error = ray.exceptions.ActorDiedError()
        error.error_msg = text
        return error

    who = "the worker (process 7 on node 4d0d7376)"
    told = f"{who} was killed because its node was low on memory (4.64GB of 23.54GB used)"
    for error in (ray.exceptions.OutOfMemoryError(short), died(short)):
        assert ray_errors.ended(error, 7, "4d0d737680") == told
    lost = died("The actor died because its node has died. Node Id: 4d0d7376")
    assert ray_errors.ended(lost, 7, "4d0d737680") == f"{who} ended because its node died"
    other = died("Worker exit type: INTENDED_USER_EXIT Worker exit detail: Exit code: 3.")
    assert ray_errors.ended(other, 7, "4d0d737680") == f"{who} ended with exit code 3"
    text = "The actor is temporarily unavailable: RpcError: RPC error: recvmsg:Connection timed out rpc_code: 14"
    cut = ray.exceptions.ActorUnavailableError(text, None)
    reached = "cannot be reached: the network to its node was cut, or the node has ended"
    assert ray_errors.ended(cut, 7, "4d0d737680") == f"{who} {reached}"
    raised = ValueError("first\nlast")
    unknown = "failed for a reason that mindtorch does not recognize: ValueError: last"
    assert ray_errors.ended(raised, 7, "4d0d737680") == f"{who} {unknown}"
