"""What the measuring itself costs, found on this machine at the start of each run, so that it can be taken off."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from mindtorch import semantics

OPS = 200
ROUNDS = 7


class Costs(NamedTuple):
    """Nanoseconds that remain after what the collector can time itself.

    op_in: within the measured duration of an op; op_out: around it, per op; module: per module boundary.
    """

    op_in: int
    op_out: int
    module: int


class CollectingMode(Protocol):
    """A collector that is also a dispatch mode."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def split(self, at: int) -> tuple[list[tuple[int, ...]], int, dict[int, int], int]: ...
    def __enter__(self) -> object: ...
    def __exit__(self, *error: Any) -> None: ...


def measure(collector: CollectingMode) -> Costs:
    """Compare a tiny op, and an empty module, with and without interception. Takes about 20 ms."""
    x, y = torch.zeros(4, 4), torch.zeros(4, 4)
    module = torch.nn.Identity()

    def ops() -> None:
        for _ in range(OPS // 2):  # one op that allocates and one that does not, as in most models
            torch.mul(x, y)
            x.view(16)

    def calls() -> None:
        for _ in range(OPS):
            module(0)

    def empty() -> None:
        for _ in range(OPS // 2):
            pass

    with torch.no_grad():
        ops()
        calls()
        plain = best(ops) - best(empty)
        plain_calls = best(calls)
        semantics.install()
        try:
            collector.start()
            with collector:
                ops()
                calls()
                collector.split(0)
                total, inside, timed = best_of_parts(ops, collector)
                total_calls, _, timed_calls = best_of_parts(calls, collector)
        finally:
            collector.stop()
            semantics.uninstall()
    # total = inside + timed + the rest; an op costs `plain` without us.
    extra = max(0.0, total - timed - plain)
    op_in = min(max(0.0, inside - plain), extra)
    per_module = max(0.0, total_calls - timed_calls - plain_calls) / (2 * OPS)
    return Costs(round(op_in / OPS), round((extra - op_in) / OPS), round(per_module))


def best(work: Callable[[], None]) -> float:
    """Least time of several runs, ns: noise only ever adds."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - start)
    return float(min(times))


def best_of_parts(work: Callable[[], None], collector: CollectingMode) -> tuple[float, float, float]:
    """(total, measured inside ops, timed as overhead by the collector) of the fastest run, ns."""
    found = []
    for _ in range(ROUNDS):
        collector.split(0)
        start = time.perf_counter_ns()
        work()
        total = time.perf_counter_ns() - start
        rows, overhead, _, _ = collector.split(0)
        inside = sum(ns for sig, _, _, _, _, ns, _ in rows if sig)
        found.append((float(total), float(inside), float(overhead)))
    return min(found)
