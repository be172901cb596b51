"""S7: running a recorded chain of 100 operations on 10x10 tensors."""

from __future__ import annotations

import itertools
import time

from .timing import LAZY, Pair, torch

OPS = 100
_scales = itertools.count(1)


def chain(x: torch.Tensor, scale: float = 0.5) -> torch.Tensor:
    """Exactly ``OPS`` operations; a new ``scale`` makes a segment that was not seen before."""
    y = x * scale
    for _ in range(OPS // 4 - 1):
        y = torch.relu(y + x) * x - x
    return torch.relu(y + x) * x


def timed(repeat: int, fresh: bool) -> tuple[Pair, float]:
    """((materialize, eager), record and materialize together), seconds, minima over ``repeat`` rounds in turn."""
    plain = torch.rand(10, 10)
    lazy = plain.to(LAZY)
    run, whole, eager = float("inf"), float("inf"), float("inf")
    for _ in range(repeat):
        scale = 1 + next(_scales) * 1e-6 if fresh else 0.5
        began = time.perf_counter()
        pending = chain(lazy, scale)
        recorded = time.perf_counter()
        pending.materialize()
        ended = time.perf_counter()
        run, whole = min(run, ended - recorded), min(whole, ended - began)
        began = time.perf_counter()
        chain(plain, scale)
        eager = min(eager, time.perf_counter() - began)
    return Pair(run, eager), whole


def first_time(repeat: int = 200) -> Pair:
    """S7: a segment the engine has not seen (a constant differs)."""
    return timed(repeat, fresh=True)[0]


def repeated(repeat: int = 500) -> Pair:
    """S7: the same segment again."""
    return timed(repeat, fresh=False)[0]


def record_and_run(repeat: int = 500) -> Pair:
    """Recording included: what a program sees."""
    pair, whole = timed(repeat, fresh=False)
    return Pair(whole, pair.reference)


class Materialize:
    def setup(self) -> None:
        self.plain = torch.rand(10, 10)
        self.lazy = self.plain.to(LAZY)

    def time_record_and_materialize(self) -> None:
        chain(self.lazy).materialize()

    def time_eager(self) -> None:
        chain(self.plain)

    def track_S7_first_time(self) -> float:
        return first_time().ratio

    def track_S7_repeated(self) -> float:
        return repeated().ratio

    track_S7_first_time.unit = track_S7_repeated.unit = "x eager"  # type: ignore[attr-defined]
