"""C5: one per cent more of anything is found, and put on its module and line; counts are the same on every machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindtorch.profile.report.conditions import Condition, where
from tests.profile.test_difference import BLOCK, Run, compared, run

__all__ = ["run"]  # a fixture
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = (
    BLOCK
    + """
class Net(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.blocks = nn.ModuleList(Block(100, wide) for wide in widths)
        self.tail = nn.Linear(100, 100)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        x = self.tail(x)
        return x.square().mean()

net = Net([300, 300, 300])
batch = torch.ones(100, 100)
for _ in range(2):
    loss = net(batch)
    loss.backward()
    net.zero_grad()
"""
)
#: What is written for what; the condition that must hold, the least that must not; where most of it is: module, line.
PLANTED = {
    "a layer that is wider": (
        "[300, 300, 300]", "[300, 309, 300]", "flops>+0.9%", "flops>+1.1%", "Net.blocks.1.", "y = self.",
    ),
    "its parameters": ("[300, 300, 300]", "[300, 309, 300]", "params>+0.8%", "params>+1.2%", "Net.blocks.1.", None),
    "a product more": (
        "        return x + y", "        y = y + 1e-9 * (y[:25] @ y[:25].T).sum()\n        return x + y",
        "flops>+0.6%", "flops>+1.4%", "Net.blocks.0", "y = y + 1e-9",
    ),
    "a larger batch": ("torch.ones(100, 100)", "torch.ones(101, 100)", "flops>+0.9%", "flops>+1.1%", "Net.", None),
    "an operation more": (
        "        x = self.tail(x)\n", "        x = self.tail(x)\n        x = x * 1.0\n",
        "ops>+0.9%", "ops>+4%", "Net", "x = x * 1.0",
    ),
    "what is kept": (
        "batch = torch.ones(100, 100)", "batch = torch.ones(100, 100)\nkept = torch.ones(50, 100)",
        "peak>+0.7%", "peak>+1.5%", "", "kept = torch.ones(50, 100)",
    ),
    "memory that is copied": (
        "        x = self.tail(x)\n", "        x = self.tail(x)\n        x = x.clone()\n",
        "bytes>+0.5%", "bytes>+2.5%", "Net", "x = x.clone()",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_C5_one_per_cent_more_is_found_where_it_is(name: str, run: Run) -> None:
    old, new, holds, fails, module, line = PLANTED[name]
    assert PROGRAM.count(old) == 1
    before, after = run(PROGRAM, "one"), run(PROGRAM.replace(old, new), "two")
    found = compared(before, after)
    assert Condition.parse(holds).holds(found) and not Condition.parse(fails).holds(found), found["totals"]
    most = where(Condition.parse(holds).metric, found)
    assert most is not None and most.by_module >= most.by_row > 0 and most.row["module"].startswith(module), most
    assert line is None or line in most.row["source"], most
    back = compared(after, before)
    assert not Condition.parse(holds).holds(back)
    assert not any(value["difference"] for value in compared(before, before)["totals"].values() if "ratio" in value)


#: Of examples/gpt2.py, two layers, by torch 2.12 to 2.15 on one machine: they have to be these on any other.
COUNTS = {"ops": 981, "flops": 2702300084, "macs": 1303794336, "params": 5146848, "peak_bytes": 133757528}


def test_C5_counts_are_those_of_another_machine(tmp_path: Path, forked: Callable[..., Any]) -> None:
    command = ["-m", "mindtorch", "profile", "--json", "p.json", str(ROOT / "examples" / "gpt2.py")]
    done = forked(*command, "--layers", "2", "--width", "96", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    totals = json.loads((tmp_path / "p.json").read_text())["totals"]
    assert {name: totals[name] for name in COUNTS} == COUNTS
