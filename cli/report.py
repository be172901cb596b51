"""The profile report on a terminal (SPEC C2): phases, module tree, top ops, warnings, next commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindtorch.profile.report import folding

from . import report_cluster, report_header, report_lines, report_memory
from .estimate_output import left_alone
from .render import Canvas, Text, clean
from .report_advice import alternatives
from .report_columns import cells, style, table_columns
from .units import counted, seconds

__all__ = ["SORT_KEYS", "TABLES", "View", "render_report"]

_TREE_ROWS = 45  # without --depth, the tree is opened as deep as fits this many lines

# --sort: the names of the report's own fields, largest first, except for names.
_SORT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "self": lambda row: -(row.get("self_s") or 0),
    "total": lambda row: -(row.get("total_s") or row.get("self_s") or 0),
    "flops": lambda row: -(row.get("flops") or 0),
    "calls": lambda row: -(row.get("calls") or 0),
    "bytes": lambda row: -(row.get("bytes") or row.get("peak_bytes") or 0),
    "name": lambda row: str(row.get("name") or row.get("path") or row.get("file") or ""),
}
SORT_KEYS = tuple(_SORT)
TABLES = ("module", "op", "line", "phase")


@dataclass(frozen=True)
class View:
    """What to show: ``by`` one table in full or None for the overview; ``top`` rows; ``depth`` of the tree."""

    by: str | None = None
    top: int | None = None
    depth: int | None = None
    sort: str | None = None


def render_report(
    report: dict[str, Any], canvas: Canvas, view: View, target: str, next_commands: list[tuple[str, str]]
) -> str:
    """The report as text. ``next_commands`` are (command, what it shows)."""
    report_header.header(report, canvas, target)
    if view.by is None:
        report_cluster.ranks(report, canvas)
    wanted = {view.by} if view.by else {"phase", "module", "op"}
    if "phase" in wanted:
        _phases(report, canvas)
    if view.by is None:
        report_memory.memory(report, canvas)
        alternatives(report, canvas)
        report_cluster.communication(report, canvas)
    if "module" in wanted:
        _modules(report, canvas, view)
    if "op" in wanted:
        _ops(report, canvas, view, default_top=10 if view.by is None else 40, full=view.by == "op")
        report_lines.scopes(report, canvas, 5 if view.by is None else 25)
    _shapes(report, canvas, view)
    if "line" in wanted:
        rows = sorted(report.get("lines") or [], key=_SORT[view.sort or "self"])
        report_lines.lines(report, canvas, rows, view.sort or "self", 25 if view.top is None else view.top)
    _findings(report, canvas)
    _warnings(report, canvas)
    if next_commands:
        canvas.heading("Next")
        for command, what in next_commands:
            canvas.command([shlex.quote(word) for word in shlex.split(command)])
            canvas.paragraph(what, "dim", "      ")
    return canvas.text()


def _phases(report: dict[str, Any], canvas: Canvas) -> None:
    phases = report.get("phases") or []
    total = (report.get("totals") or {}).get("time_s") or 0.0
    if not phases:
        return
    columns, parts = table_columns("PHASES", report), report.get("parts") or []
    canvas.heading("Phases")
    canvas.sheet_head("phase", columns)
    for row in phases:
        name = Text(clean(row.get("name") or ""))
        canvas.sheet_row(name, cells(columns, row, total, canvas), columns, style(row.get("time_s"), total))
        for part in parts:
            if part["phase"] == row.get("name"):
                name = Text(f"  {clean(part['name'])}")
                canvas.sheet_row(name, cells(columns, part, total, canvas), columns, style(part["time_s"], total))
    for name in dict.fromkeys(part["name"] for part in parts if part["modules"]):
        of = [part for part in parts if part["name"] == name]
        modules = dict.fromkeys(module for part in of for module in part["modules"])
        canvas.paragraph(f"{name}: {', '.join(modules)}{_each(of)}", "dim")


def _each(parts: list[dict[str, Any]]) -> str:
    """``, 20 × 12.3 ms``: of a module that is called several times in one phase."""
    part = next((part for part in parts if (part.get("calls") or 0) > 1), None)
    return f", {part['calls']} × {seconds(part['time_s'] / part['calls'])}" if part and part["time_s"] else ""


def _modules(report: dict[str, Any], canvas: Canvas, view: View) -> None:
    total = (report.get("totals") or {}).get("time_s") or 0.0
    roots = folding.collapse(folding.fold(folding.build(report.get("modules") or []), total))
    if not roots:
        return
    if view.sort:
        key = _SORT[view.sort]
        folding.order(roots, lambda node: key(node.values))
    depth = folding.shown_depth(roots, _TREE_ROWS) if view.depth is None else view.depth
    measured = any(node.values.get("forward_s") for node in roots)
    columns = table_columns("MODULES", report, full=view.by == "module" and measured)
    canvas.heading("Modules")
    canvas.sheet_head("module", columns)
    hidden = 0
    for trail, node, below in folding.rows(roots, depth):
        hidden += below
        values = node.values
        name = Text()
        if trail:
            branches = "".join("   " if last else "│  " for last in trail[:-1])
            name.append(branches + ("└─ " if trail[-1] else "├─ "), style="dim")
        name.append(clean(node.label) or "(outside any module)")
        if node.repeated > 1:
            name.append(f" ×{node.repeated}")
        room = canvas.width - sum(c.width + 1 for c in columns) - name.cell_len - 1
        # The class is a help, the name is not: what gives way when the line is full is the class.
        extra = clean(node.cls) if clean(node.cls) != clean(node.label) else ""
        if below:
            name.append(f" ▸{below}", style="dim")
            room -= len(str(below)) + 2
        if extra and room >= len(extra):
            name.append(" " + extra, style="dim")
        canvas.sheet_row(name, cells(columns, values, total, canvas), columns, style(values.get("total_s"), total))
    if hidden:
        lie = "lies" if hidden == 1 else "lie"
        canvas.paragraph(
            f"▸ {counted(hidden, 'module')} {lie} deeper: --depth {depth + 1} opens the next level.", "dim"
        )


def _ops(report: dict[str, Any], canvas: Canvas, view: View, default_top: int, full: bool) -> None:
    rows = sorted(report.get("ops") or [], key=_SORT[view.sort or "self"])
    total = (report.get("totals") or {}).get("time_s") or 0.0
    if not rows:
        return
    top = default_top if view.top is None else view.top
    columns = table_columns("OPS", report, full=full)
    canvas.heading("Ops", "by self time" if view.sort in (None, "self") else f"by {view.sort}")
    canvas.sheet_head("op (aten)", columns)
    for row in rows[:top]:
        name = clean(row.get("name") or "").removeprefix("aten::")
        if name == "(python)":
            name = "(Python and recording)" if report.get("lazy") else "(Python, between ops)"
        if name.startswith("("):
            row = {**row, "calls": None}
        canvas.sheet_row(Text(name), cells(columns, row, total, canvas), columns, style(row.get("self_s"), total))
    rest = rows[top:]
    if rest:
        keys = {column.key for column in columns} | {"host_flops"}
        summed = {key: sum(row.get(key) or 0 for row in rest) for key in keys}
        more = Text(f"{len(rest)} more")
        canvas.sheet_row(more, cells(columns, summed, total, canvas), columns, style(summed["self_s"], total))


def _shapes(report: dict[str, Any], canvas: Canvas, view: View) -> None:
    """Which shapes ops were called with, where that was asked for."""
    rows = sorted(report.get("shapes") or [], key=_SORT[view.sort or "self"])
    if not rows:
        return
    total = (report.get("totals") or {}).get("time_s") or 0.0
    columns = table_columns("SHAPES", report)
    canvas.heading("Shapes", "of inputs and outputs")
    canvas.sheet_head("op (aten)", columns)
    for row in rows[: 25 if view.top is None else view.top]:
        shapes = " -> ".join(
            " ".join(f"{shape['dtype']}{shape['shape']}" for shape in row[side]) or "()"
            for side in ("inputs", "outputs")
        )
        name = Text(f"{clean(row['name']).removeprefix('aten::')} ").append(clean(shapes), style="dim")
        canvas.sheet_row(name, cells(columns, row, total, canvas), columns, style(row["self_s"], total))


def _findings(report: dict[str, Any], canvas: Canvas) -> None:
    """What stands out, and what to try."""
    rows = report.get("findings") or []
    if rows:
        canvas.heading("Findings")
    for row in rows:
        canvas.paragraph(clean(row["text"]), "", "  · ")
        canvas.paragraph(f"try {clean(row['try'])}", "dim", "      ")


def _warnings(report: dict[str, Any], canvas: Canvas) -> None:
    uncounted = report.get("uncounted") or []
    assumed, warnings = report.get("assumed") or [], [*left_alone(report), *(report.get("warnings") or [])]
    canvas.heading("Warnings" if uncounted or assumed or warnings else "Warnings: none")
    if uncounted:
        calls = sum(row.get("calls") or 0 for row in uncounted)
        spent = seconds(sum(row.get("self_s") or 0.0 for row in uncounted))
        rows = sorted(uncounted, key=lambda row: -(row.get("self_s") or 0.0))
        names = ", ".join(f"{(r.get('name') or '').removeprefix('aten::')} ×{r.get('calls')}" for r in rows)
        canvas.paragraph(f"no FLOP formula for {counted(calls, 'call')} ({spent}): {names}", "yellow", "  · ")
    report_memory.assumed(report, canvas)
    for warning in warnings:
        if warning.startswith("FLOPs leave out") and uncounted:  # the ledger above says it with every name and count
            continue
        canvas.paragraph(warning, "yellow", "  · ")
