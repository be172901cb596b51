"""What NCCL holds of a card beside torch (SPEC C4): by the groups and peers of a rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mindtorch.base.clusters import Cluster
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

MIB = 1 << 20


def memory(run: Callable[[Any], None], target: str = "h100", size: int = 8, **more: Any) -> dict[str, Any]:
    with Estimator(target=targets.find(target), devices=min(size, 8), cluster=Cluster(size, **more)) as estimator:
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank() % 8)
        run(torch.ones(1 << 20, device="cuda"))
    found: dict[str, Any] = estimator.report()["memory"]
    return found


def test_C4_each_group_has_buffers_from_its_first_collective_on() -> None:
    def nothing(t: torch.Tensor) -> None:
        dist.new_group([0, 1])

    def once(t: torch.Tensor) -> None:
        dist.all_reduce(t)

    def in_groups(t: torch.Tensor) -> None:
        for _ in range(3):
            dist.all_reduce(t)
        dist.all_reduce(t, group=dist.new_group([0, 1]))
        dist.all_reduce(t, group=dist.new_group([0, 2, 4, 6]))

    assert memory(nothing)["beside"] == {}
    assert memory(once)["beside"] == {"NCCL": 688 * MIB}
    found = memory(in_groups)
    assert found["beside"] == {"NCCL": (544 + 2 * 688) * MIB}
    assert found["peak_device_bytes"] == found["peak_reserved_bytes"] + found["context_bytes"] + (544 + 2 * 688) * MIB


def test_C4_messages_have_buffers_for_each_peer_of_the_machine() -> None:
    def to_each(t: torch.Tensor) -> None:
        dist.all_to_all_single(torch.empty_like(t), t)

    def to_two(t: torch.Tensor) -> None:
        dist.send(t, 1)
        dist.recv(t, 9)

    assert memory(to_each)["beside"] == {"NCCL": (688 + 7 * 32 * 14) * MIB}
    assert memory(to_two, size=16)["beside"] == {"NCCL": 32 * 14 * MIB}


@pytest.mark.parametrize(("target", "held"), [("l40s", 688 * MIB * 2 // 24), ("a100", 688 * MIB), ("mi300x", 0)])
def test_C4_cards_without_nvlink_have_fewer_channels(target: str, held: int) -> None:
    assert memory(lambda t: dist.all_reduce(t), target)["beside"].get("NCCL", 0) == held


def test_C4_what_nccl_holds_is_not_torchs() -> None:
    """The allocator has less room, and an estimate that follows knows nothing of it."""

    def fill(t: torch.Tensor) -> None:
        before = torch.cuda.mem_get_info()[0]
        dist.all_reduce(t)
        assert before - torch.cuda.mem_get_info()[0] == 688 * MIB

    assert memory(fill)["fits"]
    with Estimator(target=targets.find("h100")) as estimator:
        torch.ones(4, device="cuda")
    assert estimator.report()["memory"]["beside"] == {}
