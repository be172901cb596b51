"""C4: options of estimates together with several accelerators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mindtorch.cli.main import cli

PROGRAM = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(64, 8, bias=False)
        self.experts = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(8))

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            if rows.numel():
                out.index_add_(0, rows, expert(x[rows]) * weight[rows, place, None])
        return out

model = DistributedDataParallel(Experts().to(device), device_ids=[device.index], find_unused_parameters=True)
batch = 1 << 40
while True:
    try:
        x = torch.empty(batch, 64, device=device)
        break
    except torch.OutOfMemoryError:
        batch //= 2
print("batch", batch)
del x
model(torch.randn(512, 64, device=device)).sum().backward()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM)


def profile(*options: str) -> tuple[Any, dict[str, Any]]:
    arguments = ["profile", "--json", "out.json", *options, "program.py"]
    result = CliRunner().invoke(cli, arguments, prog_name="genie")
    return result, json.loads(Path("out.json").read_text()) if Path("out.json").exists() else {}


@pytest.mark.parametrize(("target", "batch"), [("8xh100", 1 << 28), ("2xt4", 1 << 25)])
def test_C4_batches_are_searched_and_tokens_routed_on_each_rank(target: str, batch: int) -> None:
    result, report = profile("--target", target, "--rank", "1", "--oom", "raise", "--routing", "balanced")
    assert result.exit_code == 0 and f"batch {batch}" in result.output, result.output
    gate, experts = 2 * 512 * 64 * 8, 2 * 2 * 512 * 64 * 64  # each token has two; backward: of the weights alone
    assert sum(row["flops"] for row in report["ops"] if row["name"] == "aten::mm") == 2 * gate + 2 * experts
    assert report["cluster"]["rank"] == 1


def test_C4_without_them_all_tokens_are_of_one_expert_and_too_much_is_told_of() -> None:
    Path("program.py").write_text(PROGRAM.replace("batch = 1 << 40", "batch = 1 << 30"))
    result, report = profile("--target", "8xh100")
    assert result.exit_code == 0 and "batch 1073741824" in result.output
    assert report["memory"]["fits"] is False
