"""The trace of a profile, for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mindtorch._ext import context
from mindtorch._ext.timeline import ENTER, EXIT, LABEL, OP, RECORD, RUN
from mindtorch.base.formats import atomic
from mindtorch.profile.cost.call_shapes import text
from mindtorch.profile.report.stacks import line_names

if TYPE_CHECKING:
    from mindtorch.profile.report.module_names import Names
    from mindtorch.profile.report.recording import Log, Recording

#: Counters are drawn with at most this many points; of memory, each keeps the highest value of its stretch.
COUNTER_POINTS = 4000
#: Arrows from modules to their backward passes, at most.
FLOWS = 20_000
_FORWARD, _BACKWARD = map(context.PHASES.index, ("forward", "backward"))


def write_trace(seen: Recording, path: str | os.PathLike[str], max_events: int = 400_000) -> int:
    """Chrome trace JSON, about 100 bytes an event (``.gz`` is compressed); returns how many events did not fit.

    Of each thread: one track of module slices with the ops inside, one of phases, one of the runs of recorded ops if
    there are any; and of all, live bytes and FLOPs a second. Arrows lead from a module's call to its ops in backward,
    as far as `FLOWS` goes. Times are as measured, the interception included. The first `max_events` events are kept.
    """
    log = seen.log
    if log is None:
        raise ValueError("[write_trace] expected a measured run, got an estimate, which has no timeline")
    kept = min(log.event_count(), max_events)
    dropped = log.dropped_events + log.event_count() - kept
    with atomic(path) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for event in _trace_events(seen, log, kept):
            file.write(json.dumps(event, separators=(",", ":")) + ",\n")
        meta = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "genie profile"}}
        file.write(json.dumps(meta, separators=(",", ":")))
        file.write('\n],"otherData":' + json.dumps({"dropped_events": dropped}) + "}\n")
    return dropped


class _Flows:
    """Which call of a module a backward pass is of: the last one that had none."""

    def __init__(self) -> None:
        self._calls: dict[int, list[tuple[int, int]]] = {}  # by path id: (track, when it ended)
        self._n = 0

    def called(self, module: int, tid: int, end: int) -> None:
        self._calls.setdefault(module, []).append((tid, end))

    def backward(self, module: int, tid: int, start: int) -> Iterator[dict[str, Any]]:
        """The arrow to its first op there, if the call was seen."""
        calls = self._calls.get(module)
        if not calls or self._n >= FLOWS:
            return
        self._n += 1
        of, end = calls.pop()
        flow = {"pid": 1, "name": "backward", "cat": "backward", "id": self._n}
        yield {"ph": "s", **flow, "tid": of, "ts": max(end - 1, 0) / 1000}  # within the slice, which ends then
        yield {"ph": "f", "bp": "e", **flow, "tid": tid, "ts": start / 1000}


class _Track:
    """What one thread was in when an event came."""

    def __init__(self, thread: int, paths: Names, flows: _Flows) -> None:
        self._flows = flows
        self.modules, self.phases, self.runs, self.labels = range(10 * thread + 1, 10 * thread + 5)
        self._paths = paths
        self._open: list[tuple[int, int]] = []  # (path id, start)
        self._group: tuple[int, int, int] | None = None  # consecutive ops of one module in backward: (…, start, end)
        self._phase, self._phase_start, self._end = 0, 0, 0

    def names(self, thread: int, lazy: bool, labels: bool) -> Iterator[dict[str, Any]]:
        """Events that name the tracks."""
        tracks = [(self.modules, "modules and ops"), (self.phases, "phases")]
        tracks += [(self.labels, "labels")] if labels else []
        for tid, name in [*tracks, *([(self.runs, "recorded ops as they run")] if lazy else [])]:
            name = f"{name}, thread {thread}" if thread else name
            yield {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": name}}

    def at(self, start: int, ns: int, phase: int, module: int, is_op: bool) -> Iterator[dict[str, Any]]:
        """What ends as the next event begins."""
        if phase != self._phase:
            if start > self._phase_start:
                yield _slice(context.phase_name(self._phase), self._phase_start, start, self.phases)
            self._phase, self._phase_start = phase, start
        group = self._group
        if group is not None and (not is_op or self._open or group[0] != module or phase != _BACKWARD):
            yield _slice(self._paths[group[0]], group[1], group[2], self.modules)
            self._group = None
        self._end = start + ns
        if is_op and module and not self._open and phase == _BACKWARD:
            if self._group is None:
                yield from self._flows.backward(module, self.modules, start)
            self._group = (module, start if self._group is None else self._group[1], self._end)

    def enter(self, module: int, start: int) -> None:
        self._open.append((module, start))

    def exit(self, start: int) -> Iterator[dict[str, Any]]:
        if self._open:
            entered, since = self._open.pop()
            yield _slice(self._paths[entered], since, start, self.modules)
            if self._phase == _FORWARD and start > since:
                self._flows.called(entered, self.modules, start)

    def close(self) -> Iterator[dict[str, Any]]:
        """The program ended inside, or the rest did not fit."""
        if self._group is not None:
            yield _slice(self._paths[self._group[0]], self._group[1], self._group[2], self.modules)
        while self._open:
            yield from self.exit(self._end)
        if self._end > self._phase_start:
            yield _slice(context.phase_name(self._phase), self._phase_start, self._end, self.phases)


def _slice(name: str, start: int, end: int, tid: int, args: dict[str, Any] | None = None) -> dict[str, Any]:
    event: dict[str, Any] = {"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": start / 1000,
                             "dur": (end - start) / 1000}  # fmt: skip
    if args:
        event["args"] = args
    return event


def _counter(name: str, at: int, values: dict[str, float]) -> dict[str, Any]:
    return {"ph": "C", "pid": 1, "name": name, "ts": at / 1000, "args": values}


def _rate(flops: int, since: int, end: int) -> dict[str, Any]:
    """Drawn from the stretch's begin on, until the next one's."""
    return _counter("FLOP/s", since, {"FLOP/s": flops * 1e9 / max(end - since, 1)})


def _trace_events(seen: Recording, log: Log, kept: int) -> Iterator[dict[str, Any]]:
    paths, names, files = seen.names, log.labels.names, line_names(seen)
    tracks: dict[int, _Track] = {}
    every = max(1, -(-kept // COUNTER_POINTS))
    highest, flops, since, end = 0, 0, 0, 0
    flows = _Flows()
    for index in range(kept):
        kind, start, ns, sig, module, location, phase, live, thread = log.event(index)
        start -= seen.started
        track = tracks.get(thread)
        if track is None:
            track = tracks[thread] = _Track(thread, paths, flows)
            yield from track.names(thread, bool(seen.runs), bool(names))
        if kind == LABEL:  # noted at its end
            yield _slice(names[sig], start, start + ns, track.labels)
            continue
        if kind == RUN:  # at a read: it interrupts nothing of what the program itself does
            facts = _facts(seen, sig, paths[module], location, files)
            yield _slice(seen.op_name(sig), start, start + ns, track.runs, facts)
            continue
        is_op = kind in (OP, RECORD)
        yield from track.at(start, ns, phase, module, is_op)
        if is_op:
            facts = _facts(seen, sig, paths[module], location, files)
            name = seen.op_name(sig)
            yield _slice(name if kind == OP else f"{name} (recorded)", start, start + ns, track.modules, facts)
        elif kind == ENTER:
            track.enter(module, start)
        elif kind == EXIT:
            yield from track.exit(start)
        highest = max(highest, live)
        flops += (seen.flops[sig] or (0,))[0] if kind == OP else 0  # what is recorded computes elsewhere
        end = max(end, start + ns)
        if index % every == every - 1:
            yield _counter("live bytes", start, {"bytes": highest})
            highest = live
            if end > since:
                yield _rate(flops, since, end)
                flops, since = 0, end
    if end > since:
        yield _rate(flops, since, end)
    yield _rate(0, end, end)
    for track in tracks.values():
        yield from track.close()


def _facts(seen: Recording, sig: int, path: str, location: int, files: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if path:
        facts["module"] = path
    place = context.location(location) if location else None
    if place is not None:
        facts["line"] = f"{files.get(place[0], place[0])}:{place[1]}"
    cost = seen.flops[sig]
    if cost and cost[0]:
        facts["flops"] = cost[0]
    if seen.shapes and sig in seen.shapes:
        shapes = seen.shapes
        facts["inputs"], facts["outputs"] = text(shapes[sig].inputs), text(shapes[sig].outputs)
    return facts
