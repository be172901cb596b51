"""What a report says about sizes (SPEC C2, C4): does it fit, what takes the memory, what an estimate assumed."""

from __future__ import annotations

from typing import Any

from mindtorch.base.file_names import short_names

from .render import Canvas, Column, Text, clean, grade
from .units import assumption, bytes_text, count, counted, percent

__all__ = ["assumed", "fit", "memory"]

_LEVELS, _PLAIN_LEVELS = "▁▂▃▄▅▆▇█", "._-=+*%#"


def fit(facts: dict[str, Any], sized: bool) -> str:
    """One line: the peak, and whether the target holds it; sized: there is one."""
    peak, capacity = facts.get("peak_device_bytes") or facts.get("peak_bytes") or 0, facts.get("capacity_bytes")
    if capacity is None:
        return f"peak {bytes_text(peak)}{' of host memory' if sized and facts.get('device') == 'cpu' else ''}"
    if facts.get("fits"):
        return f"peak {bytes_text(peak)} of {bytes_text(capacity)}: fits, {bytes_text(capacity - peak)} to spare"
    over = f"{bytes_text(peak - capacity)} too much" if peak > capacity else "too fragmented"
    return (
        f"peak {bytes_text(peak)} of {bytes_text(capacity)}: does not fit, {over}; "
        f"needs at least {count(facts.get('devices') or 0)} such devices"
    )


def memory(report: dict[str, Any], canvas: Canvas) -> None:
    """The peak by category, where it is, its largest parts, and the way there."""
    facts = report.get("memory") or {}
    peak = facts.get("peak_bytes") or 0
    if not peak:
        return
    columns = [Column("bytes", 9), Column("%", 5), Column("", 16)]
    canvas.heading("Memory", "at the peak")
    _card(facts, canvas)
    canvas.sheet_head("kind", columns)
    for name, nbytes in sorted(facts.get("categories", {}).items(), key=lambda item: -item[1]):
        cells = [bytes_text(nbytes), percent(nbytes, peak), canvas.bar(nbytes / peak, 16)]
        canvas.sheet_row(Text(clean(name)), cells, columns, grade(nbytes / peak))
    at, names = facts.get("at") or {}, _names(report)
    place = ", ".join(
        part for part in (at.get("op", "").removeprefix("aten::"), at.get("module"), _line(at, names)) if part
    )
    if place:
        canvas.paragraph(f"highest in {clean(place)}", "dim")
    for row in (facts.get("largest") or [])[:5]:
        made = " ".join(part for part in (row.get("op", "").removeprefix("aten::"), row.get("module")) if part)
        many = f" in {row['count']} tensors" if row.get("count", 1) > 1 else ""
        where = _line(row, names)
        text = f"{bytes_text(row['bytes'])}{many}, {row['category']}: {made or 'moved or loaded'}"
        canvas.paragraph(clean(text + (f" ({where})" if where else "")), "dim", "  · ")
    heights = (facts.get("timeline") or {}).get("bytes") or []
    if len(heights) > 1:
        levels = _PLAIN_LEVELS if canvas.plain else _LEVELS
        canvas.add(Text("  " + _sparkline(heights, canvas.width - 4, levels), style="dim"))


def _card(facts: dict[str, Any], canvas: Canvas) -> None:
    """What torch gives out, what it got from the device, what the device holds in all; where that is known."""
    device = facts.get("peak_device_bytes")
    if not device:
        return
    capacity = facts.get("capacity_bytes") or 0
    columns = [Column("peak", 9), Column("%", 5), Column("of the device", 16)]
    emptied = (facts.get("allocator") or {}).get("retries")
    beside = {"context": facts.get("context_bytes"), **(facts.get("beside") or {})}
    rows = [
        ("allocated: tensors", "peak_allocated_bytes", {"cuBLAS": facts.get("workspace_bytes")}),
        ("reserved: torch's segments" + (f", cache emptied {counted(emptied, 'time')}" if emptied else ""),
         "peak_reserved_bytes", {}),
        ("device: everything", "peak_device_bytes", beside),
    ]  # fmt: skip
    canvas.sheet_head("on the card", columns)
    for name, key, more in rows:
        nbytes = facts.get(key) or 0
        name += "".join(f", {what} {bytes_text(size)}" for what, size in more.items() if size)
        cells = [bytes_text(nbytes), *([percent(nbytes, capacity), canvas.bar(min(1, nbytes / capacity), 16)]
                                       if capacity else ["", ""])]  # fmt: skip
        canvas.sheet_row(Text(clean(name)), cells, columns, "dim" if key != "peak_device_bytes" else "")


def _sparkline(heights: list[int], width: int, levels: str) -> str:
    """The highest value of each stretch as a block, over program order."""
    top, n = max(heights) or 1, len(heights)
    width = min(width, n)
    parts = [max(heights[i * n // width : max((i + 1) * n // width, i * n // width + 1)]) for i in range(width)]
    return "".join(levels[min(7, part * 8 // top)] for part in parts)


def assumed(report: dict[str, Any], canvas: Canvas) -> None:
    """Decisions on values that nobody knows, by line."""
    rows = report.get("assumed") or []
    if not rows:
        return
    calls = sum(row.get("calls", 1) for row in rows)
    canvas.paragraph(
        f"unknown values were assumed {counted(calls, 'time')} (--assume sets them):",
        "yellow",
        "  · ",
    )
    names = _names(report)
    for row in rows[:20]:
        times = f" ×{row['calls']}" if row.get("calls", 1) > 1 else ""
        first, last = assumption(row.get("value")), assumption(row.get("last", row.get("value")))
        value = first if first == last else f"{first}, {last}" if "…" in first else f"{first} … {last}"
        what = f"{row.get('op')} {'reads' if row.get('operand') else '='}"  # an operand's, or what it gives
        text = f"{what} {value}{times}  {_line(row, names)}  {row.get('source') or ''}"
        canvas.paragraph(clean(text), "dim", "      ")
    if len(rows) > 20:
        canvas.paragraph(f"and {counted(len(rows) - 20, 'more line')}: --json has them all", "dim", "      ")


def _line(row: dict[str, Any], names: dict[str, str]) -> str:
    return f"{names[row['file']]}:{row.get('line')}" if row.get("file") else ""


def _names(report: dict[str, Any]) -> dict[str, str]:
    """What files are called, by path: of lines, of what the peak is made of, of what was assumed."""
    facts = report.get("memory") or {}
    rows = [*(report.get("lines") or []), facts.get("at") or {}, *(facts.get("largest") or [])]
    rows += report.get("assumed") or []
    return short_names(row["file"] for row in rows if row.get("file"))
