"""Files made from a profile: JSON and CSV of the report, and a trace for Perfetto or chrome://tracing.

Every file is written under a temporary name beside the target and renamed when complete: nothing is half-written.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from mindtorch._ext import context

if TYPE_CHECKING:
    from mindtorch.profile.collect import Profiler

CSV_COLUMNS = (
    "table", "name", "class", "depth", "calls", "self_s", "total_s", "self_flops", "flops", "macs", "bytes",
    "self_params", "params", "peak_bytes", "ops", "category", "file", "line", "function", "source",
)  # fmt: skip

#: Kinds of events: an op, three transitions, a lazy op as it is recorded, and as it runs.
OP, ENTER, EXIT, PHASE, RECORD, RUN = range(6)
#: Memory is drawn with at most this many points; each keeps the highest value of its stretch.
MEMORY_POINTS = 4000


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    """A text file that appears under its name only when the block ends well. OSError if it can't be written."""
    target = os.fspath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        if os.path.isdir(target):
            raise IsADirectoryError(21, "Is a directory", target)
        with open(target, "w", encoding="utf-8") as file:  # a pipe or a terminal: nothing to rename
            yield file
        return
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        with open(temporary, "xb") as raw:
            packed = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) if target.endswith(".gz") else raw
            with io.TextIOWrapper(packed, encoding="utf-8", newline="") as file:
                yield file
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_json(report: dict[str, Any], path: str | os.PathLike[str]) -> None:
    with atomic(path) as file:
        json.dump(report, file, indent=1)
        file.write("\n")


def write_csv(report: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """All tables in one file, told apart by the first column: phase, module, op, line."""
    with atomic(path) as file:
        writer = csv.DictWriter(file, CSV_COLUMNS, restval="", extrasaction="ignore")
        writer.writeheader()
        for phase in report["phases"]:
            writer.writerow({**phase, "table": "phase", "self_s": phase["time_s"], "total_s": phase["time_s"]})
        for module in report["modules"]:
            writer.writerow({**module, "table": "module", "name": module["path"]})
        for op in report["ops"]:
            writer.writerow({**op, "table": "op"})
        for line in report["lines"]:
            writer.writerow({**line, "table": "line", "name": f"{line['file']}:{line['line']}"})


def write_trace(profiler: Profiler, path: str | os.PathLike[str], max_events: int = 400_000) -> int:
    """Chrome trace JSON, about 100 bytes an event (``.gz`` is compressed); returns how many events did not fit.

    One track of module slices with the ops inside, one of phases, one of the runs of lazy ops if there are any, and the
    live bytes. Times are as measured, the
    interception included. The first `max_events` events are kept.
    """
    collector = profiler.collector
    kept = min(collector.event_count(), max_events)
    dropped = collector.dropped_events + collector.event_count() - kept
    with atomic(path) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        tracks = [(1, "modules and ops"), (2, "phases")]
        if collector.runs:
            tracks.append((3, "lazy ops as they run"))
        for tid, name in tracks:
            meta = {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": name}}
            file.write(json.dumps(meta, separators=(",", ":")) + ",\n")
        for event in _trace_events(profiler, kept):
            file.write(json.dumps(event, separators=(",", ":")) + ",\n")
        meta = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "genie profile"}}
        file.write(json.dumps(meta, separators=(",", ":")))
        file.write('\n],"otherData":' + json.dumps({"dropped_events": dropped}) + "}\n")
    return dropped


def _slice(name: str, start: int, end: int, tid: int, args: dict[str, Any] | None = None) -> dict[str, Any]:
    event: dict[str, Any] = {"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": start / 1000,
                             "dur": (end - start) / 1000}  # fmt: skip
    if args:
        event["args"] = args
    return event


def _trace_events(profiler: Profiler, kept: int) -> Iterator[dict[str, Any]]:
    collector: Any = profiler.collector
    origin = collector.started
    open_modules: list[tuple[int, int]] = []  # (path id, start)
    group: tuple[int, int, int] | None = None  # consecutive ops of one module in backward: (path id, start, end)
    phase, phase_start, end = 0, 0, 0
    paths: dict[int, str] = {0: ""}
    every = max(1, kept // MEMORY_POINTS)
    highest = 0

    def path(id: int) -> str:
        if id not in paths:
            paths[id] = context.module_path(id)
        return paths[id]

    for index in range(kept):
        kind, start, ns, sig, module, location, event_phase, live = collector.event(index)
        start -= origin
        if kind == RUN:  # at a read: it interrupts nothing of what the program itself does
            facts = _facts(collector, sig, path(module), location)
            yield _slice(collector.sig_ops[sig].name, start, start + ns, 3, facts)
            continue
        if event_phase != phase:
            if start > phase_start:
                yield _slice(context.phase_name(phase), phase_start, start, 2)
            phase, phase_start = event_phase, start
        is_op = kind in (OP, RECORD)
        if group is not None and (not is_op or open_modules or group[0] != module or phase != 2):
            yield _slice(path(group[0]), group[1], group[2], 1)
            group = None
        end = start + ns
        if is_op:
            if module and not open_modules and phase == 2:
                group = (module, start if group is None else group[1], end)
            facts = _facts(collector, sig, path(module), location)
            name = collector.sig_ops[sig].name
            yield _slice(name if kind == OP else f"{name} (recorded)", start, end, 1, facts)
        elif kind == ENTER:
            open_modules.append((module, start))
        elif kind == EXIT and open_modules:
            entered, since = open_modules.pop()
            yield _slice(path(entered), since, start, 1)
        highest = max(highest, live)
        if index % every == every - 1:
            yield {"ph": "C", "pid": 1, "name": "live bytes", "ts": start / 1000, "args": {"bytes": highest}}
            highest = live
    if group is not None:
        yield _slice(path(group[0]), group[1], group[2], 1)
    while open_modules:  # the program ended inside, or the rest did not fit
        entered, since = open_modules.pop()
        yield _slice(path(entered), since, end, 1)
    if end > phase_start:
        yield _slice(context.phase_name(phase), phase_start, end, 2)


def _facts(collector: Any, sig: int, path: str, location: int) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if path:
        facts["module"] = path
    place = context.location(location) if location else None
    if place is not None:
        facts["line"] = f"{os.path.basename(place[0])}:{place[1]}"
    cost = collector.sig_flops[sig]
    if cost and cost[0]:
        facts["flops"] = cost[0]
    return facts
