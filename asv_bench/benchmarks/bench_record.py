"""S1, S2, S6: recording an operation at function level."""

from __future__ import annotations

import itertools
import time

from .instructions import of_call
from .timing import LAZY, Pair, compare, pair_of_inputs, torch

SHORT, LONG = 1_000, 1_000_000


def record_add(statement: str = "x + y") -> Pair:
    """S1: ``x + y``, in whatever form, recorded, against eager."""
    lazy, plain = pair_of_inputs()
    return compare((statement, lazy), (statement, plain))


def record_relu() -> Pair:
    """S2: ``torch.relu(x)`` recorded, against eager."""
    lazy, plain = pair_of_inputs()
    return compare(("torch.relu(x)", lazy), ("torch.relu(x)", plain))


def record_new_float() -> Pair:
    """S1: ``x * f`` recorded, with an ``f`` of its own each time, against eager."""
    lazy, plain = pair_of_inputs()
    factor = itertools.count(0.5, 1e-9)
    return compare(*(("x * next(factor)", {**given, "factor": factor}) for given in (lazy, plain)))


def record_apart(statement: str) -> Pair:
    """S14: a view or a write without gradient, recorded, against eager."""
    lazy, plain = pair_of_inputs()
    return compare((statement, lazy), (statement, plain))


def chain(ops: int) -> None:
    """Record so many additions that all stay pending, from an empty tape."""
    x = torch.ones(10, 10).to(LAZY)
    y = x
    for _ in range(ops):
        y = y + x
    assert not y.materialized, "the chain was run while it was being recorded: raise GENIE_MAX_PENDING_OPS"


def chain_cost(ops: int, times: int = 1) -> float:
    """Seconds of this thread's per op of such chains."""
    began = time.thread_time()
    for _ in range(times):
        chain(ops)
    return (time.thread_time() - began) / (ops * times)


def growth(repeat: int = 5) -> Pair:
    """S6: per-op cost of a 1,000,000-op chain, against that of 1,000-op chains that take as long, right before it: what
    else the machine does hits both alike. The middle one of the ratios."""
    chain_cost(SHORT)
    found = []
    for _ in range(repeat):
        short = chain_cost(SHORT, LONG // SHORT)
        found.append(Pair(chain_cost(LONG), short))
    return sorted(found, key=lambda pair: pair.ratio)[repeat // 2]


def growth_in_instructions() -> Pair | None:
    """S6 by instructions per op; None where nothing can count them."""
    chain(SHORT)
    short, long = of_call(lambda: chain(SHORT)), of_call(lambda: chain(LONG))
    return None if short is None or long is None else Pair(long / LONG, short / SHORT)


class Record:
    """asv's own timings, beside the ratios of SPEC S1, S2 and S6."""

    def setup(self) -> None:
        lazy, plain = pair_of_inputs()
        self.x, self.y, self.plain_x, self.plain_y = lazy["x"], lazy["y"], plain["x"], plain["y"]
        self.factor = itertools.count(0.5, 1e-9)

    def time_add_lazy(self) -> None:
        self.x + self.y

    def time_add_eager(self) -> None:
        self.plain_x + self.plain_y

    def time_add_method_lazy(self) -> None:
        self.x.add(self.y)

    def time_add_function_lazy(self) -> None:
        torch.add(self.x, self.y)

    def time_mul_new_float_lazy(self) -> None:
        self.x * next(self.factor)

    def time_relu_lazy(self) -> None:
        torch.relu(self.x)

    def time_relu_eager(self) -> None:
        torch.relu(self.plain_x)

    def track_S1_add(self) -> float:
        return record_add().ratio

    def track_S2_relu(self) -> float:
        return record_relu().ratio

    def track_S6_growth(self) -> float:
        return (growth_in_instructions() or growth(repeat=1)).ratio

    track_S1_add.unit = track_S2_relu.unit = "x eager"  # type: ignore[attr-defined]
    track_S6_growth.unit = "x"  # type: ignore[attr-defined]
    track_S6_growth.timeout = 300  # type: ignore[attr-defined]
