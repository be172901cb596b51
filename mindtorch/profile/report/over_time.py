"""What ran when, in a measured run: the shares of kinds of ops and the phase of short stretches, for the page (C2)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from mindtorch._ext import context
from mindtorch._ext.timeline import OP, RUN
from mindtorch.profile.report.recording import Recording, first_batch
from mindtorch.profile.report.rows import as_table
from mindtorch.profile.report.times import EVENT

STRETCHES = 480
THREADS = 4  # those with most time in ops
STEPS = 400  # ends of iterations


def over_time(seen: Recording) -> dict[str, Any] | None:
    """`STRETCHES` that are equally long, of the iterations reported, with the first one's batch; else from the first op
    to the last. As far as there was room for events.

    ``start_s`` (after the run began), ``seconds`` of all; ``threads``: for each ``kinds``, the ns of kinds of ops in
    each stretch, and ``phases``, the index of the phase that most of them were in, -1 where no op ran; ``steps``: where
    iterations ended, in seconds after the first op; ``dropped``: events for which there was no room. None of an
    estimate, and where no op took time. Times are the host's.
    """
    log = seen.log
    if log is None:
        return None
    events = np.frombuffer(log.events(), EVENT)
    events = events[((events["kind"] == OP) | (events["kind"] == RUN)) & (events["ns"] > 0)]
    if seen.spans:
        stage, lines = first_batch(seen, {name: as_table(stage.rows) for name, stage in seen.stages.items()})
        early = np.isin(events["location"], lines) if stage == seen.reached else False
        events = events[(events["start"] >= seen.spans[0][0]) | early]
    if not len(events):
        return None
    start = events["start"].astype(np.int64)
    end = start + events["ns"].astype(np.int64)
    first, last = int(start.min()), int(end.max())
    edges = np.linspace(first, last, STRETCHES + 1)
    sums = np.bincount(events["thread"], events["ns"])
    kinds = {sig: "" if (op := seen.ops[sig]) is None else op.category for sig in np.unique(events["sig"]).tolist()}
    names = sorted(set(kinds.values()))
    kind = np.array([names.index(kinds[sig]) for sig in events["sig"].tolist()])
    ends = [(at - first) / 1e9 for at in seen.marks if first <= at <= last]
    return {
        "start_s": (first - seen.started) / 1e9,
        "seconds": (last - first) / 1e9,
        "threads": [
            _thread(start[mine], end[mine], kind[mine], events["phase"][mine], names, edges)
            for thread in np.argsort(-sums, kind="stable")[:THREADS].tolist()
            if (mine := events["thread"] == thread).any()
        ],
        "phases": [context.phase_name(phase) for phase in range(len(context.PHASES))],
        "steps": ends if len(ends) <= STEPS else [],
        "dropped": log.dropped_events,
    }


def _thread(start: Any, end: Any, kind: Any, phase: Any, names: list[str], edges: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"kinds": {}}
    for i, name in enumerate(names):
        if (mine := kind == i).any():
            found["kinds"][name] = np.rint(covered(start[mine], end[mine], edges)).astype(np.int64).tolist()
    by_phase: dict[int, Any] = defaultdict(lambda: np.zeros(len(edges) - 1))
    for i in np.unique(phase).tolist():
        mine = phase == i
        by_phase[context.read_as(i)] += covered(start[mine], end[mine], edges)
    table = np.array(list(by_phase.values()))
    most = np.array(list(by_phase))[table.argmax(0)]
    found["phases"] = np.where(table.max(0) > 0, most, -1).tolist()
    return found


def covered(start: Any, end: Any, edges: Any) -> Any:
    """How much of each stretch between two of `edges` these pieces cover. Of pieces that overlap, as an op within an op
    does, each instant counts once."""
    order = np.argsort(start, kind="stable")
    begin, until = start[order], np.maximum.accumulate(end[order])
    begin = np.maximum(begin, np.concatenate([begin[:1], until[:-1]]))  # what an earlier one covers is not its own
    own = np.maximum(until - begin, 0)
    sums = np.concatenate([[0], np.cumsum(own)])
    at = np.searchsorted(begin, edges, side="right")
    before = np.maximum(at - 1, 0)
    passed = np.where(at > 0, sums[at] - np.clip(until[before] - edges, 0, own[before]), 0)
    return np.diff(passed)
