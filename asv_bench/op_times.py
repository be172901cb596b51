"""Op times of a profile beside torch.profiler's, on the CPU: ``python asv_bench/op_times.py [program ...]``.

The programs of ``overhead.py``, and a row for each of the ten heaviest ops: seconds a step by both, minima over rounds
in turn, in one process of one thread. torch.profiler's time of an op has in it what the op calls; where autograd adds
up gradients, it does so in place without a profile and out of place under one, so both are one row. Exits 1 where two
differ by more than 10 %. Takes three minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from overhead import PROGRAMS
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from mindtorch.profile import Profiler

HEAVIEST, MOST = 10, 0.10


def step_of(name: str) -> Callable[[], None]:
    program = PROGRAMS[name]
    scope: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
    torch.manual_seed(0)
    exec(program.setup, scope)
    body = compile(program.body, name, "exec")
    return lambda: exec(body, scope)


def _known_as(name: str) -> str:
    return name.rstrip("_")


def ours(step: Callable[[], None], steps: int) -> Counter[str]:
    """Seconds by op."""
    with Profiler(whole=True) as profiler:
        for _ in range(steps):
            step()
    found: Counter[str] = Counter()  # of floats, whatever its stub says
    for row in profiler.report()["ops"]:
        if not row["name"].startswith("("):
            found[_known_as(row["name"])] += row["self_s"]
    return found


def torchs(step: Callable[[], None], steps: int, told: set[str]) -> Counter[str]:
    """The same by torch.profiler: of an op that we tell of and that is within no other such."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(steps):
            step()
    found: Counter[str] = Counter()
    for event in seen.events():
        name, parent = _known_as(event.name), event.cpu_parent
        while parent is not None and _known_as(parent.name) not in told:
            parent = parent.cpu_parent
        if name in told and parent is None:
            found[name] += event.cpu_time_total / 1e6  # type: ignore[assignment]
    return found


def least(rounds: list[Counter[str]]) -> dict[str, float]:
    return {name: min(each[name] for each in rounds) for name in rounds[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="program", help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    if unknown := set(asked.programs) - set(PROGRAMS):
        parser.error(f"no program is called {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    torch.set_num_threads(1)
    missed = 0
    for name in asked.programs or PROGRAMS:
        step, steps = step_of(name), max(PROGRAMS[name].times // 4, 1)
        for _ in range(5):
            step()
        mine: list[Counter[str]] = []
        theirs: list[Counter[str]] = []
        for _ in range(asked.rounds):
            mine.append(ours(step, steps))
            theirs.append(torchs(step, steps, set(mine[0])))
        one, other = least(mine), least(theirs)
        print(f"{name}: all ops {sum(one.values()) / sum(other.values()):.2f} ×")
        for op in sorted(other, key=lambda op: -other[op])[:HEAVIEST]:
            ratio = one[op] / other[op]
            missed += abs(ratio - 1) > MOST
            print(f"  {op:44}{1e6 * other[op] / steps:11.1f} us{1e6 * one[op] / steps:11.1f} us{ratio:8.2f} ×")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
