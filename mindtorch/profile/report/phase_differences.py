"""What two reports differ in by phase, and by part of a phase (SPEC C5, L12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindtorch.profile.report.columns import REST
from mindtorch.profile.report.step_times import SHARED, figure

__all__ = ["differing"]


def differing(before: Mapping[str, Any], after: Mapping[str, Any], sized: bool) -> list[dict[str, Any]]:
    """Phases that differ, in their order, each before those of its parts that do; part: empty for the whole phase.

    sized: times are those of a target."""
    fields = {"ops": "ops", "flops": "flops", "macs": "macs"} | ({"time": "time_s"} if sized else {})
    found: dict[tuple[str, str], list[Mapping[str, Any] | None]] = {}
    parted = [{row["phase"] for row in report.get("parts", ())} for report in (before, after)]
    order = list(dict.fromkeys(row["name"] for report in (after, before) for row in report["phases"]))
    for side, report in enumerate((before, after)):
        for row in report["phases"]:
            found.setdefault((row["name"], ""), [None, None])[side] = row
            if row["name"] in parted[not side] - parted[side]:
                found.setdefault((row["name"], REST), [None, None])[side] = row
        for row in report.get("parts", ()):
            found.setdefault((row["phase"], row["name"]), [None, None])[side] = row
    rows = []
    for (phase, part), (old, new) in sorted(
        found.items(), key=lambda item: (order.index(item[0][0]), item[0][1] != "")
    ):
        figures = {name: figure(*(row[key] if row else 0 for row in (old, new))) for name, key in fields.items()}
        rounding = {"time": SHARED * max(figures["ops"]["before"], figures["ops"]["after"])}
        if any(abs(each["difference"]) > rounding.get(name, 0) for name, each in figures.items()):
            what = "new" if old is None else "removed" if new is None else "changed"
            rows.append({"phase": phase, "part": part, "what": what, **figures})
    return rows
