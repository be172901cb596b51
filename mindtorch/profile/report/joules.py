"""The energy of what a report covers: in all, of a phase, of a step, of a token; of one board, and of all ranks'."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mindtorch.profile.cost.energy import Board, board
from mindtorch.profile.report.rows import Row

if TYPE_CHECKING:
    from mindtorch.profile.report.forecast import Forecast
    from mindtorch.profile.report.recording import Stage

__all__ = ["TOKENS", "Energy", "add_energy"]

#: What tokens are counted of, and the phases that they take; with a training step, "training" stands for "forward".
TOKENS = (("prefill", ("prefill",)), ("decode", ("decode",)), ("forward", ("forward",)))
TRAINING = ("training", ("forward", "backward", "optimizer"))


class Energy:
    """Joules of rows on a board. launched: seconds of the host by phase: beyond the device's time, the board idles."""

    def __init__(self, forecast: Forecast, on: Board, launched: Mapping[int, float]) -> None:
        self._forecast, self._on, self._launched = forecast, on, launched

    def of(self, row: Row) -> float:
        """Joules of a row. What is fused into another call's kernel moves less, by as much as it takes less time."""
        seconds = self._forecast.about(row)
        alone = row.calls * self._forecast.cost(row.sig).seconds if row.sig else 0.0
        added = row.calls * self._forecast.added_j(row.sig, self._on) if alone else 0.0
        if row.sig in self._forecast.fused:
            added *= min(seconds / alone, 1.0) if alone else 0.0
        return self._on.joules(seconds, added)

    def by_phase(self, rows: Iterable[Row]) -> dict[int, float]:
        found: dict[int, float] = {}
        busy: dict[int, float] = {}
        host: dict[int, float] = {}
        for row in rows:
            found[row.phase] = found.get(row.phase, 0.0) + (self.of(row) if row.sig or self._forecast.estimated else 0)
            busy[row.phase] = busy.get(row.phase, 0.0) + (self._forecast.about(row) if row.sig else 0.0)
            host[row.phase] = host.get(row.phase, 0.0) + row.calls * self._forecast.host(row.sig, row.phase)
        if not self._forecast.estimated:  # an estimate's rows have its waits
            for phase in found:
                waits = (self._launched or host).get(phase, 0.0) - busy[phase]
                found[phase] += max(waits, 0.0) * self._on.idle_w
        return found

    def interval(self, joules: float, totals: Mapping[str, float]) -> tuple[float, float]:
        """(low, high): the joules of the work may be off, and the idle ones with the time; never beyond the limit."""
        about = totals["about_s"]
        if joules <= 0 or about <= 0:
            return joules, joules
        idle = min(self._on.idle_w * about / joules, 1.0)
        capped = joules / (self._on.limit_w * about)  # the nearer to the limit, the more it is a matter of time
        ends = []
        for end, off in (("about_low_s", self._on.low), ("about_high_s", self._on.high)):
            with_time = math.log(max(totals[end], 1e-12) / about) * max(idle, capped**2)
            ends.append(math.copysign(math.hypot(off * (1 - idle), with_time), off))
        least = self._on.idle_w * min(totals["about_low_s"], about)
        most = self._on.limit_w * max(totals["about_high_s"], about)
        return max(joules * math.exp(ends[0]), least), min(joules * math.exp(ends[1]), most)


def add_energy(report: dict[str, Any], forecast: Forecast, rows: list[Row], stage: Stage,
               names: Mapping[str, int]) -> None:  # fmt: skip
    """`energy` of a report, and its fields of `totals` and `phases`, where the target's figures are known.

    rows: by signature and phase; names: numbers of phases.
    """
    on = board(forecast.target)
    if on is None:
        return
    energy = Energy(forecast, on, stage.launched)
    by_phase, totals = energy.by_phase(rows), report["totals"]
    joules = sum(by_phase.values())
    totals["energy_j"] = joules
    totals["energy_low_j"], totals["energy_high_j"] = energy.interval(joules, totals)
    for phase in report["phases"]:
        phase["energy_j"] = by_phase.get(names[phase["name"]], 0.0)
    ranks = (report.get("cluster") or {}).get("world_size") or 1
    report["energy"] = {
        "power_w": joules / totals["about_s"] if totals["about_s"] else 0.0,
        "idle_w": on.idle_w,
        "limit_w": on.limit_w,
        "step_j": _of_a_step(report, forecast, on, stage),
        "token_j": _of_tokens(report),
        "accelerators": ranks,
        "all_j": joules * ranks,
        "source": on.source,
    }


def _of_a_step(report: Mapping[str, Any], forecast: Forecast, on: Board, stage: Stage) -> float | None:
    """Joules of an iteration alone: those of an estimate's own calls; of a measured run, as its time is of all."""
    if (repeated := stage.repeated) is not None:
        return sum(Energy(forecast, on, repeated.launched).by_phase(repeated.rows).values()) / repeated.steps
    totals, times = report["totals"], report["steps"]["time_s"]
    return totals["energy_j"] * times["median"] / totals["time_s"] if times and totals["time_s"] else None


def _of_tokens(report: Mapping[str, Any]) -> dict[str, float]:
    """Joules of a token (or of what else the workload counts), by what it is part of."""
    done = report.get("workload") or report.get("generation") or {}
    unit = done.get("unit") or "tokens"
    covered = {row["name"]: row.get(unit) or 0 for row in done.get("phases") or []}
    spent = {row["name"]: row["energy_j"] for row in report["phases"]}
    parts = (*TOKENS[:2], TRAINING) if done.get("train") else TOKENS
    return {
        name: sum(spent.get(phase, 0.0) for phase in phases) / covered[phases[0]]
        for name, phases in parts
        if covered.get(phases[0])
    }
