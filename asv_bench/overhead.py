"""Measures the overhead of ``genie profile`` (SPEC S12): ``python asv_bench/overhead.py [--runs N] [program ...]``.

CPU time of a program's loop alone, after ten iterations: plainly, under a dispatch mode that only passes calls on, and
under the command. Processes of one thread, in turn; minima. The mode alone is the least overhead of any tool that sees
every op in Python; what the profile adds is genie's own. Exits with 1 if GPT-2 small misses its "must". Takes eight
minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

MUST = 1.08  # S12, for GPT-2 small


class Program(NamedTuple):
    """A set-up, the loop's body, and how often it runs."""

    setup: str
    body: str
    times: int


PROGRAMS = {
    "tiny MLP with Adam": Program(
        "net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))\n"
        "optimizer = torch.optim.Adam(net.parameters())\n"
        "x, y = torch.randn(4, 8), torch.randn(4, 1)",
        "optimizer.zero_grad(); F.mse_loss(net(x), y).backward(); optimizer.step()",
        800,
    ),
    "tiny generate()": Program(
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=64, bos_token_id=0,\n"
        "                    eos_token_id=None, pad_token_id=0)\n"
        "net = GPT2LMHeadModel(config).eval()\n"
        "ids = torch.zeros(1, 4, dtype=torch.int64)",
        "net.generate(ids, max_new_tokens=16, do_sample=False)",
        20,
    ),
    "transformer, width 256": Program(
        "layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)\n"
        "net = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)\n"
        "optimizer = torch.optim.AdamW(net.parameters())\n"
        "x = torch.randn(8, 64, 256)",
        "optimizer.zero_grad(); net(x).square().mean().backward(); optimizer.step()",
        12,
    ),
    "CNN": Program(
        "net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),\n"
        "                    nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(),\n"
        "                    nn.Linear(64 * 256, 10))\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "x, y = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))",
        "optimizer.zero_grad(); F.cross_entropy(net(x), y).backward(); optimizer.step()",
        25,
    ),
    "GPT-2 small": Program(
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "net = GPT2LMHeadModel(GPT2Config()).eval()\n"
        "ids = torch.zeros(1, 64, dtype=torch.int64)",
        "net(ids)",
        12,
    ),
}
TEMPLATE = """
import contextlib, sys, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
class OnlyCallsOn(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **kwargs) if kwargs else func(*args)
torch.manual_seed(0)
{setup}
def loop(times):
    for _ in range(times):
        {body}
with OnlyCallsOn() if "mode" in sys.argv else contextlib.nullcontext():
    loop(10)
    began = time.process_time()
    loop({times})
    print("loop", time.process_time() - began, file=sys.stderr)
"""


def seconds(command: list[str], folder: str) -> float:
    """CPU time of the loop in one process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    line = next((line for line in done.stderr.splitlines() if line.startswith("loop ")), None)
    if line is None:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return float(line.split()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="program", help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--runs", type=int, default=5, help="processes of each kind (default: 5)")
    asked = parser.parse_args()
    if unknown := set(asked.programs) - set(PROGRAMS):
        parser.error(f"no program is called {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    missed = False
    print(f"{'CPU time of the loop':28}{'plain':>10}{'mode':>10}{'profiled':>10}{'mode':>8}{'profile':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.programs or PROGRAMS:
            program = PROGRAMS[name]
            path = Path(folder, "program.py")
            path.write_text(TEMPLATE.format(**program._asdict()))
            plain = [sys.executable, str(path)]
            kinds = plain, [*plain, "mode"], [sys.executable, "-m", "mindtorch.cli.main", "profile", str(path)]
            runs = [[seconds(kind, folder) for kind in kinds] for _ in range(asked.runs)]
            least, mode, profiled = (min(column) for column in zip(*runs, strict=True))
            times = "".join(f"{time * 1e3:7.1f} ms" for time in (least, mode, profiled))
            print(f"{name:28}{times}{mode / least:7.2f}x{profiled / least:8.2f}x", flush=True)
            missed = missed or (name == "GPT-2 small" and profiled / least > MUST)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
