"""What ``genie diff`` promises (SPEC C5): ``python asv_bench/diff_bars.py [--runs N]``.

A training script is profiled again and again, and each report compared with the one before: no count may differ. Then a
little more is planted in each of its modules: --fail-if has to say so, and to name that module and line. Exits 1 where
either is missed. Also told: how often the time of a step was said to differ. Runs are forks of one process, of one
thread. Takes two minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

PROGRAM = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, hidden), nn.Linear(hidden, 32)

    def forward(self, x):
        hidden = torch.relu(self.up(self.norm(x)))
        return x + self.down(hidden)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Block(300)
        self.second = Block(200)
        self.head = nn.Linear(32, 400)
        self.register_buffer("scale", torch.ones(100, 32))

    def forward(self, x):
        x = self.second(self.first(x))
        x = x * self.scale.sum()
        return self.head(x)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    net(torch.ones(64, 32)).square().mean().backward()
    optimizer.step()
"""


class Planted(NamedTuple):
    """What is written in place of what; by which condition that is found, in which module, on which line."""

    old: str
    new: str
    condition: str
    module: str
    line: str


#: Of what a module computes one percent more; of ops, bytes and parameters as little as can be.
PLANTED = [
    Planted("Block(300)", "Block(303)", "flops>+0.1%", "Net.first.", "hidden = torch.relu(self.up(self.norm(x)))"),
    Planted("Block(200)", "Block(202)", "flops>+0.1%", "Net.second.", "hidden = torch.relu(self.up(self.norm(x)))"),
    Planted("nn.Linear(32, 400)", "nn.Linear(32, 404)", "flops>+0.1%", "Net.head", "return self.head(x)"),
    Planted("nn.Linear(32, 400)", "nn.Linear(32, 404)", "params>+0.1%", "Net.head", ""),
    Planted("torch.ones(100, 32)", "torch.ones(101, 32)", "flops>+0", "Net", "x = x * self.scale.sum()"),
    Planted("* self.scale.sum()", "* self.scale.sum() + 0", "ops>+1%", "Net", "x = x * self.scale.sum() + 0"),
    Planted(
        "x + self.down(hidden)",
        "x + self.down(hidden.clone())",
        "bytes>+1%",
        "Net.",
        "return x + self.down(hidden.clone())",
    ),
]


def report(path: Path, to: Path) -> dict[str, Any]:
    """Of ``genie profile`` in a fork."""
    from mindtorch.cli.main import cli

    process = os.fork()
    if not process:
        code = 70
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            try:
                code = cli.main(["profile", "--warmup", "1", "--json", str(to), str(path)], "genie") or 0
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                os._exit(code)
    if code := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        raise SystemExit(f"genie profile {path} ended with exit code {code}")
    found: dict[str, Any] = json.loads(to.read_text())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=int, default=101, help="of the script as it is, each compared with the next (101)"
    )
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    import mindtorch
    from mindtorch.profile.report.conditions import Condition
    from mindtorch.profile.report.difference import COUNTS, compare

    mindtorch._bootstrap(wait=True)
    with tempfile.TemporaryDirectory() as folder:
        path, to = Path(folder, "program.py"), Path(folder, "report.json")
        path.write_text(PROGRAM)
        reports = [report(path, to) for _ in range(asked.runs)]
        counts = times = 0
        for before, after in pairwise(reports):
            found = compare(before, after, ("before", "after"))
            figures = [row["difference"] for name, row in found["totals"].items() if name != "time"]
            figures += [row[name]["difference"] for row in found["rows"] for name in COUNTS]
            counts += any(figures)
            times += bool(found["totals"]["time"].get("beyond_noise"))
        print(
            f"counts differed in {counts} of {len(reports) - 1} comparisons, the time of a step in {times}", flush=True
        )
        missed = 0
        for each in PLANTED:
            path.write_text(PROGRAM.replace(each.old, each.new))
            found = compare(reports[0], report(path, to), ("before", "after"))
            condition = Condition.parse(each.condition)
            row, _ = condition.where(found) or ({}, 0.0)
            there = row.get("module", "").startswith(each.module) and (row.get("source") or "").strip() == each.line
            ok = condition.holds(found) and (there or (not each.line and row.get("module") == each.module))
            missed += not ok
            place = f"{row.get('module')}: {(row.get('source') or '').strip()}"
            print(f"{'found' if ok else 'MISSED':8}{each.new:32}{each.condition:14}{place}", flush=True)
    return int(bool(counts or missed))


if __name__ == "__main__":
    sys.exit(main())
