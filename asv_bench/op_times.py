"""Compares op times with those of torch.profiler, on the CPU: ``python asv_bench/op_times.py [program ...]``.

The programs of ``overhead.py``, and a row for each of the ten heaviest ops: its time in eight steps by both, minima
over sessions of eight steps in turn, in one process of one thread. A session of one step would compare caches: the
start of our profile empties them. torch.profiler's time of an op includes what the op calls, and leaves out how
Python's call is parsed, which ours includes: 1 to 2 us, as in a plain run. Autograd adds up gradients in place without
a profile and out of place under one, so both are one row. Exits with 1 if two times differ by more than 10 % and by
more than two microseconds a call. Takes five minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import torch
from overhead import PROGRAMS
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from mindtorch.profile import Profiler

HEAVIEST, MOST = 10, 0.10
GRAIN = 2e-6  # seconds a call
STEPS = 8  # of a session


def step_of(name: str) -> Callable[[], None]:
    program = PROGRAMS[name]
    scope: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
    torch.manual_seed(0)
    exec(program.setup, scope)
    body = compile(program.body, name, "exec")
    return lambda: exec(body, scope)


def _known_as(name: str) -> str:
    return name.rstrip("_")


def ours(step: Callable[[], None]) -> tuple[Counter[str], Counter[str]]:
    """Seconds and calls by op."""
    with Profiler(whole=True) as profiler:
        for _ in range(STEPS):
            step()
    found: Counter[str] = Counter()  # of floats, whatever its stub says
    calls: Counter[str] = Counter()
    for row in profiler.report()["ops"]:
        if not row["name"].startswith("("):
            found[_known_as(row["name"])] += row["self_s"]
            calls[_known_as(row["name"])] += row["calls"]
    return found, calls


def torchs(step: Callable[[], None], told: Collection[str]) -> Counter[str]:
    """Seconds by torch.profiler: of an op that we tell of and that is within no other such."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(STEPS):
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
    parser.add_argument("--rounds", type=int, default=10, help="sessions of each profiler (default: 10)")
    asked = parser.parse_args()
    if unknown := set(asked.programs) - set(PROGRAMS):
        parser.error(f"no program is called {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    torch.set_num_threads(1)
    missed = 0
    for name in asked.programs or PROGRAMS:
        step = step_of(name)
        for _ in range(5):
            step()
        mine: list[Counter[str]] = []
        theirs: list[Counter[str]] = []
        for _ in range(asked.rounds):
            found, calls = ours(step)
            mine.append(found)
            theirs.append(torchs(step, calls))
        one, other = least(mine), least(theirs)
        print(f"{name}: all ops {sum(one.values()) / sum(other.values()):.2f} ×")
        for op in sorted(other, key=lambda op: -other[op])[:HEAVIEST]:
            ratio, apart = one[op] / other[op], abs(one[op] - other[op])
            wrong = abs(ratio - 1) > MOST and apart > GRAIN * calls[op]
            missed += wrong
            row = f"  {op:40}{calls[op]:5} calls{1e6 * other[op]:11.1f} us{1e6 * one[op]:11.1f} us{ratio:8.2f} ×"
            print(f"{row}{'  <-' if wrong else ''}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
