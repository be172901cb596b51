"""Where steps of a measured run take more time between their operations than another run's (SPEC C5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Line = tuple[str, int, str]


class Between(NamedTuple):
    """Seconds a step: how much more, and of that at the line where it is most; less is negative."""

    more: float
    line: Line
    at_line: float

    def said(self, of: float) -> str:
        """of: how much more a step takes in all."""
        which = "longer" if of > 0 else "less"
        file, number, gone = self.line
        place = f", {_ms(self.at_line)} of it at {file.rpartition('/')[2]}:{number}{' (before)' if gone else ''}"
        place = place if file else ""
        return f"a step takes {_ms(of)} {which}, {_ms(self.more)} of that between operations{place}"


def between(
    before: Mapping[str, Any], after: Mapping[str, Any], line_of: Callable[[Mapping[str, Any], int], Line]
) -> Between:
    """line_of: (file, line, "" or "removed") of the facts of a line of one side."""
    sums: dict[Line, float] = defaultdict(float)
    for side, report in enumerate((before, after)):
        detail, counted = report["detail"], report["steps"]
        steps = max(counted["count"] - counted["warmup"], 1)
        for values in detail["rows"]:
            row = dict(zip(detail["columns"], values, strict=True))
            if row["op"].startswith("("):
                sums[line_of(detail["lines"][row["line"]], side)] += (2 * side - 1) * row["self_s"] / steps
    more = sum(sums.values())
    line = max(sums, key=lambda at: sums[at] * (1 if more > 0 else -1), default=("", 0, ""))
    return Between(more, line, sums[line])


def _ms(seconds: float) -> str:
    return f"{1e3 * abs(seconds):.3g} ms"
