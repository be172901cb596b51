"""What two reports differ in: by module, op, phase and line, by kind of memory, and in all.

Every row has its figures before and after; the differences of all rows sum to that of the totals. Counts of ops, FLOPs,
bytes and parameters are exact, and so are all figures of an estimate. Measured times are those of a step, and differ
only where those of repeated steps do (`step_times`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mindtorch.base.errors import UsageError
from mindtorch.profile.report import matching
from mindtorch.profile.report.between_ops import between
from mindtorch.profile.report.from_file import check
from mindtorch.profile.report.phase_differences import differing
from mindtorch.profile.report.step_times import SHARED, STEPS, busy, figure, of_steps, timed

#: Of the dict that `compare` makes, as `export.SCHEMA_VERSION` is of a report.
DIFFERENCE_VERSION = 1
#: Counts of a row.
COUNTS = ("ops", "flops", "macs", "bytes")

_HALF = 0.5  # of a step's difference
_MACHINE = "the same operations took a different time: that may be the machine, as the noise between runs is unknown"

_Key = tuple[Any, ...]


def compare(before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]) -> dict[str, Any]:
    """What differs between two reports, of the files with these names; `before` and `after` are as `check` wants them.

    UsageError where they are of different kinds.
    """
    for report, name in zip((before, after), names, strict=True):
        check(report, name)
    kinds = [_kind(report) for report in (before, after)]
    if kinds[0] != kinds[1]:
        raise UsageError(
            f"expected two reports of one kind, got {names[0]}, {kinds[0]}, and {names[1]}, {kinds[1]}: make both with "
            "--target, or both without"
        )
    join = _Join(before, after)
    times = _step_times(before, after)
    rows = _rows(before, after, join, times)
    notes = _notes(before, after, times)
    if times and (said := busy(times)):
        notes.append(said)
    if times and times["beyond_noise"]:
        apart = between(before, after, join.line)
        if abs(apart.more) > _HALF * abs(times["difference"]):
            notes.append(apart.said(times["difference"]))
        elif not any(row[name]["difference"] for row in rows for name in COUNTS):
            notes.append(_MACHINE)
    return {
        "schema_version": DIFFERENCE_VERSION,
        "diff": list(names),
        "mode": before["mode"],
        "before": _facts(before),
        "after": _facts(after),
        "notes": notes,
        "totals": _totals(before, after, times),
        "memory": _kinds_of_memory(before, after),
        "held": _held(before, after, join),
        "phases": differing(before, after, _sized(before)),
        "modules": _modules(before, after, join, rows),
        "renamed": join.renamed(),
        "detail": _detail(before, after, join, rows),
        "rows": [row for row in rows if row.pop("differs")],
    }


def _kind(report: Mapping[str, Any]) -> str:
    if report["mode"] == "measured":
        return "which was measured"
    return "an estimate for a target" if report.get("roofline") else "an estimate without a target"


def _sized(report: Mapping[str, Any]) -> bool:
    """Whether its times are those of a target, which are the same every time."""
    return report["mode"] == "estimate" and bool(report.get("roofline"))


class _Join:
    """Names that both reports have for the same module or line: those of `after`, or of `before` alone."""

    def __init__(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        self._modules = matching.modules(before["modules"], after["modules"])
        facts = [
            [*report["detail"]["lines"], *((report.get("memory") or {}).get("held") or {}).get("lines", ())]
            for report in (before, after)
        ]
        self._lines = matching.lines(*facts)
        self._facts = [{(row["file"], row["line"]): row for row in rows} for rows in facts]
        self._numbers = {of: at for at, of in self._lines.items()}

    def module(self, path: str, side: int) -> tuple[str, str]:
        """(path, "" or "removed")"""
        if side:
            return path, ""
        found = self._modules.get(path)
        return (path, "removed") if found is None else (found, "")

    def line(self, facts: Mapping[str, Any], side: int) -> tuple[str, int, str]:
        """(file, line, "" or "removed")"""
        at = facts["file"], facts["line"]
        if side:
            return *at, ""
        found = self._lines.get(at)
        return (*at, "removed") if found is None else (*found, "")

    def place(self, line: tuple[str, int, str]) -> dict[str, Any]:
        """The fields of a row; line_before: its number in the other file, where it is there."""
        file, number, gone = line
        was = (file, number) if gone else self._numbers.get((file, number))
        facts = self._facts[0 if gone else 1][file, number]
        found = {name: facts[name] for name in ("file", "line", "function", "source", "package")}
        return {**found, "line_before": was[1] if was else None}

    def renamed(self) -> list[dict[str, str]]:
        """Modules with another name or place; what is within them goes with them."""
        found = []
        for old, new in sorted(self._modules.items()):
            above, end = old.rpartition(".")[::2]
            there, other = new.rpartition(".")[::2]
            if old != new and not (above and end == other and self._modules.get(above) == there):
                found.append({"before": old, "after": new})
        return found


def _facts(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a report is of."""
    found = {key: report.get(key) for key in ("command", "device", "tool", "exit_code", "interrupted", "workload")}
    return {
        **found,
        "command": list(report["command"]),
        "model": (report.get("model") or {}).get("name"),
        "steps": (report.get("steps") or {}).get("count"),
    }


def _notes(before: Mapping[str, Any], after: Mapping[str, Any], times: dict[str, Any] | None) -> list[str]:
    found = []
    for what, of in (
        ("torch", lambda report: report["tool"]["torch"]),
        ("mindtorch", lambda report: report["tool"]["mindtorch"]),
        ("the device", lambda report: report["device"]),
        ("the number of iterations", lambda report: (report.get("steps") or {}).get("count")),
    ):
        if of(before) != of(after):
            found.append(
                f"{what} is {of(before)} before and {of(after)} after, which may explain part of the difference"
            )
    for report, when in ((before, "before"), (after, "after")):
        if report.get("interrupted"):
            found.append(f"{when}, the run was interrupted")
        elif report.get("exit_code"):
            found.append(f"{when}, the program ended with exit code {report['exit_code']}")
    if before["mode"] == "measured" and times is None:
        found.append(f"times are not compared: noise is known only from {STEPS} iterations or more of each run")
    return found


# ------------------------------------------------------------------------------------------------------------- figures


def _totals(
    before: Mapping[str, Any], after: Mapping[str, Any], times: dict[str, Any] | None
) -> dict[str, dict[str, Any]]:
    old, new = before["totals"], after["totals"]
    found = {name: figure(old[name], new[name]) for name in ("ops", "flops", "macs")}
    found["bytes"] = figure(*(sum(row["bytes"] for row in report["ops"]) for report in (before, after)))
    found["params"] = figure(old["params"], new["params"])
    found["peak"] = figure(_peak(before), _peak(after))
    if "peak_device_bytes" in old and "peak_device_bytes" in new:
        found["device_peak"] = figure(old["peak_device_bytes"], new["peak_device_bytes"])
    if _sized(before):
        found["time"] = figure(old["time_s"], new["time_s"])
        steps = [(report.get("steps") or {}).get("about_s") for report in (before, after)]
        if all(steps):
            found["step_time"] = figure(*steps)
    elif times is not None:
        found["time"] = times
    return found


def _peak(report: Mapping[str, Any]) -> int:
    """That which the kinds of memory add up to, where they are known."""
    found: int = (report.get("memory") or report["totals"])["peak_bytes"]
    return found


def _step_times(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of a step of measured runs; None where there are too few to know."""
    steps = [report.get("steps") or {} for report in (before, after)]
    if any(report["mode"] != "measured" for report in (before, after)):
        return None
    if any(each.get("count", 0) - each.get("warmup", 0) < STEPS or not each.get("quartiles_s") for each in steps):
        return None
    return of_steps(*steps)


def _rows(
    before: Mapping[str, Any], after: Mapping[str, Any], join: _Join, times: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """By module, op, phase and line; all of them, those that differ first and marked. times: of measured steps."""
    estimate = _sized(before)
    found: dict[_Key, list[_Cell | None]] = {}
    for side, report in enumerate((before, after)):
        detail = report["detail"]
        for values in detail["rows"]:
            row = dict(zip(detail["columns"], values, strict=True))
            line = join.line(detail["lines"][row["line"]], side)
            cells = found.setdefault((join.module(row["module"], side), row["op"], row["phase"], line), [None, None])
            cell = cells[side]
            cells[side] = _Cell.of(row) if cell is None else cell.plus(row)
    _meet(found)
    rows = []
    for (module, op, phase, line), (old, new) in found.items():
        first, last = old or _NOTHING, new or _NOTHING
        counts = {name: figure(getattr(first, name), getattr(last, name)) for name in COUNTS}
        differs = any(each["difference"] for each in counts.values())
        time = None
        if estimate:
            time = figure(first.seconds, last.seconds)
            differs = differs or abs(time["difference"]) > SHARED
        elif times is not None and first.steps and last.steps:
            time = timed(first.steps, last.steps)
            differs = differs or (times["beyond_noise"] and time["beyond_noise"])
        at = "new" if old is None else "removed" if new is None else "changed"
        rows.append({"module": module[0], "op": op, "phase": phase, **join.place(line), "what": at, **counts,
                     "time": time, "gone": bool(module[1]), "differs": differs})  # fmt: skip
    return sorted(rows, key=_importance)


def _importance(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Rows that change most come first: by FLOPs, then bytes, ops and time."""
    seconds = (row["time"] or {}).get("difference", 0.0)
    return (not row["differs"], -abs(row["flops"]["difference"]), -abs(row["bytes"]["difference"]),
            -abs(row["ops"]["difference"]), -abs(seconds), row["module"], row["op"], row["phase"], row["file"],
            row["line"])  # fmt: skip


@dataclass
class _Cell:
    """The figures of a row of one report."""

    ops: int = 0
    flops: int = 0
    macs: int = 0
    bytes: int = 0
    seconds: float = 0.0
    steps: list[float] | None = None  # quartiles

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _Cell:
        return cls(row["ops"], row["flops"], row["macs"], row["bytes"], row["self_s"], row["step_s"])

    def plus(self, row: Mapping[str, Any]) -> _Cell:
        """Of two lambdas on one line; quartiles of sums are not known."""
        more = {name: getattr(self, name) + row[name] for name in COUNTS}
        return _Cell(**more, seconds=self.seconds + row["self_s"])

    def counts(self) -> tuple[int, ...]:
        return self.ops, self.flops, self.macs, self.bytes


_NOTHING = _Cell()


def _meet(found: dict[_Key, list[_Cell | None]]) -> None:
    """What one op of a module did on a line that is gone, and does on one that is new, is the same where it is as
    much: code was moved."""
    waiting: dict[_Key, list[_Key]] = defaultdict(list)
    for key, (old, new) in found.items():
        if old is not None and new is None:
            waiting[key[:3] + old.counts()].append(key)
    for key, (old, new) in found.copy().items():
        if old is None and new is not None and (same := waiting[key[:3] + new.counts()]):
            found[key][0] = found.pop(same.pop(0))[0]


def _modules(
    before: Mapping[str, Any], after: Mapping[str, Any], join: _Join, rows: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What modules do and hold themselves, of those that differ in it, those that differ most first."""
    figures: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    classes: dict[tuple[str, str], list[str | None]] = defaultdict(lambda: [None, None])
    for side, report in enumerate((before, after)):
        held = _parameters(report)
        for row in report["modules"]:
            module = join.module(row["path"], side)
            classes[module][side] = row["class"]
            figures[module]["params"][side] += held[row["path"]]
    names = (*COUNTS, "time") if _sized(before) else COUNTS  # measured times are no sums
    slower = set()
    shares: Counter[tuple[str, str]] = Counter()  # rows
    for row in rows:
        shares[row["module"], "removed" if row["gone"] else ""] += 1
        if row["differs"]:
            slower.add((row["module"], "removed" if row["gone"] else ""))
        for name in names:
            for side, when in enumerate(("before", "after")):
                figures[row["module"], "removed" if row["gone"] else ""][name][side] += row[name][when]
    found: list[dict[str, Any]] = []
    for module, by_name in figures.items():
        own = {name: figure(*by_name[name]) for name in ("params", *names)}
        old, new = classes[module]
        if "time" in own and abs(own["time"]["difference"]) <= SHARED * max(shares[module], 1):
            own["time"] = figure(own["time"]["before"], own["time"]["before"])
        if old != new or any(each["difference"] for name, each in own.items() if name != "time" or module in slower):
            what = "new" if old is None else "removed" if new is None else "changed"
            cls = f"{old} → {new}" if old and new and old != new else new or old or ""
            found.append({"module": module[0], "class": cls, "what": what, **own})
    most = ("flops", "params", "bytes", "ops")
    return sorted(found, key=lambda row: (*(-abs(row[name]["difference"]) for name in most), row["module"]))


def _detail(
    before: Mapping[str, Any], after: Mapping[str, Any], join: _Join, rows: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """What every module and op has before and after, whether it differs or not: columns, and rows. Modules come as they
    were called, parameters in rows of their own, without an op. Measured times are no sums, so there are none."""
    names = ("params", *COUNTS, "time") if _sized(before) else ("params", *COUNTS)
    columns = [f"{name}_{when}" for name in names for when in ("before", "after")]
    found: dict[tuple[str, bool, str], list[float]] = {}
    classes: dict[tuple[str, bool], str] = {}
    for side, report in ((1, after), (0, before)):
        for path, params in _parameters(report).items():
            module, gone = join.module(path, side) if path else ("", "")
            found.setdefault((module, bool(gone), ""), [0] * len(columns))[side] += params
        for row in report["modules"]:
            module, gone = join.module(row["path"], side)
            classes.setdefault((module, bool(gone)), row["class"])
    for row in rows:
        figures = found.setdefault((row["module"], row["gone"], row["op"]), [0] * len(columns))
        for i, name in enumerate(names[1:], 1):
            for side, when in enumerate(("before", "after")):
                figures[2 * i + side] += row[name][when]
    return {
        "columns": ["module", "class", "removed", "op", *columns],
        "rows": [[module, classes.get((module, gone), ""), gone, op, *figures]
                 for (module, gone, op), figures in found.items() if not op or any(figures)],
    }  # fmt: skip


def _parameters(report: Mapping[str, Any]) -> dict[str, int]:
    """Of modules that were called: their own, and those of what is in them and was not called. Of models of which
    nothing was called: those outside modules."""
    held: dict[str, int] = {}
    trail: list[tuple[int, str]] = []
    rest = report["totals"]["params"]
    for row in report["modules"]:
        while trail and trail[-1][0] >= row["depth"]:
            trail.pop()
        held[row["path"]] = row["params"]
        if trail:
            held[trail[-1][1]] -= row["params"]
        else:
            rest -= row["params"]
        trail.append((row["depth"], row["path"]))
    held[""] = held.get("", 0) + rest
    return held


def _kinds_of_memory(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Bytes at the peak by what they are for, the largest first."""
    old, new = ((report.get("memory") or {}).get("categories") or {} for report in (before, after))
    rows = [{"category": name, **figure(old.get(name), new.get(name))} for name in {**new, **old}]
    return sorted(rows, key=lambda row: (-row["after"], -row["before"]))


def _held(before: Mapping[str, Any], after: Mapping[str, Any], join: _Join) -> list[dict[str, Any]]:
    """Bytes at the peak by kind, module and line that made them, of those that differ."""
    found: dict[_Key, list[int]] = defaultdict(lambda: [0, 0])
    for side, report in enumerate((before, after)):
        held = (report.get("memory") or {}).get("held") or {"rows": []}
        for values in held["rows"]:
            row = dict(zip(held["columns"], values, strict=True))
            key = (row["category"], join.module(row["module"], side), join.line(held["lines"][row["line"]], side))
            found[key][side] += row["bytes"]
    rows = [
        {"category": category, "module": module[0], **join.place(line), **figure(*sizes)}
        for (category, module, line), sizes in found.items()
        if sizes[0] != sizes[1]
    ]
    return sorted(rows, key=lambda row: (-abs(row["difference"]), row["category"], row["module"], row["line"]))
