"""A report and what it was made from, as those look at it that say what stands out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mindtorch._ext import context
from mindtorch.base import sourceline
from mindtorch.profile.report.lines import package_of
from mindtorch.profile.report.rows import MODULE, PHASE, Row

if TYPE_CHECKING:
    from mindtorch.profile.report.forecast import Forecast
    from mindtorch.profile.report.made_of import Labels
    from mindtorch.profile.report.recording import Recording

__all__ = ["BACKWARD", "DATA", "OPTIMIZER", "Looked", "Said", "percent"]

_OWN = 0.05  # of what is looked at: a line of the program's own that has less is not where to look

BACKWARD, OPTIMIZER, DATA = map(context.PHASES.index, ("backward", "optimizer", "data"))


class Said(NamedTuple):
    """text: the sentence, without the place. place: file, line, function, source, module. of: what `share` is of."""

    text: str
    share: float
    place: dict[str, Any]
    to_try: str
    of: str = "time"


class Looked:
    """A report and what it was made from."""

    def __init__(
        self, seen: Recording, report: Mapping[str, Any], rows: Iterable[Row], forecast: Forecast | None, labels: Labels
    ) -> None:
        self.seen, self.report, self.labels = seen, report, labels
        self.rows = list(rows)
        self.forecast = forecast if seen.mode == "estimate" else None
        self.time_s: float = report["totals"]["time_s"]
        self.memory: Mapping[str, Any] = report["memory"] or {}
        self.peak: int = self.memory.get("peak_bytes") or 0
        #: The peak that the report's header says: of a device, with what is there besides tensors.
        self.held: int = self.memory.get("peak_device_bytes") or self.peak
        self.kinds: Mapping[str, int] = self.memory.get("categories") or {}

    def part(self, seconds: float) -> float:
        return seconds / self.time_s if self.time_s else 0.0

    def whole(self, nbytes: float) -> float:
        """The part of `held`."""
        return nbytes / self.held if self.held else 0.0

    def for_kernels(self) -> list[Row]:
        """Of an estimate: the rows of what the device waits, as far as that is for its kernels, not ops on the CPU."""
        assert self.forecast is not None
        all_: dict[tuple[int, ...], float] = defaultdict(float)  # seconds of the host, by place
        here: dict[tuple[int, ...], float] = defaultdict(float)  # those of ops on the CPU
        for row in self.rows:
            if row.sig:
                seconds = row.calls * self.forecast.host(row.sig, row.phase)
                all_[row[MODULE : PHASE + 1]] += seconds
                here[row[MODULE : PHASE + 1]] += seconds * (row.sig in self.forecast.on_host)
        return [
            row._replace(ns=round(row.ns * (1 - here[place] / all_[place]))) if here[place] else row
            for row in self.rows
            if not row.sig
            for place in (row[MODULE : PHASE + 1],)
        ]

    def op(self, row: Row) -> str:
        return self.seen.op_name(row.sig)

    def key(self, row: Row) -> tuple[int, Any, str]:
        """As a graph knows it."""
        return row.module, context.location(row.location), self.op(row)

    def steps(self) -> int:
        steps = self.report["steps"]
        return max(steps["count"] - steps["warmup"], 1)

    def an_iteration(self, count: float, what: str) -> str:
        """ "12 calls an iteration" of so many in all; without these words, of all, in a program that has no iterations,
        or several loops at once."""
        loop = self.report["steps"]
        if not loop["count"] or loop.get("threads_aside"):
            return f"{count:,.0f} {what}"
        return f"{count / self.steps():,.0f} {what} an iteration"

    def heaviest(self, rows: Iterable[Row], weight: Callable[[Row], float] = lambda row: row.ns) -> dict[str, Any]:
        """The place where most of them is: a line of the program's own before one of a library, if it has enough."""
        found: dict[Any, Counter[int]] = defaultdict(Counter)  # by line, which has a number for each call on it
        for row in rows:
            found[context.location(row.location)][row.module] += weight(row)  # type: ignore[assignment]
        lines: dict[Any, float] = {where: sum(modules.values()) for where, modules in found.items()}
        enough = _OWN * sum(lines.values())

        def own(where: Any) -> bool:
            return lines[where] >= enough and where is not None and not package_of(where[0])

        where = max(lines, key=lambda where: (own(where), lines[where]), default=None)
        modules = found[where]
        return self.at(where, max(modules, key=modules.__getitem__, default=0))

    def busiest(self, counts: Mapping[int, int]) -> dict[str, Any]:
        """The line with most of what is counted by location."""
        lines: Counter[Any] = Counter()
        for location, often in counts.items():
            lines[context.location(location)] += often
        return self.at(max(lines, key=lines.__getitem__, default=None))

    def forward(self, rows: Iterable[Row]) -> list[Row]:
        """Those that are not of a backward pass, whose line says nothing; all, if there are no others."""
        rows = list(rows)
        return [row for row in rows if row.phase != BACKWARD] or rows

    def place(self, location: int, module: int = 0) -> dict[str, Any]:
        return self.at(context.location(location), module)

    def at(self, where: Any, module: int = 0) -> dict[str, Any]:
        """where: file, line and function, or None."""
        return {**sourceline.facts(where), "module": self.seen.names[module] if module else ""}

    def seconds_saved(self, device: Mapping[int, float], calls: Mapping[int, float] | None = None) -> float:
        """Seconds that an estimate is shorter by, if its phases took so much less of the device, and of the host: a
        phase takes the longer of the two."""
        assert self.forecast is not None
        whole: Counter[int] = Counter()
        busy: Counter[int] = Counter()
        host: dict[int, float] = {}
        for row in self.rows:
            whole[row.phase] += row.ns
            busy[row.phase] += row.ns if row.sig else 0
            if row.sig:
                host[row.phase] = host.get(row.phase, 0.0) + row.calls * self.forecast.host(row.sig, row.phase)
        found = 0.0
        for phase, less in device.items():
            now = whole[phase] / 1e9
            launched = min(host.get(phase, 0.0), now) - (calls or {}).get(phase, 0.0)
            found += max(now - max(busy[phase] / 1e9 - less, launched, 0.0), 0.0)
        return found


def percent(part: float) -> str:
    return f"{100 * part:.0f} %"
