"""R1, L9: what ran ahead on the worker leaves nothing behind, wherever the program goes on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.engine.remote.client import RemoteExecutor
from mindtorch.engine.remote.loopback import LoopbackExecutor
from mindtorch.engine.remote.worker import Worker

pytestmark = pytest.mark.usefixtures("slow")
LAZY = "remote_accelerator:0"
Same = Callable[..., None]


def worker_of(executor: LoopbackExecutor) -> Worker:
    return executor._send.__self__  # type: ignore[attr-defined, no-any-return]


def test_R1_all_generators_go_back_to_before_what_was_run_ahead(loopback: LoopbackExecutor) -> None:
    """Also where a step draws for one device, and then for another."""

    def program() -> list[list[float]]:
        devices = [LAZY, "remote_accelerator:1"]
        torch.manual_seed(3)
        found = [torch.zeros(4, device=device) for device in devices]
        for step in range(25 * 2):
            found[step % 2] = found[step % 2] * 0.5 + torch.rand(4, device=devices[step % 2])
            assert not found[step % 2].sum() > 100
        return [*(x.tolist() for x in found), *(torch.rand(3, device=device).tolist() for device in devices)]

    with torch.random.fork_rng():
        before = mindtorch.set_executor(None)
        expected = program()
        mindtorch.set_executor(before)
        assert program() == expected


@pytest.mark.parametrize("how", ["always", "error"])
def test_L9_what_runs_ahead_warns_of_nothing_that_the_program_does_not_do(
    how: Any, elsewhere: RemoteExecutor, same_as_eager: Same
) -> None:
    """Where the program does it after all, it is warned as in eager."""

    def program(device: str, last: int) -> object:
        x, seen = torch.arange(30.0).to(device), []
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always" if last < 2 else how)
            while x.shape[0] > last:
                x = x[1:] * 1.0
                spread = torch.std(x)
                seen.append(bool(x.shape[0] + spread.isnan() > 90))
        return x, seen, [str(each.message)[:30] for each in said]

    before = elsewhere.waits
    for last in (3, 4, 5, 6, 1):
        same_as_eager(lambda device, last=last: program(device, last))
    assert elsewhere.waits - before < 90  # of 131 steps


def test_R1_what_was_run_ahead_for_nothing_makes_room_before_the_program_goes_on(
    loopback: LoopbackExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    runs = Worker.run

    def run(self: Worker, *given: Any) -> Any:
        held.append(len(self._storages))
        return runs(self, *given)

    others = len(loopback._mirrors.alive)  # of tests before this one
    x = torch.ones(1000).to(LAZY)
    for _ in range(25):
        x = x * 0.9 + 0.5
        assert not x.sum() < 0
    assert len(worker_of(loopback)._storages) > others + 5
    monkeypatch.setattr(Worker, "run", run)
    assert (x + x.flip(0)).sum().item() > 0
    assert held[0] <= others + 4, held


def test_R1_on_a_gpu_what_kernels_look_at_is_not_run_ahead(
    loopback: LoopbackExecutor, monkeypatch: pytest.MonkeyPatch, sent: list[tuple]
) -> None:
    """An index out of range would end the process there. This worker takes its device for a GPU."""
    monkeypatch.setattr(worker_of(loopback), "_asserts", True)
    table, w = torch.arange(40.0).to(LAZY), torch.linspace(0, 1, 16).view(4, 4).to(LAZY)
    for indexed in (True, False):
        sent.clear()
        at, x = torch.zeros(1, dtype=torch.int64).to(LAZY), torch.ones(4).to(LAZY)
        for _ in range(30):
            at, x = at + 1, (x @ w).sigmoid() + (table[at] if indexed else 1)
            assert not x.sum() < 0
        plans = worker_of(loopback)._plans
        ahead = [(plans[given[0]].steps, answer) for name, given, answer in sent if name == "speculate"]
        looked = [answer for steps, answer in ahead if any("index" in step.definition.function for step in steps)]
        assert bool(looked) is indexed and not any(looked)
        assert any(answer is not None for _steps, answer in ahead)
