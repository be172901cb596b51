"""R5: how many bytes a worker may have where nobody says so: the free memory that it reports, and what it has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import mindtorch
from mindtorch.engine.execute.machine import Machine
from mindtorch.engine.remote import placing
from mindtorch.engine.remote.placing import PlacingExecutor

from ..executors import using

MACHINES = {
    "apart": ([("cpu", "a", 90), ("cpu", "b", 80)], [90, 80]),
    "on one machine": ([("cpu", "a", 90), ("cpu", "b", 80), ("cpu", "a", 91)], [45, 80, 45]),
    "GPUs of one machine": ([("cuda", "a", 90), ("cuda", "a", 80), ("cpu", "a", 70)], [90, 80, 70]),
}


def workers(*machines: tuple[str, str, int]) -> PlacingExecutor:
    found = [mindtorch.LoopbackExecutor() for _ in machines]
    for executor, (kind, node, free) in zip(found, machines, strict=True):
        executor.machine = lambda kind=kind, node=node, free=free: Machine("name", node, kind, free, 1000, 4)  # type: ignore[method-assign,misc]
    return PlacingExecutor(found)


@pytest.mark.usefixtures("nothing_pending")
@pytest.mark.parametrize("name", MACHINES)
def test_R5_workers_of_one_machine_share_its_memory(name: str) -> None:
    machines, limits = MACHINES[name]
    assert workers(*machines).limits() == limits
    with using(workers(*machines)) as executor:
        x = torch.ones(6, device="remote_accelerator:0")
        assert x.sum().item() == 6
        before = executor._held(executor.executors[0])
        assert before >= 24 and executor.limits() == [limits[0] + before, *limits[1:]]


@pytest.mark.parametrize("limit", [-1, True, 2.0])
def test_R5_a_limit_is_a_number_of_bytes(limit: object) -> None:
    with pytest.raises(mindtorch.UsageError, match="expected a limit of 0 bytes or more, or None, got"):
        PlacingExecutor([mindtorch.LoopbackExecutor()], limit)  # type: ignore[arg-type]
    assert PlacingExecutor([mindtorch.LoopbackExecutor()], 0).limits() == [0]


def test_R5_of_little_memory_nobody_asks_how_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = workers(("cpu", "a", 1 << 30))
    monkeypatch.setattr(placing, "_divided", SimpleNamespace(nbytes=lambda segment: segment))
    monkeypatch.setattr(placing, "_LITTLE", 28 * placing._GROWN)
    assert executor._fits(28) and executor._limits is None
    assert executor._fits(29) and executor._limits == [1 << 30]
