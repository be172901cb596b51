"""The table of alternatives (SPEC C4)."""

from __future__ import annotations

from typing import Any

from .advice import figures
from .render import Canvas, Column, Text
from .units import bytes_text, seconds

__all__ = ["alternatives"]

_COLUMNS = (Column("memory", 10), Column("fits", 5), Column("time", 9))


def alternatives(report: dict[str, Any], canvas: Canvas) -> None:
    """What was estimated besides, where ``--advise`` asked for it."""
    rows = report.get("advice")
    if rows is None:
        return
    canvas.heading("Alternatives", "each change estimated for the whole run")
    if not rows:
        canvas.paragraph("None of the changes that genie can try makes a difference here.")
        return
    canvas.sheet_head("  change", _COLUMNS)
    now = {"changes": ["unchanged"], **figures(report)}
    for row in [now, *rows]:
        fits = {True: "yes", False: "no", None: ""}[row["fits"]]
        cells = [bytes_text(row["peak_bytes"]), fits, seconds(row["time_s"])]
        canvas.sheet_row(Text("  " + " + ".join(row["changes"])), cells, _COLUMNS, "dim" if row is now else "")
    canvas.paragraph("")
    for row in rows:
        if len(row["changes"]) == 1:
            canvas.paragraph(f"{row['changes'][0]}: {row['what']}", "dim", hanging=4)
