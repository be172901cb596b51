"""A program of several ranks (torchrun and its like): every rank makes a report, the last one merges them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Rank", "local_ranks", "merge"]

# Fields of a row that are the largest of the ranks'; other numbers are summed.
_LARGEST = frozenset({"peak_bytes", "depth", "line", "params", "self_params", "trainable_params", "max_s"})
_LEAST = frozenset({"min_s"})
# Tables of a report, with what tells their rows apart.
_TABLES = {
    "phases": ("name",), "modules": ("path",), "ops": ("name",), "uncounted": ("name",), "threads": ("name",),
    "lines": ("file", "line", "function"), "unseen": ("what",), "labels": ("name",),
}  # fmt: skip


def local_ranks(environment: Mapping[str, str] = os.environ) -> int:
    """How many ranks torchrun starts on this machine, each with a device of its own; 1 for a process on its own."""
    said = environment.get("LOCAL_WORLD_SIZE", "")
    return int(said) if said.isdecimal() else 1


@dataclass(frozen=True)
class Rank:
    """Which of how many equal processes this is. ``run`` tells the ranks of one start from those of another."""

    rank: int
    world_size: int
    run: str

    @classmethod
    def of_process(cls, environment: Mapping[str, str] = os.environ) -> Rank | None:
        """From the variables that torchrun sets; None for a process on its own."""
        try:
            rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        except (KeyError, ValueError):
            return None
        if not 0 <= rank < world_size or world_size == 1:
            return None
        names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
        return cls(rank, world_size, "/".join(environment.get(name, "") for name in names))

    def facts(self) -> dict[str, Any]:
        return {"rank": self.rank, "world_size": self.world_size, "run": self.run}


def merge(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The reports of all ranks as one, in the same form.

    Calls, FLOPs, bytes and times are summed over ranks, peaks are the highest of any rank's (`memory` is that rank's),
    `totals.wall_s` is the longest. `ranks` keeps what each one did.

    ValueError when they are not the ranks of one run, each once.
    """
    ranks = [report.get("rank") or {} for report in reports]
    size = ranks[0].get("world_size") if ranks else None
    if not size or sorted(r.get("rank", -1) for r in ranks) != list(range(size)) or len({r["run"] for r in ranks}) > 1:
        found = ", ".join(str(r.get("rank")) for r in ranks)
        raise ValueError(f"[merge] expected every rank of one run, got ranks {found or 'none'} of {size}")
    ordered = sorted(reports, key=lambda report: report["rank"]["rank"])
    first = ordered[0]
    merged = dict(first)
    merged["rank"] = None
    merged.pop("detail", None)  # of one rank alone
    merged["ranks"] = [
        {
            "rank": report["rank"]["rank"],
            "device": report["device"],
            "exit_code": report["exit_code"],
            **{key: report["totals"].get(key) for key in ("ops", "flops", "peak_bytes", "time_s", "wall_s")},
        }
        for report in ordered
    ]
    merged["totals"] = totals = _sum_rows([report["totals"] for report in ordered])
    totals["params"] = max(report["totals"]["params"] for report in ordered)
    totals["wall_s"] = max(report["totals"]["wall_s"] or 0.0 for report in ordered)
    # Each rank has a memory of its own: that of the one which holds most.
    merged["memory"] = max(ordered, key=lambda report: report["totals"]["peak_bytes"]).get("memory")
    missing = sum(row["calls"] for report in ordered for row in report["uncounted"])
    totals["coverage"] = totals["counted_ops"] / (totals["counted_ops"] + missing) if missing else 1.0
    merged["startup"] = _sum_rows([report["startup"] for report in ordered])
    for table, key in (("imports", "name"), ("waits", "for")):
        merged["startup"][table] = _merge_table([report["startup"].get(table) or [] for report in ordered], (key,))
    merged["waits"] = _sum_rows([report.get("waits") or {} for report in ordered])
    for table, keys in _TABLES.items():
        merged[table] = _merge_table([report.get(table) or [] for report in ordered], keys)
    for row in merged["ops"]:
        if row.get("mean_s") is not None:
            row["mean_s"] = row["self_s"] / row["calls"]
    merged["assumed"] = [row for report in ordered for row in report["assumed"]]
    merged["warnings"] = list(dict.fromkeys(text for report in ordered for text in report["warnings"]))
    merged["exit_code"] = max((report["exit_code"] for report in ordered), key=abs)
    merged["interrupted"] = any(report["interrupted"] for report in ordered)
    return merged


def _merge_table(tables: Sequence[Sequence[dict[str, Any]]], keys: tuple[str, ...]) -> list[dict[str, Any]]:
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for table in tables:
        for row in table:
            rows.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [_sum_rows(same) for same in rows.values()]


def _sum_rows(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = dict(rows[0])
    for row in rows[1:]:
        for key, value in row.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            before = found.get(key) or 0
            if key in _LEAST:
                found[key] = min(found.get(key, value), value)
            else:
                found[key] = max(before, value) if key in _LARGEST else before + value
    return found
