"""What the report's tables are sums of: rows by module, op, phase and line at once, as `genie diff` compares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mindtorch._ext import context
from mindtorch._ext.timeline import OP, RECORD, RUN
from mindtorch.base import sourceline
from mindtorch.profile.report.lines import package_of
from mindtorch.profile.report.recording import Recording
from mindtorch.profile.report.times import EVENT, quartiles

#: The values of a row, in this order. line: an index into the lines beside the rows; op: "(python)", or "(launch)" of
#: an estimate, is the time between ops, waiting included; step_s: quartiles of the seconds in single iterations, null
#: where those are not known.
COLUMNS = ("module", "op", "phase", "line", "ops", "flops", "macs", "bytes", "self_s", "step_s")
_CELLS = 1 << 22  # of a table of rows by iterations

_Key = tuple[str, str, str, int]


class Lines:
    """Lines of source, each once. `facts`: as in the report's table of lines; what follows is an index into it."""

    def __init__(self) -> None:
        self.facts: list[dict[str, Any]] = []
        self._places: dict[Any, int] = {}
        self._known: dict[int, int] = {}

    def index(self, location: int) -> int:
        found = self._known.get(location)
        if found is None:
            where = context.location(location)
            found = self._known[location] = self._places.setdefault(where, len(self.facts))
            if found == len(self.facts):
                self.facts.append({**sourceline.facts(where), "package": package_of(where[0]) if where else ""})
        return found


def detail(seen: Recording, rows: Any) -> dict[str, Any]:
    """The entry of a report, in no order. rows: the table of the stage that is reported."""
    lines, names = Lines(), seen.names
    between = "(launch)" if seen.mode == "estimate" else "(python)"
    ops = [seen.op_name(sig) or between for sig in range(len(seen.ops))]
    keys: dict[tuple[int, int, int, int], _Key] = {}
    found: dict[_Key, list[Any]] = {}
    for sig, module, location, phase, calls, ns, nbytes in rows.tolist():  # as `rows.Row` has it
        flops, macs = seen.flops[sig] or (0, 0)
        key = keys[sig, module, location, phase] = (
            names[module],
            ops[sig],
            context.phase_name(phase),
            lines.index(location),
        )
        entry = found.get(key)
        if entry is None:
            found[key] = [calls if sig else 0, calls * flops, calls * macs, nbytes, ns]
        else:
            for i, value in enumerate((calls if sig else 0, calls * flops, calls * macs, nbytes, ns)):
                entry[i] += value
    steps = _of_steps(seen, keys)
    return {
        "columns": list(COLUMNS),
        "rows": [[*key, *entry[:4], entry[4] / 1e9, steps.get(key)] for key, entry in found.items()],
        "lines": lines.facts,
    }


def _of_steps(seen: Recording, keys: dict[tuple[int, int, int, int], _Key]) -> dict[_Key, list[float]]:
    """Quartiles of the seconds that each row's ops took in an iteration; of all iterations that the log of events has
    whole, the last ones where they are too many. The time between ops is in no event."""
    spans: np.ndarray = np.array(seen.spans, np.int64).reshape(-1, 2)
    if seen.log is None or not len(spans):
        return {}
    events = np.frombuffer(seen.log.events(), EVENT)
    events = events[np.isin(events["kind"], (OP, RECORD, RUN))]
    if seen.log.dropped_events and len(events):
        spans = spans[spans[:, 1] <= int(events["start"].max())]
    numbers: dict[_Key, int] = {}
    which = {place: numbers.setdefault(key, len(numbers)) for place, key in keys.items() if place[0]}
    spans = spans[-max(1, _CELLS // max(1, len(numbers))) :]
    if not len(spans) or not numbers:
        return {}
    start = events["start"].astype(np.int64)
    step = np.searchsorted(spans[:, 0], start, "right") - 1
    events, step = (column[(step >= 0) & (start < spans[step, 1])] for column in (events, step))
    table = np.zeros((len(numbers), len(spans)), np.int64)
    places, of = _distinct(events, ("sig", "module", "location", "phase"))
    rows = np.array([which.get(place, -1) for place in places], np.int64)[of]
    known = rows >= 0
    np.add.at(table, (rows[known], step[known]), events["ns"][known].astype(np.int64))
    found = quartiles(table / 1e9)
    return {key: found[:, number].tolist() for key, number in numbers.items()}


def _distinct(events: Any, fields: Sequence[str]) -> tuple[list[tuple[int, int, int, int]], Any]:
    """The distinct values of these fields, and which of them each event has."""
    columns = np.stack([events[name].astype(np.int64) for name in fields], axis=1)
    values, of = np.unique(columns, axis=0, return_inverse=True)
    return [(a, b, c, d) for a, b, c, d in values.tolist()], of.reshape(-1)
