"""The columns of the report's tables, each defined once: for JSON, CSV and the terminal.

A column with a value is a field of the table's rows in JSON and CSV; one with a title is shown on a terminal. What is
shown but is no field of its own (a share, a rate) has a title and no value, and names the field that it is made from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mindtorch.profile.report.forecast import Forecast, Spread
    from mindtorch.profile.report.recording import Recording
    from mindtorch.profile.report.rows import Row


@dataclass
class Sums:
    """Of some rows of a profile: calls of ops, nanoseconds of all and of time between ops, and what the ops take."""

    ops: int = 0
    ns: int = 0
    python_ns: int = 0
    nbytes: int = 0
    flops: int = 0
    macs: int = 0
    host_flops: int = 0  # of an estimate: those of calls on the CPU, which are in no time
    device_ns: int = 0  # of all kernels, also those that ran at once; measured on a GPU, by the op table alone
    kernels: int = 0
    rows: int = 0  # calls, with stretches between ops
    predicted_s: float = 0.0
    times: dict[str, float] = field(default_factory=dict)  # on a target: at least, about, interval


def sums(
    seen: Recording, rows: Iterable[Row], forecast: Forecast | None, of: Callable[[Row], Hashable]
) -> dict[Any, Sums]:
    """{what `of` says of a row: sums of those rows}, in the order of first appearance."""
    found: dict[Any, Sums] = {}
    spreads: dict[Any, Spread] = {}
    for row in rows:
        key = of(row)
        entry = found.setdefault(key, Sums())
        flops, macs = seen.flops[row.sig] or (0, 0)
        entry.rows += row.calls
        entry.ops += row.calls if row.sig else 0
        entry.ns += row.ns
        entry.python_ns += 0 if row.sig else row.ns
        entry.nbytes += row.nbytes
        entry.flops += row.calls * flops
        entry.macs += row.calls * macs
        entry.host_flops += row.calls * flops * (row.sig in seen.on_host)
        if forecast is not None:
            seconds = forecast.about(row)
            entry.predicted_s += seconds
            spreads.setdefault(key, forecast.spread()).add(seconds, row.calls, forecast.cost(row.sig))
    if forecast is not None:
        for key, spread in spreads.items():
            found[key].times = forecast.facts(spread)
    return found


REST = "the rest"  # what is in none of a phase's parts


class Column(NamedTuple):
    """key: the field. value: of the rows' sums; None where the table itself knows it, or nothing is to be stored.

    On a terminal: title, width in characters, and how the field is written: "count", "seconds", "amount" (with a
    decimal prefix), "number" (B for billions), "bytes", "share" (per cent of the report's time), "rate" (FLOPs a
    second), "bar", "median". when: "" always, "full" where there is room for all columns, "alone" where there is
    no prediction beside it, "target" where there is one.
    """

    key: str
    value: Callable[[Sums], Any] | None = None
    title: str = ""
    width: int = 8
    text: str = ""
    when: str = ""


_PREDICTED = Column(
    "predicted_s", lambda s: s.predicted_s, "", 8, "seconds", "target"
)  # the title is the target's name

_TIMES = (  # on a target; a terminal shows "about" as the time of an estimate, and the bound beside it
    Column("bound_s", lambda s: s.times.get("bound_s", 0.0), "at least", 8, "seconds", "estimate"),
    Column("about_s", lambda s: s.times.get("about_s", 0.0), when="target"),
    Column("about_low_s", lambda s: s.times.get("about_low_s", 0.0), when="target"),
    Column("about_high_s", lambda s: s.times.get("about_high_s", 0.0), when="target"),
)

PHASES = (
    Column("name"),
    Column("ops", lambda s: s.ops, "ops", 7, "count"),
    Column("time_s", lambda s: s.ns / 1e9, "time", 8, "seconds"),
    Column("time_s", None, "%", 5, "share"),
    Column("time_s", None, " ", 12, "bar", "alone"),
    Column("flops", lambda s: s.flops, "FLOPs", 8, "amount"),
    Column("macs", lambda s: s.macs),
    Column("host_flops", lambda s: s.host_flops),
    Column("time_s", None, "FLOP/s", 8, "rate"),
    Column("peak_bytes", None, "peak", 8, "bytes"),
    _PREDICTED,
    *_TIMES,
)
MODULES = (  # a tree: what is summed over modules within is worked out by `tree.module_rows`
    Column("path"),
    Column("class"),
    Column("depth"),
    Column("calls"),
    Column("self_s"),
    Column("total_s", None, "time", 8, "seconds"),
    Column("total_s", None, "total%", 6, "share"),
    Column("self_s", None, "self%", 5, "share"),
    Column("self_flops"),
    Column("forward_s", None, "forward", 8, "seconds", "full"),
    Column("backward_s", None, "backward", 8, "seconds", "full"),
    Column("call_s", None, "a call", 8, "median", "full"),
    Column("flops", None, "FLOPs", 7, "amount"),
    Column("macs"),
    Column("peak_bytes", None, "peak", 8, "bytes"),
    Column("self_params"),
    Column("params", None, "params", 7, "number"),
    Column("trainable_params"),
    Column("ops"),
    Column("self_predicted_s"),
    _PREDICTED,
    *_TIMES,
)
OPS = (
    Column("name"),
    Column("calls", lambda s: s.rows, "calls", 7, "count"),
    Column("self_s", lambda s: s.ns / 1e9, "time", 8, "seconds"),
    Column("mean_s", lambda s: s.ns / 1e9 / s.rows if s.rows and s.ops else None, "a call", 8, "seconds", "full"),
    Column("device_s", lambda s: s.device_ns / 1e9),
    Column("kernels", lambda s: s.kernels),
    Column("total_s", lambda s: s.ns / 1e9),  # ops are leaves: what one calls below the dispatcher is its own
    Column("self_s", None, "%", 5, "share"),
    Column("flops", lambda s: s.flops, "FLOPs", 7, "amount"),
    Column("macs", lambda s: s.macs),
    Column("host_flops", lambda s: s.host_flops),
    Column("self_s", None, "FLOP/s", 8, "rate"),
    Column("bytes", lambda s: s.nbytes, "bytes", 8, "bytes"),
    Column("category"),
    _PREDICTED,
    *_TIMES,
)
LINES = (
    Column("file"),
    Column("line"),
    Column("function"),
    Column("source"),
    Column("package"),
    Column("hits", None, "hits", 7, "count", "full"),
    Column("calls", lambda s: s.ops, "ops", 7, "count"),
    Column("self_s", lambda s: s.ns / 1e9, "time", 8, "seconds"),
    Column("self_s", None, "%", 5, "share"),
    Column("total_s", None, "total", 8, "seconds", "full"),
    Column("total_s", None, "total%", 6, "share", "full"),
    Column("flops", lambda s: s.flops, "FLOPs", 7, "amount"),
    Column("python_s", lambda s: s.python_ns / 1e9),
)
SHAPES = (
    Column("name"),
    Column("inputs"),
    Column("outputs"),
    Column("calls", lambda s: s.rows, "calls", 7, "count"),
    Column("self_s", lambda s: s.ns / 1e9, "time", 8, "seconds"),
    Column("self_s", None, "%", 5, "share"),
    Column("flops", lambda s: s.flops, "FLOPs", 7, "amount"),
)
TABLES = {"phase": PHASES, "module": MODULES, "op": OPS, "line": LINES}


def values(columns: tuple[Column, ...], found: Sums, predicts: bool) -> dict[str, Any]:
    """The fields of a row that are sums."""
    return {
        column.key: column.value(found)
        for column in columns
        if column.value is not None and (predicts or column.when not in ("target", "estimate"))
    }


def shown(
    columns: tuple[Column, ...], *, target: str = "", full: bool = False, estimated: bool = False
) -> list[Column]:
    """What a terminal shows. target: the name of an accelerator whose times stand beside the measured ones;
    estimated: all times are a target's."""
    found = []
    for column in columns:
        if column.when == "target":
            if not target or column is not _PREDICTED:
                continue
            found.append(column._replace(title=target[:8]))
        elif (
            column.title
            and {"": True, "full": full, "alone": not target and not estimated, "estimate": estimated}[column.when]
        ):
            found.append(column)
    return found
