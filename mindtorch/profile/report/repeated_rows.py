"""Rows of a comparison that repeat with the layers of a model, as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindtorch.profile.report.conditions import alike
from mindtorch.profile.report.difference import COUNTS
from mindtorch.profile.report.step_times import figure


def total(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of several rows as one."""
    sums = figure(*(sum(value[when] for value in values) for when in ("before", "after")))
    if "beyond_noise" in values[0]:
        sums["beyond_noise"] = any(value["beyond_noise"] for value in values)
    return sums


def folded(rows: Sequence[Mapping[str, Any]], names: tuple[str, ...]) -> list[list[Mapping[str, Any]]]:
    """Rows of layers that repeat, together, what differs most first: what is alike but for places in lists, in the
    module's path, and for times. names: what else tells rows apart, after the module."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        path = alike(row["module"])
        counts = [(row[name]["before"], row[name]["after"]) for name in (*COUNTS, "params") if name in row]
        found.setdefault((path, *(row[name] for name in names), *counts), []).append(row)
    return sorted(found.values(), key=_most)


def _most(rows: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """By FLOPs, parameters, bytes, ops, time."""
    if "difference" in rows[0]:
        return (-abs(total(rows)["difference"]),)
    return tuple(
        -abs(sum(row[name]["difference"] for row in rows if row.get(name)))
        for name in ("flops", "params", "bytes", "ops", "time")
    )
