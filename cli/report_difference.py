"""What `genie diff` shows, on a terminal and as Markdown (SPEC C5)."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mindtorch.profile.report.conditions import alike, where
from mindtorch.profile.report.repeated_rows import folded, total

from .render import Canvas, Column, Text, clean
from .report_lines import short
from .units import amount, bytes_text, count, counted, number, seconds

if TYPE_CHECKING:
    from mindtorch.profile.report.conditions import Condition

__all__ = ["grown", "markdown", "render"]

#: What figures are called, and how they are written.
_FIGURES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "ops": ("ops", count),
    "flops": ("FLOPs", lambda value: amount(value, "0")),
    "macs": ("MACs", lambda value: amount(value, "0")),
    "bytes": ("bytes", lambda value: bytes_text(value, "0 B")),
    "params": ("parameters", lambda value: number(value, "0")),
    "peak": ("peak memory", lambda value: bytes_text(value, "0 B")),
    "device_peak": ("device peak", lambda value: bytes_text(value, "0 B")),
    "time": ("time", seconds),
    "step_time": ("time per step", seconds),
}
_COLUMNS = (Column("Before", 9), Column("After", 9), Column("Difference", 10), Column("Ratio", 10))
_OF_ROWS = ("ops", "flops", "bytes", "params", "time")  # MACs go with the FLOPs
_MARKDOWN_ROWS = 50


@dataclass
class _Entry:
    """What has a name, and one or more figures: (of `_FIGURES`, its values). what: behind the name; source: the text
    of its line."""

    name: str
    figures: list[tuple[str, Mapping[str, Any]]]
    what: str = ""
    source: str = ""


@dataclass
class _Table:
    """single: its entries have one figure each, which the table is about; whole: all of them are shown."""

    title: str
    note: str
    entries: list[_Entry]
    single: bool = False
    whole: bool = False


def render(difference: Mapping[str, Any], canvas: Canvas, top: int) -> str:
    """The difference as text; `top` entries of each table."""
    names = difference["diff"]
    facts = [(when, _run(difference[when])) for when in ("before", "after")]
    canvas.facts("genie diff", f"{names[0]} → {names[1]}", facts)
    for table in _tables(difference):
        canvas.heading(table.title, table.note)
        canvas.sheet_head("", _COLUMNS)
        most = len(table.entries) if table.whole else top
        for entry in table.entries[:most]:
            _show(entry, table.single, canvas)
        if len(table.entries) > most:
            canvas.paragraph(f"{len(table.entries) - most} more: --top {len(table.entries)}", "dim")
    if difference["renamed"]:
        canvas.heading("Renamed")
        for line in _renamed(difference)[:top]:
            canvas.paragraph(line)
    canvas.add("")
    canvas.paragraph(_said(difference), "bold", "")
    for note in difference["notes"]:
        canvas.paragraph(note, "yellow", "  · ")
    return canvas.text()


def markdown(difference: Mapping[str, Any]) -> str:
    """The difference for a job's summary: GitHub's Markdown."""
    names = difference["diff"]
    lines = [f"**genie diff** {_code(names[0])} → {_code(names[1])}: {_text(_said(difference))}", ""]
    lines += [f"- :x: {_text(line)}" for line in difference.get("failed", ())]
    lines += [f"- {_text(note)}" for note in difference["notes"]]
    for table in _tables(difference):
        title = f"{table.title} {table.note}".strip()
        hidden = table.title != "Totals"
        lines += ["", f"<details><summary>{_text(title)}</summary>" if hidden else f"**{title}**", ""]
        head = [""] if table.single else ["", "figure"]
        lines.append(_line([*head, *(column.title for column in _COLUMNS)]))
        lines.append(_line([*["---"] * len(head), *["---:"] * len(_COLUMNS)]))
        for entry in table.entries[:_MARKDOWN_ROWS]:
            for i, (name, value) in enumerate(entry.figures):
                label = f"{entry.name} {entry.what}".strip() if i == 0 else ""
                cells = [_text(label), *([] if table.single else [_FIGURES[name][0]]), *_cells(name, value)]
                lines.append(_line(cells))
        if len(table.entries) > _MARKDOWN_ROWS:
            lines += ["", f"{len(table.entries) - _MARKDOWN_ROWS} more"]
        lines += ["", "</details>"] if hidden else []
    if difference["renamed"]:
        lines += ["", *(f"- {_text(line)}" for line in _renamed(difference)[:_MARKDOWN_ROWS])]
    return "\n".join(lines) + "\n"


def grown(condition: Condition, difference: Mapping[str, Any]) -> str:
    """Of a condition that holds: what grew, by how much, and where most."""
    title, write = _FIGURES[condition.metric]
    total = difference["totals"][condition.metric]
    by = f"{total['difference'] / total['before']:+.2%}".replace("%", " %") if total["before"] else "from nothing"
    line = f"{condition.text} holds: {title} {write(total['before'])} → {write(total['after'])} ({by})"
    found = where(condition.metric, difference)
    if found is None:
        return line
    row, times = found.row, f" ×{found.times}" if found.times > 1 else ""
    of = row.get("category") or row.get("op", "").removeprefix("aten::")
    place = _where({**row, "module": ""}, *filter(None, (of, row.get("phase", "")))) if of else ""
    inside = f"; there {place} (+{write(found.by_row)})" if place else ""
    module = f"in {row['module']}{times}" if row["module"] else "outside modules"
    return f"{line}; most {module} (+{write(found.by_module)}){inside}"


# -------------------------------------------------------------------------------------------------------------- tables


def _tables(difference: Mapping[str, Any]) -> list[_Table]:
    titles = {} if difference["mode"] == "estimate" else {"time": "time per step"}
    totals = [
        _Entry(titles.get(name, title), [(name, difference["totals"][name])])
        for name, (title, _) in _FIGURES.items()
        if name in difference["totals"]
    ]
    kinds = [_Entry(row["category"], [("bytes", row)]) for row in difference["memory"]]
    if not any(row["difference"] for row in difference["memory"]):
        kinds = []
    held = [
        _Entry(_where(same[0], same[0]["category"]) + _times(same), [("bytes", total(same))])
        for same in folded(difference["held"], ("category", "file", "line", "before", "after"))
    ]
    phases = [
        _Entry(", ".join(filter(None, (row["phase"], row["part"]))), _sum([row]), _what(row))
        for row in difference["phases"]
    ]
    modules = [
        _Entry(_where(rows[0]) + _times(rows), _sum(rows), f"{rows[0]['class']} {_what(rows[0])}".strip())
        for rows in folded(difference["modules"], ("class", "what"))
    ]
    rows_of = folded(difference["rows"], ("op", "phase", "file", "line", "what"))
    rows = [
        _Entry(
            _where(same[0], same[0]["op"].removeprefix("aten::"), same[0]["phase"]) + _times(same),
            _sum(same),
            _what(same[0]),
            same[0]["source"],
        )
        for same in rows_of
    ]
    found = [
        _Table("Totals", "", totals, True, True),
        _Table("Memory", "at the peak, by kind", kinds, True, True),
        _Table("Memory", "that differs, at the peak, by kind, module and line", held, True),
        _Table("Phases", "and their parts, that differ", phases, whole=True),
        _Table("Modules", "that differ themselves, not only in their submodules", modules),
        _Table("Rows", "that differ, by module, op, phase and line", rows),
    ]
    return [table for table in found if table.entries]


def _sum(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """The figures in which the first of these rows differs, summed over all."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name in _OF_ROWS:
        values = [row[name] for row in rows if row.get(name)]
        if any(value["difference"] for value in values):
            found.append((name, total(values)))
    return found


def _where(row: Mapping[str, Any], *words: str) -> str:
    """Words, the module, and the line."""
    line = f"{short(row)}:{row['line']}" if row.get("file") else ""
    module = row.get("module") or ("" if words else "(outside any module)")
    return ", ".join(filter(None, (*words, module, line)))


def _what(row: Mapping[str, Any]) -> str:
    return "" if row["what"] == "changed" else str(row["what"])


def _times(rows: Sequence[Any]) -> str:
    return f" ×{len(rows)}" if len(rows) > 1 else ""


def _renamed(difference: Mapping[str, Any]) -> list[str]:
    found: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for row in difference["renamed"]:
        found.setdefault(tuple(alike(row[when]) for when in ("before", "after")), []).append(row)
    return [f"{rows[0]['before']} is now {rows[0]['after']}{_times(rows)}" for rows in found.values()]


def _run(facts: Mapping[str, Any]) -> str:
    steps = f"{counted(facts['steps'], 'iteration')} on " if facts["steps"] else ""
    tool = facts["tool"]
    command = shlex.join(facts["command"])
    return f"{command} · {steps}{facts['device']} · mindtorch {tool['mindtorch']}, torch {tool['torch']}"


def _said(difference: Mapping[str, Any]) -> str:
    """In one sentence, whether anything differs."""
    totals = difference["totals"]
    rows = len(difference["rows"])
    if rows or difference["modules"] or difference["held"]:
        modules = len({row["module"] for table in ("rows", "modules") for row in difference[table]})
        return f"{counted(rows, 'row')} of {counted(modules, 'module')} differ" if rows else "no op differs"
    time = totals.get("time") or {}
    said = "no op, FLOP, byte or parameter differs"
    if "beyond_noise" not in time:
        return said
    return f"{said}; the time per step {'does' if time['beyond_noise'] else 'is within noise'}"


def _show(entry: _Entry, single: bool, canvas: Canvas) -> None:
    name = Text(clean(entry.name))
    if single:
        canvas.sheet_row(name, _cells(*entry.figures[0]), _COLUMNS)
        return
    canvas.paragraph(f"{entry.name} {entry.what}".strip(), "bold", "", 4)
    if entry.source:
        source = Text(f"    {clean(entry.source)}", style="dim", no_wrap=True)
        source.truncate(canvas.width, overflow="ellipsis")
        canvas.add(source)
    for key, value in entry.figures:
        canvas.sheet_row(Text(f"    {_FIGURES[key][0]}"), _cells(key, value), _COLUMNS)


def _cells(key: str, value: Mapping[str, Any]) -> list[str]:
    write, more = _FIGURES[key][1], value["difference"]
    sign = "+" if more > 0 else "-"
    return [write(value["before"]), write(value["after"]), f"{sign}{write(abs(more))}" if more else "", _ratio(value)]


def _ratio(value: Mapping[str, Any]) -> str:
    """With as many digits as show the difference."""
    if value.get("beyond_noise") is False:
        return "in noise"
    if not value["difference"]:
        return "="
    ratio = value["ratio"]
    if not ratio:
        return "new" if ratio is None else "removed"
    if ratio >= 10 or ratio < 0.1:
        return f"{ratio:.3g}×"
    digits = 7 if ratio == 1 else min(7, max(2, 1 - math.floor(math.log10(abs(ratio - 1)))))
    return f"{ratio:.{digits}f}×"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    return f"`{clean(text).replace('`', chr(39))}`"


def _text(text: str) -> str:
    """As Markdown shows it, in a table's cell, too."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", clean(text))
