"""What a profile's rows take on a target: calls times the time of one, and what bounds it.

The rows are those of a profile, measured or estimated. Each signature has one `Work`, or none for time between ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mindtorch.profile.cost.roofline import BOUNDS, NOTHING, Cost, estimate
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.cost.work import Work
from mindtorch.profile.report.rows import Row


class Forecast:
    """Predicted seconds of rows, one cost per signature; `footprint`: the most bytes that the program holds."""

    def __init__(self, target: Target, works: Sequence[Work | None], footprint: int = 0, tf32: bool = False) -> None:
        self.target = target
        self._works = works
        self._footprint, self._tf32 = footprint, tf32
        self._costs: dict[int, Cost] = {}

    def cost(self, sig: int) -> Cost:
        """One call of that signature."""
        found = self._costs.get(sig)
        if found is None:
            work = self._works[sig]
            found = self._costs[sig] = (
                NOTHING if work is None else estimate(work, self.target, self._footprint, self._tf32)
            )
        return found

    def seconds(self, rows: Iterable[Row]) -> float:
        return sum(row.calls * self.cost(row.sig).seconds for row in rows)

    def summary(self, rows: Iterable[Row]) -> dict[str, Any]:
        """Seconds bound by computing, by memory and by launches, FLOPs per byte, and the target's name."""
        bound = dict.fromkeys(BOUNDS, 0.0)
        flops = nbytes = 0
        for row in rows:
            cost, work = self.cost(row.sig), self._works[row.sig]
            bound[cost.bound] = bound.get(cost.bound, 0.0) + row.calls * cost.seconds
            if work is not None:
                flops += row.calls * (work.flops or 0)
                nbytes += row.calls * work.bytes
        return {
            **{f"{name}_s": seconds for name, seconds in bound.items()},
            "intensity": flops / nbytes if nbytes else 0.0,
            "bytes": nbytes,
            "target": self.target.key,
        }
