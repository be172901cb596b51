"""Columns of the report's tables as a terminal shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .render import Canvas, clean, grade
from .units import amount, bytes_text, count, number, percent, seconds

__all__ = ["cells", "style", "table_columns"]


def table_columns(table: str, report: dict[str, Any], *, full: bool = False) -> list[Any]:
    """What is shown of it, with the times on a target beside what was measured, where one was asked for."""
    from mindtorch.profile.report import columns  # imports torch

    estimated = report.get("mode") == "estimate"  # its times are those of the target
    target = "" if estimated else clean(str((report.get("roofline") or {}).get("target") or ""))
    return columns.shown(
        getattr(columns, table), target=target, full=full, estimated=estimated and bool(report.get("roofline"))
    )


def cells(columns: list[Any], row: dict[str, Any], total: float, canvas: Canvas) -> list[str]:
    """The fields as their columns write them; total: seconds that shares are of."""
    found = []
    for column in columns:
        value = row.get(column.key)
        if column.text == "share":
            found.append(percent(value, total))
        elif column.text == "rate":
            flops = (row.get("flops") or 0) - (row.get("host_flops") or 0)  # those have no time
            found.append(amount(flops / value) if value and value > 0 and flops else "")
        elif column.text == "bar":
            found.append(canvas.bar((value or 0.0) / total if total else 0.0, column.width))
        else:
            found.append(_WRITERS[column.text](value))
    return found


_WRITERS: dict[str, Callable[[Any], str]] = {
    "count": count,
    "seconds": seconds,
    "amount": amount,
    "number": number,
    "bytes": bytes_text,
    "median": lambda spread: seconds((spread or {}).get("median")),
}


def style(seconds: float | None, total: float) -> str:
    """The style of a row."""
    return grade((seconds or 0.0) / total if total else 0.0)
