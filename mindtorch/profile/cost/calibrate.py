"""What the measuring itself costs, found on this machine at the start of each run, so that it can be taken off.

A tiny op in a tight loop says how much of the cost falls inside an op's measured time. It says too little about the
rest: among other code, with colder caches and more arguments, being intercepted costs about twice as much. So the sum
comes from a small transformer block.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn import functional

from mindtorch.engine import semantics

OPS = 100
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


class Cost(NamedTuple):
    """One run of some work: ns in all, ns measured inside ops, ns the collector timed as its own, ops."""

    total: float
    inside: float
    timed: float
    ops: int


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)
        self.norm = torch.nn.LayerNorm(16)
        self.out = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            q, k, v = (part.view(1, 4, 2, 8).transpose(1, 2) for part in self.qkv(self.norm(x)).split(16, dim=2))
            y = functional.scaled_dot_product_attention(torch.cat([q, k], 2), k, v)
            x = x + functional.gelu(self.out(y[:, :, :4].transpose(1, 2).reshape(1, 4, 16))) * 0.5
        return x


def measure(collector: CollectingMode) -> Costs:
    """Compare small work with and without interception. Takes about 30 ms; the program's random state is kept."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("cpu"):
        block, x, y = Block(), torch.zeros(1, 4, 16), torch.zeros(4, 4)
    identity = torch.nn.Identity()

    def ops() -> None:
        for _ in range(OPS // 2):  # one op that allocates and one that does not
            torch.mul(y, y)
            y.view(16)

    def calls() -> None:
        for _ in range(OPS):
            identity(0)

    def network() -> None:
        block(x)

    works = (ops, calls, network)
    with torch.no_grad():
        for work in works:
            work()
        plain = [_plain(work) for work in works]
        semantics.install()
        try:
            semantics.modules.is_alone(block)
            semantics.modules.is_alone(identity)
            collector.start()
            with collector:
                for work in works:
                    work()
                ours = [_intercepted(work, collector) for work in works]
        finally:
            collector.stop()
            semantics.uninstall()
    op, call, net = ours
    op_in = max(0.0, op.inside - plain[0]) / OPS
    module = max(0.0, call.total - call.timed - plain[1]) / (2 * OPS)
    boundaries = 2 * (1 + 3 * 3)
    extra = max(0.0, net.total - net.timed - plain[2] - boundaries * module)
    per_op = max(extra / max(net.ops, 1), (op.total - op.timed - plain[0]) / OPS)
    op_in = min(op_in, per_op)
    return Costs(round(op_in), round(per_op - op_in), round(module))


def _plain(work: Callable[[], None]) -> float:
    """Least time of several runs, ns: noise only ever adds."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - start)
    return float(min(times))


def _intercepted(work: Callable[[], None], collector: CollectingMode) -> Cost:
    """The fastest of several runs."""
    found = []
    for _ in range(ROUNDS):
        collector.split(0)
        start = time.perf_counter_ns()
        work()
        total = time.perf_counter_ns() - start
        rows, overhead, *_ = collector.split(0)
        inside = sum(row[5] for row in rows if row[0])
        found.append(Cost(total, inside, overhead, sum(row[4] for row in rows if row[0])))
    return min(found)
