"""Plans for one device on several workers, as ``genie run`` shows them (SPEC R5)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from . import units

if TYPE_CHECKING:
    from mindtorch.engine.remote.pricing import Plan

__all__ = ["lines"]

_RUNS = 3  # of modules on one worker that are named


def lines(plans: Sequence[Plan]) -> list[str]:
    """The plans, the best one first, and who has what in that one."""
    best = plans[0]
    fits = "" if not best.excess else f", {units.bytes_text(best.excess)} short, and runs nevertheless"
    found = [
        f"remote_accelerator:0 uses {best.used} of {units.counted(len(best.limits), 'worker')}{fits}; cost of one run:",
        f"  {'plan':<14}{'workers':>8}{'moves':>11}{'messages':>10}{'seconds':>10}   peak memory of each worker",
    ]
    for plan in sorted(plans, key=lambda plan: plan is not best):
        memory = [units.bytes_text(need, "0 B") for need in plan.memory]
        lacks = f"   short by {units.bytes_text(plan.excess)}" if plan.excess else ""
        moved, seconds = units.bytes_text(plan.moved, "0 B"), units.seconds(plan.seconds)
        found.append(
            f"  {plan.name:<14}{plan.used:>8}{moved:>11}{plan.messages:>10}{seconds:>10}   {', '.join(memory)}{lacks}"
        )
    if best.moves_only:
        found.append("  seconds: for moves only; how fast the workers compute is not known")
    limits = sorted({units.bytes_text(limit) for limit in best.limits})
    found.append(f"  a worker may hold {' or '.join(limits)}")
    if best.replicas:
        there = ", ".join(f"{units.bytes_text(n)} on worker {worker}" for worker, n in sorted(best.replicas.items()))
        found.append(f"  copies of what several workers read: {there}")
    if best.again:
        there = ", ".join(f"{units.bytes_text(n)} on worker {worker}" for worker, n in sorted(best.again.items()))
        found.append(f"  computed again instead of moved: {there}")
    for worker, nbytes in enumerate(best.memory):
        if worker in best.workers.values() or nbytes:
            found.append(f"  worker {worker}: {_named(best, worker) or 'values of no module'}")
    return found


def _named(plan: Plan, worker: int) -> str:
    """The modules on a worker, as they run: of those that follow each other the first and the last one."""
    runs = []
    for at, group in groupby(plan.workers.items(), key=lambda item: item[1]):
        if at == worker:
            paths = [path for path, _ in group]
            runs.append(paths[0] if len(paths) == 1 else f"{paths[0]} … {paths[-1]}")
    more = f", {len(runs) - _RUNS} more" if len(runs) > _RUNS else ""
    return ", ".join(runs[:_RUNS]) + more
