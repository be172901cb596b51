"""Plans beside measured steps: ``python asv_bench/placements.py [model ...]``.

Ten models, each of about three times the memory that one of four workers (processes of one thread on this machine) may
have. Of everything on one worker (which may then have all that it needs), of equal layers, and of the plan that is
chosen: what the plan says of a step, and the fastest of several steps, each from its first recorded call until all
workers are done. Every plan's losses and weights must equal those of one process, bit for bit.

Exits with 1 if the bits differ; if a plan's seconds are more than 30 % off; if a plan takes longer than one that fits,
too, and was not chosen: of all three where one worker may have everything, of the two others where it may not.

"Busy" is the processor time that the program and the workers took in the fastest step. If that took much longer,
something else ran, and there are more steps, up to some number; rows that stay so are marked "disturbed", and the exit
code is 1, too.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from placed_models import MODELS, Placed

import mindtorch
from mindtorch.engine.remote import placing
from mindtorch.engine.remote.placing import PlacingExecutor
from mindtorch.engine.remote.pricing import Plan

DEVICE = "remote_accelerator:0"
WORKERS = 4
TIMES = 2.8  # a worker's memory
OFF = 0.30
NOISE = 0.05  # of a step: what two runs of the same plan differ by
DISTURBED = 1.1  # times as long as it was busy
MOST = 8  # times as many steps


class Program:
    """A model and what it does in a step."""

    def __init__(self, placed: Placed, device: str) -> None:
        torch.manual_seed(3)
        self.model, self.x = placed.make().to(device), placed.data().to(device)
        self.optimizer = placed.optimizer and placed.optimizer(self.model.parameters())
        torch.manual_seed(4)

    def loss(self) -> torch.Tensor:
        """Of one step, which is recorded."""
        if self.optimizer is None:
            with torch.no_grad():
                return self.model.eval()(self.x).square().mean()
        self.optimizer.zero_grad()
        loss = self.model(self.x).float().square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def step(self) -> float:
        loss = self.loss()
        if loss.device.type != "cpu":
            mindtorch.flush("step")
        return float(loss.item())


class Measured(NamedTuple):
    """seconds, busy: of the fastest step; moved, messages: bytes, and exchanges for them, of the last."""

    seconds: float
    busy: float
    moved: int
    messages: int
    losses: list[float]
    weights: list[torch.Tensor]

    def same(self, other: Measured) -> bool:
        return self.losses == other.losses and all(map(torch.equal, self.weights, other.weights))

    @property
    def disturbed(self) -> bool:
        return self.seconds > DISTURBED * self.busy


def _busy(workers: Sequence[Any]) -> float:
    """Seconds of processors that the program and the workers have taken."""
    found = [Path(f"/proc/{worker.process}/schedstat").read_text().split()[0] for worker in workers]
    return time.process_time() + sum(map(int, found)) / 1e9


def measured(placed: Placed, workers: Sequence[Any], plan: Plan | None, steps: int) -> Measured:
    """plan: None: in this process."""
    executor = PlacingExecutor(workers, 1 << 50)
    if plan is not None:
        executor._workers = dict(plan.workers)
        mindtorch.set_executor(executor)
        gc.collect()
    program = Program(placed, "cpu" if plan is None else DEVICE)
    losses, times, weights, before = [], [], [], (0, 0)
    for k in range(MOST * steps):
        before = sum(executor.moves.values()), executor.joined
        busy, begun = _busy(workers), time.perf_counter()
        losses.append(program.step())
        times.append((time.perf_counter() - begun, _busy(workers) - busy))
        moved, messages = sum(executor.moves.values()) - before[0], executor.joined - before[1]
        if k + 1 == steps:
            weights = [p.detach().cpu().clone() for p in program.model.parameters()]
        if k + 1 >= steps and min(times)[0] <= DISTURBED * min(times)[1]:
            break
    del program
    gc.collect()
    mindtorch.flush("measured")  # what was recorded and nobody reads keeps memory, too
    return Measured(*min(times), moved, messages, losses[:steps], weights)


def planned(placed: Placed, workers: Sequence[Any], limit: int) -> list[Plan]:
    """The plans for a step, the best one first."""
    mindtorch.set_executor(PlacingExecutor(workers, 1 << 50))
    Program(placed, DEVICE).step()  # sizes that torch's kernels tell only when they run are known from here on
    gc.collect()
    found: list[list[Plan]] = []
    before = placing.tell(found.append, only=True)
    mindtorch.set_executor(PlacingExecutor(workers, limit))
    gc.collect()  # of what the one before held
    program = Program(placed, DEVICE)
    try:
        program.step()
    except SystemExit:
        pass
    finally:
        placing.tell(*before)
    mindtorch.flush("planned")  # what was recorded would keep the model's memory
    del program
    gc.collect()
    return found[-1]


def compared(name: str, workers: Sequence[Any], steps: int) -> list[str]:
    """Show a model's rows. Returns what is wrong."""
    placed, wrong = MODELS[name], []
    one = planned(placed, workers, 1 << 50)[0]
    plans = planned(placed, workers, int(one.memory[0] / TIMES))
    plain = measured(placed, workers, None, steps)
    chosen, others = plans[0], [plan for plan in plans[1:] if plan.name in ("all on one", "equal layers")]
    print(f"{name}: {one.memory[0] / 1e6:.1f} MB, {plain.seconds * 1e3:.1f} ms in this process")
    fastest: dict[bool, list[float]] = {True: [], False: []}  # of those that fit if one worker may have all, and if not
    own = {True: 0.0, False: 0.0}  # of those that are chosen then
    for plan in (*others, chosen):
        found = measured(placed, workers, plan, steps)
        off = plan.seconds / found.seconds - 1
        fits = f"short by {plan.excess / 1e6:.1f} MB" if plan.excess else "fits"
        print(
            f"  {plan.name:<14}{plan.used:>2}{plan.moved / 1e6:>8.2f}{found.moved / 1e6:>8.2f} MB{plan.messages:>4}"
            f"{found.messages:>4}{max(plan.memory) / 1e6:>8.1f} MB{plan.seconds * 1e3:>9.1f}{found.seconds * 1e3:>9.1f}"
            f"{found.busy * 1e3:>9.1f} ms{off:>+6.0%}  {fits}{', chosen' * (plan is chosen)}"
            f"{', disturbed' * found.disturbed}", flush=True,
        )  # fmt: skip
        if not found.same(plain):
            wrong.append(f"{name}: {plan.name} has other bits")
        if found.disturbed:
            wrong.append(f"{name}: {plan.name} was disturbed: nothing is known of its time")
            continue
        if abs(off) > OFF:
            wrong.append(f"{name}: the seconds of {plan.name} are off by {off:+.0%}")
        for lifted in (True, False):
            if lifted or not plan.excess:
                fastest[lifted].append(found.seconds)
            if plan.name == "all on one" if lifted else plan is chosen:
                own[lifted] = found.seconds
    if one.used > 1:
        wrong.append(f"{name}: {one.name} is chosen where one worker may have everything")
    for lifted, seconds in own.items():
        if seconds > min(fastest[lifted], default=seconds) * (1 + NOISE):
            wrong.append(f"{name}: another plan than the chosen one is faster, of {len(fastest[lifted])}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--steps", type=int, default=15)
    args = parser.parse_args()
    if unknown := sorted(set(args.models) - set(MODELS)):
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    torch.set_num_threads(1)
    workers = [mindtorch.PipeExecutor() for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.sync()
    print("plan, workers; moves, planned and made; messages, planned and made; the most that a worker holds;")
    print("the plan's step, the fastest step, processors busy in that; how far off the plan is")
    wrong = [each for name in args.models or MODELS for each in compared(name, workers, args.steps)]
    for each in wrong:
        print(each)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
