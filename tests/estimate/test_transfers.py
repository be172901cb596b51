"""C4: copies between host and device are told with their bytes and what they take at least."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

L4 = targets.find("l4")
NUMBER = 1 << 20  # of float32: 4 MiB


def report(program: Callable[[], Any], target: targets.Target = L4) -> dict[str, Any]:
    with Estimator(target=target) as estimator:
        torch.ones(1, device="cuda").add_(1)  # what comes before the first operation is set-up
        kept = program()
    del kept
    return estimator.report()


def said(found: dict[str, Any]) -> list[str]:
    return [note for note in found["warnings"] if "between host and device" in note]


def buffer(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(NUMBER, dtype=dtype, device="cuda")


def test_C4_what_is_saved_is_copied_to_the_host_each_storage_once(tmp_path: Path) -> None:
    """Checkpoints of training loops were in no transfer."""
    t = {"host": torch.empty(NUMBER)}

    def program() -> None:
        weight = buffer()
        for _ in range(2):
            state = {"weight": weight, "tied": [weight.detach(), weight.view(2, -1)], "other": buffer(), **t}
            torch.save(state, tmp_path / "x.pt")

    [note] = said(report(program))
    assert note.startswith("no time in this report includes 4 transfers between host and device (16.00 MiB)")


@pytest.mark.parametrize(
    ("program", "number", "mebibytes", "us"),
    [
        (lambda: torch.empty(NUMBER).cuda(), 1, "4.00", 133),
        (lambda: torch.empty(NUMBER).to("cuda", torch.float64), 1, "8.00", 266),  # converted before it is sent
        (lambda: buffer().cpu(), 1, "4.00", 133),
        (lambda: [buffer().cpu(), torch.empty(NUMBER).cuda()], 2, "8.00", 133),  # both ways at once
        (lambda: [torch.empty(NUMBER // 4).to("cuda") for _ in range(4)], 4, "4.00", 133),
        (lambda: torch.empty(NUMBER).pin_memory().to("cuda", non_blocking=True), 1, "4.00", 133),
        (lambda: buffer().copy_(torch.empty(NUMBER)), 1, "4.00", 133),
        (lambda: torch.empty(NUMBER).copy_(buffer()), 1, "4.00", 133),
        (lambda: torch.nn.Linear(1024, 1024, bias=False).cuda(), 1, "4.00", 133),
        (lambda: torch.arange(NUMBER, dtype=torch.int32).cuda(), 1, "4.00", 133),
        (lambda: torch.empty(NUMBER).cuda() * torch.tensor(2.0), 1, "4.00", 133),  # a number is a kernel's argument
        (lambda: torch.empty(NUMBER).cuda()[torch.tensor([1, 2])], 2, "4.00", 133),  # an index is moved
    ],
)
def test_C4_transfers_are_told_with_their_bytes(
    program: Callable[[], Any], number: int, mebibytes: str, us: int
) -> None:
    [note] = said(report(program))
    take = "they take" if number > 1 else "it takes"
    transfers = f"{number} transfer{'s' * (number > 1)}"
    begins = f"no time in this report includes {transfers} between host and device ({mebibytes} MiB)"
    assert note.startswith(begins)
    assert f"{take} at least {us} µs (31.5 GB/s each way)" in note


@pytest.mark.parametrize(
    "program",
    [
        lambda: torch.empty(NUMBER // 4 - 1).cuda(),  # a byte's worth less than a mebibyte
        lambda: buffer().to("cuda:0"),
        lambda: buffer().copy_(buffer()),
        lambda: buffer().to(torch.float64),
        lambda: torch.empty(NUMBER).to("cpu"),
        lambda: torch.empty(NUMBER, device="cuda").fill_(3.0),
    ],
)
def test_C4_what_stays_where_it_is_and_what_is_little_is_not_told(program: Callable[[], Any]) -> None:
    assert said(report(program)) == []


def test_C4_where_the_bus_is_not_known_no_time_is_told() -> None:
    [note] = said(report(lambda: torch.empty(NUMBER).cuda(), dataclasses.replace(L4, host_bandwidth=0.0)))
    assert note == "no time in this report includes 1 transfer between host and device (4.00 MiB)"
    assert targets.find("910b").host_bandwidth == 0.0 < targets.find("t4").host_bandwidth < L4.host_bandwidth


def test_C4_the_first_batch_is_moved_to_the_device_as_the_others_are() -> None:
    """Its transfers come before the model's first call, at a line that does nothing else."""
    with Estimator(target=L4) as estimator:
        model = torch.nn.Linear(NUMBER // 4, 1).cuda()
        for batch in [torch.ones(1, NUMBER // 4) for _ in range(3)]:
            moved = batch.cuda()
            model(moved).sum().backward()
    [note] = said(estimator.report())
    assert note.startswith("no time in this report includes 3 transfers between host and device (3.00 MiB)")


def test_C4_products_with_sparse_matrices_transfer_nothing() -> None:
    """Nor do their gradients: LightGCN's report told of ten times the bytes that it moves."""

    def program() -> Any:
        at = torch.tensor([range(1024), range(1024)])
        graph = torch.sparse_coo_tensor(at, torch.ones(1024), (1024, 1024)).coalesce().to("cuda")
        table = torch.nn.Parameter(torch.randn(1024, 1024, device="cuda"))
        for product in (torch.sparse.mm, torch.mm, lambda a, b: a @ b):
            product(graph, table).sum().backward()
        return graph, table

    assert said(report(program)) == []
