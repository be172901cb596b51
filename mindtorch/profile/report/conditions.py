"""Conditions on what two reports differ in: ``flops>+1%``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mindtorch.base.errors import UsageError

#: What a condition may be about.
METRICS = ("ops", "flops", "bytes", "params", "peak", "time")
_CONDITION = re.compile(r"\s*([a-z]+)\s*>\s*\+\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*(%?)\s*")
_ROUNDED = 1e-9  # of a figure that is no integer


@dataclass(frozen=True)
class Condition:
    """``flops>+1%``: holds where a metric grew by more than that. limit: in per cent, or in FLOPs, bytes, seconds …"""

    text: str
    metric: str
    limit: float
    percent: bool

    @classmethod
    def parse(cls, text: str) -> Condition:
        """UsageError where it says something else."""
        said = _CONDITION.fullmatch(text.lower())
        metric = {"parameters": "params"}.get(said[1], said[1]) if said else ""
        if said is None or metric not in METRICS:
            raise UsageError(
                f"expected a condition like 'flops>+1%' or 'peak>+1000000', of {', '.join(METRICS)}, got {text!r}"
            )
        return cls(text.strip(), metric, float(said[2]), bool(said[3]))

    def check(self, difference: Mapping[str, Any]) -> None:
        """UsageError where it is about times that were measured, or not predicted."""
        if self.metric == "time" and (difference["mode"] == "measured" or "time" not in difference["totals"]):
            raise UsageError(f"{self.text!r} compares estimated times: make both reports with --target NAME")

    def holds(self, difference: Mapping[str, Any]) -> bool:
        total = difference["totals"][self.metric]
        if not self.percent:
            return bool(total["difference"] > self.limit)
        return bool(total["difference"] > self.limit / 100 * total["before"] + _ROUNDED * total["before"])


class Most(NamedTuple):
    """Where most of a difference is: the module, or those that are alike but for their places in lists; of its rows
    the one that differs most, one of forward first, as its line is the module's own; and what each of both differs."""

    row: dict[str, Any]
    times: int  # modules
    by_module: float
    by_row: float


def where(metric: str, difference: Mapping[str, Any], sign: int = 1) -> Most | None:
    """Of `rows`, of `modules` (parameters) or of `held` (the peak). sign: 1, what grew most; -1, what shrank most."""
    if metric == "peak":
        grown = [(row, sign * row["difference"]) for row in difference["held"]]
    else:
        table = difference["modules" if metric == "params" else "rows"]
        grown = [(row, sign * row[metric]["difference"]) for row in table if row.get(metric)]
    by_module: dict[str, float] = defaultdict(int)
    for row, more in grown:
        by_module[row["module"]] += more
    groups: dict[tuple[str, float], list[str]] = defaultdict(list)  # equal layers are one
    for module, more in by_module.items():
        groups[alike(module), more].append(module)
    if not grown:
        return None
    (_, of_each), modules = max(groups.items(), key=lambda group: group[0][1] * len(group[1]))
    mine = [(row.get("phase") != "backward", more, -i) for i, (row, more) in enumerate(grown)
            if row["module"] in modules and more > 0]  # fmt: skip
    if not mine:
        return None
    row, more = grown[-max(mine)[2]]
    return Most(row, len(modules), sign * of_each * len(modules), sign * more)


def alike(module: str) -> str:
    """The same for modules that are alike but for their places in lists: `blocks.3.w1` and `blocks.7.w1`, not `w2`."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "0", module)
