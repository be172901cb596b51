"""What a report says of one rank of several, or of each (SPEC C4): its collectives, and what ranks differ in."""

from __future__ import annotations

from typing import Any

from .render import Canvas, Column, Text, clean
from .units import amount, bytes_text, count, counted, percent, seconds

__all__ = ["communication", "rank", "ranks"]


def rank(report: dict[str, Any]) -> str:
    """One line: which of how many."""
    facts = report["cluster"]
    if not facts["process_group"]:
        here = min(facts["per_machine"], facts["world_size"])
        return f"none: one process with {counted(here, 'accelerator')}, and no process group"
    text = f"{facts['rank']} of {facts['world_size']}, each with one accelerator"
    if facts["machines"] > 1:
        text += f", on {counted(facts['machines'], 'machine')} of {facts['per_machine']}"
    return text


def communication(report: dict[str, Any], canvas: Canvas) -> None:
    """The collectives by kind."""
    facts = report.get("cluster")
    if not facts or not facts["collectives"]:
        return
    total = (report.get("totals") or {}).get("time_s") or 0.0
    columns = [Column("ranks", 6), Column("count", 7), Column("bytes", 9), Column("time", 8), Column("exposed", 8),
               Column("hidden", 8), Column("%", 5)]  # fmt: skip
    canvas.heading("Communication", "of this rank; exposed: time that the computation waits for it")
    canvas.sheet_head("collective", columns)
    for row in facts["collectives"]:
        cells = [count(row["ranks"]), count(row["count"]), bytes_text(row["bytes"]), seconds(row["time_s"]),
                 seconds(row["exposed_s"]), seconds(row["overlapped_s"]), percent(row["exposed_s"], total)]  # fmt: skip
        where = f", {row['machines']} machines" if row["machines"] > 1 else ""
        canvas.sheet_row(Text(clean(row["kind"]) + where), cells, columns)
    if facts["link_bytes_per_s"]:
        speed = facts["link_bytes_per_s"] / 1e9
        canvas.paragraph(f"within a machine: {speed:g} GB/s each way between accelerators{_assumed(facts)}", "dim")
    if facts["machines"] > 1 and facts["network_bytes_per_s"]:
        from mindtorch.profile.cost.collectives import HOP_S

        speed = 8 * facts["network_bytes_per_s"] / 1e9
        canvas.paragraph(
            f"between machines: {speed:g} Gb/s for each accelerator is assumed (--interconnect sets it), and that each "
            f"step takes {1e6 * HOP_S:g} µs",
            "dim",
        )


def _assumed(facts: dict[str, Any]) -> str:
    """What of the links in a machine nobody measured on this accelerator."""
    if facts["links_assumed"]:
        return f" is assumed, as for {facts['links_as']}: the target gives no figure"
    measured = facts["links_as"]
    return "" if facts["links_fitted"] else f"; collectives are assumed to come as near to it as measured on {measured}"


def ranks(report: dict[str, Any], canvas: Canvas) -> None:
    """Each rank; equal ones in one line."""
    rows = report.get("ranks") or []
    if not rows or "ran_as" not in rows[0]:
        return
    from mindtorch.profile.estimate.all_ranks import spans

    columns = [Column("peak", 9), Column("ops", 8), Column("FLOPs", 8), Column("time", 8), Column("exposed", 8)]
    canvas.heading("Ranks", "identical ranks in one row")
    canvas.sheet_head("rank", columns)
    for which, row in spans(rows):
        cells = [bytes_text(row["peak_bytes"]), count(row["ops"]), amount(row["flops"]), seconds(row["time_s"]),
                 seconds(row["exposed_s"])]  # fmt: skip
        fits = "" if row.get("fits") is not False else "  does not fit"
        canvas.sheet_row(Text(which + fits), cells, columns)
    ran = sorted({row["ran_as"] for row in rows})
    if len(ran) < len(rows):
        named = ", ".join(map(str, ran[:12])) + (" …" if len(ran) > 12 else "")
        canvas.paragraph(f"estimated: {named}; the others are assumed to equal their neighbours", "dim")
    canvas.paragraph(
        f"the rest of this report is about rank {report['cluster']['rank']}, which needs the most memory", "dim"
    )
