"""A run in which no op ran needs no tables: its report is what could not be seen."""

from __future__ import annotations

from typing import Any

from mindtorch.profile.measure.collect import Profiler
from mindtorch.profile.report.unseen import unseen


def report_of_nothing(profiler: Profiler) -> dict[str, Any] | None:
    """What the report says of what could not be seen; None where an op ran or was recorded."""
    collector = profiler.collector
    if len(collector.sig_ops) > 1 or collector.runs:  # the first stands for the time between ops
        return None
    return {"unseen": unseen(profiler.compiled, profiler.children, collector.other_thread)}
