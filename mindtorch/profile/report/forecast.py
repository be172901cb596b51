"""What a profile's rows take on a target: at least, about, and within which interval; and what bounds it.

The rows are those of a profile, measured or estimated. Each signature has one `Work`, or none for time between ops.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindtorch._ext import context
from mindtorch.ops.op_row import MATRIX_TAGS
from mindtorch.profile.cost import op_time
from mindtorch.profile.cost.energy import Board
from mindtorch.profile.cost.op_time import HOST_DOUBT, NOTHING, WAITING, Cost, Doubt, Precision, estimate
from mindtorch.profile.cost.roofline import BOUNDS
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.cost.work import Work
from mindtorch.profile.report.rows import Row

#: So many distinct shapes of products make a program, whose products take what those of whole models took.
_PROGRAM = 4
_BACKWARD = context.PHASES.index("backward")


@dataclass
class Spread:
    """What an interval is made of. seconds: about; squares: of the shapes' times; low, high: the same times the errors
    of their families. half: seconds of what was measured in two bytes."""

    seconds: float = 0.0
    least: float = 0.0
    squares: float = 0.0
    low: float = 0.0
    high: float = 0.0
    half: float = 0.0

    def add(self, seconds: float, calls: int, cost: Cost) -> None:
        self.seconds += seconds
        self.least += min(calls * cost.least, seconds)
        self.squares += seconds**2
        self.low += (seconds * cost.low) ** 2
        self.high += (seconds * cost.high) ** 2
        if cost.kind == "half":
            self.half += seconds


class Forecast:
    """Predicted seconds of rows, one cost per signature.

    footprint: the most bytes that the program holds. allowed: TF32. estimated: the rows' own times are the target's.
    fused: signatures of calls that are there in compiled functions: chains of those that stream memory are one kernel,
    and of each nothing is known at least. on_host: those of calls on the CPU, which take nothing of the target's time.
    """

    def __init__(
        self,
        target: Target,
        works: Sequence[Work | None],
        footprint: int = 0,
        allowed: Precision | None = None,
        *,
        estimated: bool = False,
        fused: Collection[int] = frozenset(),
        on_host: Collection[int] = frozenset(),
    ) -> None:
        self.target = target
        self.estimated, self.fused, self.on_host = estimated, fused, on_host
        self._works = works
        self._footprint, self._allowed = footprint, allowed
        self._costs: dict[int, Cost] = {}
        products = {work.product for work in works if work is not None and work.tag == "matmul"}
        trains = any(work is not None and "backward" in work.name for work in works)
        self._mode = "training" if trains else "inference"
        self._among = "" if len(products) < _PROGRAM else self._mode

    def cost(self, sig: int) -> Cost:
        """One call of that signature."""
        found = self._costs.get(sig)
        if found is None:
            work = self._works[sig]
            found = NOTHING if sig else WAITING
            if work is not None and sig not in self.on_host:
                found = self.of(work)
                if sig in self.fused and found.family == "stream":
                    found = replace(found, least=0.0)
            self._costs[sig] = found
        return found

    def of(self, work: Work) -> Cost:
        """One call that the program does not make."""
        return estimate(work, self.target, self._footprint, self._allowed, self._among)

    def allowing(self, precision: Precision) -> Forecast:
        """The same, of a program that allows other products."""
        return Forecast(
            self.target, self._works, self._footprint, precision,
            estimated=self.estimated, fused=self.fused, on_host=self.on_host,
        )  # fmt: skip

    def about(self, row: Row) -> float:
        """Seconds of a row."""
        return row.ns / 1e9 if self.estimated else row.calls * self.cost(row.sig).seconds

    def host(self, sig: int, phase: int, compiled: bool = False) -> float:
        """Seconds of the host for one call."""
        return op_time.host_seconds(self._works[sig], self.target, phase == _BACKWARD, compiled)

    def added_j(self, sig: int, on: Board) -> float:
        """Joules of one call on a board, beside its idle power."""
        work = self._works[sig]
        if work is None or sig in self.on_host:
            return 0.0
        return on.added_j(work, (self._allowed or Precision()).of(work, self.target))

    def in_compiled(self, sig: int, tuned: bool) -> float:
        """Seconds of one call in what was compiled, if it is not fused. tuned: see `op_time.compiled`."""
        work = self._works[sig]
        return (
            0.0
            if work is None or sig in self.on_host
            else op_time.compiled(work, self.target, self._allowed, self._among, tuned)
        )

    def seconds(self, rows: Iterable[Row]) -> float:
        return sum(self.about(row) for row in rows)

    def spread(self) -> Spread:
        """What `facts` are made of, of no rows so far."""
        return Spread()

    def facts(self, spread: Spread) -> dict[str, float]:
        """The fields of a report."""
        low, high = self._interval(spread)
        return {"bound_s": spread.least, "about_s": spread.seconds, "about_low_s": low, "about_high_s": high}

    def _interval(self, of: Spread) -> tuple[float, float]:
        single = (math.sqrt(of.low / of.squares), math.sqrt(of.high / of.squares)) if of.squares else (0.0, 0.0)
        low, high = op_time.interval(of.seconds, of.squares, single, self._whole(of))
        return max(low, of.least), max(high, of.least)

    def _whole(self, of: Spread) -> Doubt:
        """How far off whole programs are, as was measured in each kind of numbers."""
        known, half = (op_time.program(self.target, kind, self._mode) for kind in ("single", "half"))
        share = min(of.half / of.seconds, 1.0) if of.seconds else 0.0
        return known.low * (1 - share) + half.low * share, known.high * (1 - share) + half.high * share

    def totals(self, by_phase: Iterable[Row], launched: Mapping[int, float] | None = None) -> dict[str, float]:
        """Of all rows, by signature and phase: the longer of device and host in each phase. launched: what the host
        takes, seconds by phase, where that is known.

        Either may be off. Where the host is nearly the limit a slower one is, and the interval reaches up to it.
        """
        spread = Spread()
        device: dict[int, float] = {}
        host: dict[int, float] = {}
        waited = 0.0  # of an estimate's rows
        shapes: dict[int, Spread] = {}
        for row in by_phase:
            seconds = self.about(row)
            if not row.sig:
                waited += seconds
                continue
            device[row.phase] = device.get(row.phase, 0.0) + seconds
            host[row.phase] = host.get(row.phase, 0.0) + row.calls * self.host(row.sig, row.phase)
            one = shapes.setdefault(row.sig, Spread())
            one.seconds += seconds
            one.least += min(row.calls * self.cost(row.sig).least, seconds)
        for sig, one in shapes.items():
            spread.add(one.seconds, 0, self.cost(sig))
            spread.least += one.least
        low, high = (end / spread.seconds if spread.seconds else 1.0 for end in self._interval(spread))
        facts = {"bound_s": spread.least, "about_s": waited if self.estimated else 0.0,
                 "about_low_s": 0.0, "about_high_s": 0.0}  # fmt: skip
        for phase, busy in device.items():
            launching = (launched or host).get(phase, 0.0)
            facts["about_s"] += busy if self.estimated else max(busy, launching)
            facts["about_low_s"] += max(busy * low, launching * math.exp(-HOST_DOUBT))
            facts["about_high_s"] += max(busy * high, launching * math.exp(HOST_DOUBT))
        return facts

    def summary(self, rows: Iterable[Row]) -> dict[str, Any]:
        """Seconds bound by computing, by memory and by launches, FLOPs per byte, the target's name, where the factors
        come from, the ops (or the launches) that dominate the doubt; and what a roofline is drawn from: `ops`, by name,
        that have FLOPs or move bytes, and `roofs`, the target's bytes/s and, by dtype, FLOPs a second with and without
        matrix units."""
        bound = dict.fromkeys(BOUNDS, 0.0)
        flops = nbytes = 0
        doubt: dict[str, float] = {}
        sources: dict[str, str] = {}
        ops: dict[str, dict[str, Any]] = {}
        rates: dict[str, float] = {}
        for row in rows:
            cost, work = self.cost(row.sig), self._works[row.sig]
            bound[cost.bound] = bound.get(cost.bound, 0.0) + self.about(row)
            if cost is WAITING:  # as the table of ops names it
                doubt["(launch)"] = doubt.get("(launch)", 0.0) + self.about(row) * HOST_DOUBT
            elif work is not None and row.sig not in self.on_host:
                flops += row.calls * (work.flops or 0)
                nbytes += row.calls * work.bytes
                if work.bytes or work.flops:
                    self._draw(row, work, ops, rates)
                if cost.family:
                    doubt[work.name] = doubt.get(work.name, 0.0) + self.about(row) * (cost.high - cost.low) / 2
                    sources[cost.family] = op_time.source(work, self.target, self._allowed)
        widest = sorted(doubt.items(), key=lambda item: -item[1])[:3]
        return {
            **{f"{name}_s": seconds for name, seconds in bound.items()},
            "intensity": flops / nbytes if nbytes else 0.0,
            "bytes": nbytes,
            "target": self.target.key,
            "factors": sources,
            "doubt": [{"name": name, "seconds": seconds} for name, seconds in widest],
            "tf32": bool(self._allowed and self._allowed.tf32),
            "ops": sorted(ops.values(), key=lambda op: -op["about_s"]),
            "roofs": {"bytes_per_s": self.target.memory_bandwidth, "flops_per_s": rates},
        }

    def _draw(self, row: Row, work: Work, ops: dict[str, dict[str, Any]], rates: dict[str, float]) -> None:
        """What a roofline shows of a row."""
        entry = ops.setdefault(work.name, {"name": work.name, "flops": 0, "bytes": 0, "about_s": 0.0})
        entry["flops"] += row.calls * (work.flops or 0)
        entry["bytes"] += row.calls * work.bytes
        entry["about_s"] += self.about(row)
        if work.flops:
            matrix = work.tag in MATRIX_TAGS
            tf32 = matrix and work.dtype == "float32" and self._allowed is not None and self._allowed.tf32
            dtype = "tf32" if tf32 else work.dtype
            rates[f"{dtype}, matrix units" if matrix else dtype] = self.target.rate(dtype, matrix)
