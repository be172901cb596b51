"""The table of lines, of the packages that they are in, and of the stretches that have a name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from .estimate_output import near
from .render import Canvas, Column, Text, clean
from .report_columns import cells, style, table_columns
from .units import count, counted, percent, seconds

__all__ = ["lines", "scopes", "short"]

_PACKAGES = (Column("time", 8), Column("%", 5))
_PYTHON = re.compile(r"python\d+\.\d+t?")  # the folder of the standard library
_SCOPES = (Column("calls", 7), Column("total", 8), Column("%", 5), Column("a call", 8))


def lines(report: dict[str, Any], canvas: Canvas, rows: list[dict[str, Any]], sort: str, top: int) -> None:
    """`rows`: the lines, as they are sorted."""
    total = (report.get("totals") or {}).get("time_s") or 0.0
    inclusive = any(row.get("total_s") is not None for row in rows)
    counted_hits = any(row.get("hits") is not None for row in rows)
    columns = table_columns("LINES", report, full=inclusive or counted_hits)
    columns = [c for c in columns if c.when != "full" or any(row.get(c.key) is not None for row in rows)]
    canvas.heading("Lines", "by self time" if sort == "self" else f"by {sort}")
    canvas.sheet_head("line", columns)
    for row in rows[:top]:
        where = f"{short(row)}:{row.get('line')}" if row.get("file") else "(no line of the program)"
        function = clean(row.get("function") or "")
        name = Text(clean(where))
        if function and name.cell_len + len(function) + 2 <= canvas.width - sum(c.width + 1 for c in columns):
            name.append(f" {function}", style="dim")
        canvas.sheet_row(name, cells(columns, row, total, canvas), columns, style(row.get("self_s"), total))
        source = clean((row.get("source") or "").strip())
        if source:
            text = Text(f"    {source}", style="dim", no_wrap=True)
            text.truncate(canvas.width, overflow="ellipsis")
            canvas.add(text)
    if len(rows) > top:
        canvas.paragraph(f"{counted(len(rows) - top, 'more line')}: --top {len(rows)}", "dim")
    if inclusive:
        canvas.paragraph(
            "total: the line and everything it calls, for the program's own files only; --sort total", "dim"
        )
    if counted_hits:
        measured = "" if report.get("mode") == "estimate" else "; counting slows Python down, so these times are longer"
        canvas.paragraph(f"hits: how often the main thread reached the line{measured}", "dim")
    _packages(rows, canvas, total)


def _packages(rows: list[dict[str, Any]], canvas: Canvas, total: float) -> None:
    """Whose lines they are, where some are a library's."""
    spent: dict[str, float] = {}
    for row in rows:
        name = row.get("package") or ("(the program's own)" if row.get("file") else "(no line of the program)")
        spent[name] = spent.get(name, 0.0) + (row.get("self_s") or 0.0)
    if not any(row.get("package") for row in rows):
        return
    canvas.heading("Packages", "that the lines are in")
    canvas.sheet_head("package", _PACKAGES)
    for name, self_s in sorted(spent.items(), key=lambda item: -item[1]):
        canvas.sheet_row(Text(clean(name)), [seconds(self_s), percent(self_s, total)], _PACKAGES, style(self_s, total))


def scopes(report: dict[str, Any], canvas: Canvas, top: int) -> None:
    """What the program or torch gives a name (`record_function`): an optimizer's step, a DataLoader's batch."""
    rows = report.get("labels") or []
    total = (report.get("totals") or {}).get("time_s") or 0.0
    if not rows:
        return
    canvas.heading("Scopes", "named by record_function; they may nest")
    canvas.sheet_head("scope", _SCOPES)
    for row in rows[:top]:
        calls, whole = row.get("calls") or 0, row.get("total_s") or 0.0
        found = [count(calls), seconds(whole), percent(whole, total), seconds(whole / calls) if calls else ""]
        canvas.sheet_row(Text(clean(row.get("name") or "")), found, _SCOPES, style(whole, total))
    if len(rows) > top:
        canvas.paragraph(f"{counted(len(rows) - top, 'more scope')}: --by op shows more of them", "dim")


def short(row: Mapping[str, Any]) -> str:
    """The file: of a library, of Python's own, too, from its package on; else relative to the current directory where
    that is shorter."""
    path, package = str(row["file"]), row.get("package")
    folders = path.split(os.sep)
    if package == "standard library":
        at = max((i + 1 for i, name in enumerate(folders[:-1]) if _PYTHON.fullmatch(name)), default=len(folders) - 1)
    elif package:
        at = max(i for i, name in enumerate(folders) if name.removesuffix(".py") == package)
    else:
        return near(path)
    return "/".join(folders[at:])
