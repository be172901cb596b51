"""C4: gradients of tables that a program wants sparse have in an estimate the rows that are looked up."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from mindtorch.base.errors import UnsupportedOperationError
from mindtorch.cli.main import cli
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.profile.estimate.estimator import Estimator


def report(program: Callable[[], Any]) -> dict[str, Any]:
    with Estimator(target=targets.find("h100")) as estimator:
        program()
    return estimator.report()


@pytest.mark.parametrize("optimizer", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_C4_sparse_gradients_are_of_the_rows_that_are_looked_up(optimizer: type) -> None:
    """As a measured run has them; they were of all rows: 500 KiB here in place of 18, and dense steps."""

    def program(device: str) -> None:
        torch.manual_seed(0)
        table, bag = (
            nn.Embedding(1000, 64, sparse=True).to(device),
            nn.EmbeddingBag(1000, 64, sparse=True, mode="sum").to(device),
        )
        step = optimizer([*table.parameters(), *bag.parameters()], lr=0.1)
        for n in range(3):
            step.zero_grad()
            ids = torch.arange(n, n + 32).to(device)
            (table(ids).sum() + bag(ids, torch.arange(0, 32, 4).to(device)).sum()).backward()
            step.step()
        assert table.weight.grad is not None and table.weight.grad.is_sparse
        assert table.weight.grad.device.type == device and table.weight.grad._nnz() == 32

    with Profiler(whole=True) as measured:
        program("cpu")
    found = [measured.report(), report(lambda: program("cuda"))]
    of_gradients = [each["memory"]["categories"]["gradients"] for each in found]
    assert of_gradients[0] == 2 * (32 * 64 * 4 + 32 * 8) and of_gradients[0] <= of_gradients[1] <= 2 * of_gradients[0]
    assert not any("sparse gradients" in words for words in found[1]["warnings"])
    calls = [{row["name"]: (row["calls"], row["flops"]) for row in each["ops"]} for each in found]
    for name in ("add_", "sub", "sub_", "pow", "sparse_mask", "_coalesce", "clone", "mul", "sqrt_"):
        assert calls[0].get(f"aten::{name}") == calls[1].get(f"aten::{name}"), name


def test_C4_sparse_adam_takes_the_rows_that_were_looked_up() -> None:
    """Its step was dense Adam's, of all rows: in an estimate of a large table, most of the time."""

    def program() -> None:
        table = nn.Embedding(1000, 64, sparse=True).cuda()
        step = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        for ids in (torch.arange(8).repeat(4), torch.arange(5), torch.rand(7).mul(9).long()):  # the last are unknown
            step.zero_grad()
            (table(ids.cuda()).sum() + table(ids.cuda()).sum()).backward()
            step.step()

    found = report(program)
    (phase,) = (row for row in found["phases"] if row["name"] == "optimizer")
    rows = 8 + 5 + 2 * 7  # of those that nobody knows, none is another
    calls = {row["name"]: row for row in found["ops"]}
    assert calls["aten::pow"]["flops"] == rows * 64 and calls["aten::sparse_mask"]["calls"] == 2 * 3
    assert phase["flops"] < 20 * rows * 64 and "optimizer update" not in {row["name"] for row in found["patterns"]}
    assert found["memory"]["categories"]["optimizer state"] == 2 * 1000 * 64 * 4


def test_C4_what_takes_no_sparse_gradient_refuses_it_in_an_estimate_too() -> None:
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        table = nn.Embedding(1000, 64, sparse=True).cuda()
        table(torch.arange(9).cuda()).sum().backward()
        gradient = table.weight.grad
        assert gradient is not None
        with pytest.raises(RuntimeError, match="Adam does not support sparse gradients"):
            torch.optim.Adam(table.parameters()).step()
        with pytest.raises(RuntimeError, match="uncoalesced"):
            gradient.values()
        with pytest.raises(RuntimeError, match="same device"):
            torch.zeros(1000, 64).add_(gradient)
        with pytest.raises(UnsupportedOperationError, match="does not know the result for a sparse gradient"):
            gradient.sort()
        copy = deepcopy(gradient).coalesce() * 2
        assert copy.is_sparse and copy.values().shape == (9, 64) and copy.indices().tolist() == [list(range(9))]
        assert copy.to_dense().is_cuda and copy.to_dense().shape == (1000, 64)
        (other,) = torch.autograd.grad(table(torch.arange(5).cuda()).sum(), [table.weight])
        assert other.is_sparse and other._nnz() == 5 and str(other.device) == "cuda:0"


RANKS = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
model = nn.Sequential(nn.Embedding(100, 8, sparse=True), nn.Linear(8, 2)).cuda()
model = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.arange(5).cuda()).sum().backward()
    optimizer.step()
print(model.module[0].weight.grad.is_sparse)
"""


def test_C4_ranks_train_with_sparse_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ranks.py").write_text(RANKS)
    result = CliRunner().invoke(cli, ["check", "--target", "2xh100", "ranks.py"], prog_name="genie")
    assert result.exit_code == 0 and result.output.startswith("True\n"), result.output
