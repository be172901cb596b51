"""The report: one plain dict of seconds, bytes and FLOPs, in which nothing is counted twice.

Every nanosecond between start and stop is in exactly one of: start-up (imports and compiling, also in the middle of the
run, and what came before the first call of a model; some of that was waiting: `startup.waits`), warm-up, interception
(`overhead_s`), and the rows of `ops` (equally: of `modules`, of `phases`), whose self times sum to `totals.time_s`.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from mindtorch._ext import context
from mindtorch._ext.labels import IN_BACKWARD, RECOMPUTING
from mindtorch.profile.cost import call_shapes
from mindtorch.profile.report.columns import OPS, PHASES, SHAPES, Sums, sums, values
from mindtorch.profile.report.detail import detail
from mindtorch.profile.report.export import SCHEMA_VERSION
from mindtorch.profile.report.findings import findings
from mindtorch.profile.report.forecast import Forecast
from mindtorch.profile.report.joules import add_energy
from mindtorch.profile.report.lines import line_rows
from mindtorch.profile.report.made_of import Labels, pattern_rows
from mindtorch.profile.report.phase_parts import part_rows
from mindtorch.profile.report.recording import LOADER, WORKERS, Recording, stage_tables
from mindtorch.profile.report.rows import LOCATION, PHASE, SIG, Row, grouped, told_as
from mindtorch.profile.report.times import quartiles, seconds
from mindtorch.profile.report.tree import module_rows
from mindtorch.profile.report.unseen import unseen
from mindtorch.profile.report.warn import warnings

#: Of an estimate for a GPU or NPU: what torch gave out, what it got from the device, what the device holds in all.
DEVICE_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes")
_IMPORTS = 10  # packages named
_WAITED = {"children": "child processes", "threads": "threads", "network": "the network", "workers": WORKERS,
           "files": "files"}  # fmt: skip
_PHASES = {name: number for number, name in enumerate(context.PHASES)}
_LOADING = _PHASES["data"]


def build_report(seen: Recording, **facts: Any) -> dict[str, Any]:
    """Sum up a run that has ended. `facts` replace or add top-level entries, as ``command=[...], exit_code=1``."""
    main = seen.reached
    stage = seen.stages[main]
    tables, waited = stage_tables(seen)
    waits = {name: _by_what(found) for name, found in waited.items()}
    every = told_as(tables[main])
    rows, by_phase, labels = grouped(every, SIG), grouped(every, SIG, PHASE), _labels(seen)
    forecast = _forecast(seen, stage.peak_bytes)
    op_rows = [row for row in rows if row.sig]
    uncounted = _uncounted(seen, op_rows)
    startup = _startup(seen, tables, waits)
    time_ns = sum(row.ns for row in rows)
    if seen.gpu is not None:
        seen.gpu.within(time_ns)
    spent = time_ns + stage.overhead_ns
    share = time_ns / spent if spent else 1.0  # of the time of the run, what is the program's own
    totals = _totals(seen, op_rows, time_ns, sum(entry["calls"] for entry in uncounted))
    placed, made_of = list(map(Row._make, every.tolist())), Labels(seen.samples, seen.names)
    patterns, failed = pattern_rows(seen, placed, made_of, forecast)
    parts, parts_failed = part_rows(seen, map(Row._make, tables[main].tolist()), forecast, made_of.flows)
    report: dict[str, Any] = {
        **_head(seen, rows),
        "startup": startup,
        "totals": totals,
        "steps": _steps(seen, _seconds(tables, "warmup", main)),
        "phases": _phases(seen, by_phase, forecast, stage.launched),
        "parts": parts,
        "modules": module_rows(seen, every, forecast, share),
        "ops": _ops(seen, rows, forecast, waits[main] + _for_data(seen, by_phase)),
        "patterns": patterns,
        "memory": seen.memory,
        "labels": labels,
        "waits": _waits(seen, labels, waits[main], by_phase),
        "lines": line_rows(seen, grouped(every, SIG, LOCATION)),
        "detail": detail(seen, every),
        "uncounted": uncounted,
        "unseen": unseen(seen.compiled, seen.children, seen.unseen_threads),
        "assumed": list(seen.assumed),
        **{name: list(seen.left_alone.get(name, ())) for name in ("not_written", "not_removed", "not_held_back")},
        "warnings": warnings(seen, uncounted, by_phase, totals["macs"], startup["macs"]) + failed + parts_failed,
        "interrupted": seen.interrupted,
        "exit_code": seen.exit_code,
    }
    shapes = _shapes(seen, rows, seen.shapes) if seen.shapes else None
    optional = {"shapes": shapes, "generation": seen.generated(main), "host": seen.host, "cluster": seen.cluster}
    report |= {name: found for name, found in optional.items() if found is not None}
    if forecast is not None:
        totals |= {"predicted_s": forecast.seconds(rows), **forecast.totals(by_phase, stage.launched)}
        report["roofline"] = forecast.summary(rows)
        report["steps"] |= _of_one_step(forecast, stage.repeated)
    report["findings"] = findings(seen, report, placed, forecast, made_of)
    report.update(facts)
    if forecast is not None:  # by what the facts say of tokens
        add_energy(report, forecast, by_phase, stage, _PHASES)
    return report


def _forecast(seen: Recording, peak_bytes: int) -> Forecast | None:
    """Times on the run's target; None without one."""
    if seen.target is None:
        return None
    estimated = seen.mode == "estimate"
    return Forecast(
        seen.target, seen.works, 0 if estimated else peak_bytes, seen.precision,
        estimated=estimated, fused=seen.fused, on_host=seen.on_host,
    )  # fmt: skip


def _head(seen: Recording, rows: list[Row]) -> dict[str, Any]:
    """What ran where."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"mindtorch": _version(), "torch": str(torch.__version__), "python": platform.python_version()},
        "mode": seen.mode,
        "device": seen.device,
        "command": list(sys.argv),
        "lazy": _lazy(seen, rows),
        "npu": seen.npu,
        "gpu": None if seen.gpu is None else seen.gpu.report(),
        "threads": [
            {"name": name, "count": work.threads, "ops": work.ops, "self_s": work.ns / 1e9}
            for name, work in seen.threads
        ],
        "model": seen.parameters.models[0] if seen.parameters.models else None,
        "models": seen.parameters.models,
    }


def _of_one_step(forecast: Forecast, repeated: Any) -> dict[str, float]:
    if repeated is None:
        return {}
    about = forecast.totals(repeated.rows, repeated.launched)
    return {key: about[key] / repeated.steps for key in ("about_s", "about_low_s", "about_high_s")}


def _totals(seen: Recording, op_rows: list[Row], time_ns: int, missing: int) -> dict[str, Any]:
    """missing: calls without a FLOP formula."""
    counted = sum(row.calls for row in op_rows if seen.flops[row.sig] is not None and not _op(seen, row).is_free)
    macs = sum(_cost(seen, row)[1] for row in op_rows)
    return {
        "ops": sum(row.calls for row in op_rows),
        "flops": sum(_cost(seen, row)[0] for row in op_rows),
        "macs": macs,
        "host_flops": sum(_cost(seen, row)[0] for row in op_rows if row.sig in seen.on_host),
        "product_flops": 2 * macs,
        "params": seen.parameters.total,
        "trainable_params": seen.parameters.trainable,
        "peak_bytes": seen.stages[seen.reached].peak_bytes,
        "time_s": time_ns / 1e9,
        "overhead_s": sum(part.overhead_ns for name, part in seen.stages.items() if name != "rest") / 1e9,
        "wall_s": ((seen.frozen or seen.stopped) - seen.started) / 1e9,
        "queued_s": seen.queued * time_ns / 1e9,
        "counted_ops": counted,
        "coverage": counted / (counted + missing) if counted + missing else 1.0,
        # Where there is a device with an allocator; of the whole run.
        **{key: seen.memory[key] for key in DEVICE_PEAKS if seen.memory is not None and key in seen.memory},
    }


def _startup(seen: Recording, tables: dict[str, Any], waits: dict[str, Counter[str]]) -> dict[str, Any]:
    """What ran before the stage that the report is about."""
    stages = [name for name in ("import", "init") if name != seen.reached and name in tables]
    waited: Counter[str] = sum((waits[name] for name in stages), Counter())
    rows = [row for name in stages for row in grouped(tables[name], SIG) if row.sig]
    return {
        "import_s": seen.imported_ns / 1e9,
        "imports": _imports(seen),
        "compile_s": seen.compiled_ns / 1e9,
        "init_s": sum(_seconds(tables, name, seen.reached) for name in stages),
        "waits": [{"for": what, "self_s": ns / 1e9} for what, ns in waited.most_common()],
        "ops": sum(row.calls for row in rows),
        "macs": sum(_cost(seen, row)[1] for row in rows),
        "peak_bytes": max((seen.stages[name].peak_bytes for name in stages), default=0),
    }


def _by_what(waits: Counter[tuple[str, int]]) -> Counter[str]:
    """Nanoseconds by what was waited for, of all lines."""
    found: Counter[str] = Counter()
    for (what, _), ns in waits.items():
        found[what] += ns
    return found


def _op(seen: Recording, row: Row) -> Any:
    return seen.ops[row.sig]


def _cost(seen: Recording, row: Row) -> tuple[int, int]:
    """(FLOPs, MACs) of its calls; 0 without a formula."""
    flops, macs = seen.flops[row.sig] or (0, 0)
    return row.calls * flops, row.calls * macs


def _lazy(seen: Recording, rows: list[Row]) -> dict[str, Any] | None:
    """Ops on lazy tensors: how many were recorded, how many ran and for how long; None without any."""
    places = seen.stages[seen.reached].places
    if not places.lazy_ops and not places.lazy_runs:
        return None
    runs = {sig for entry in seen.runs for sig in (entry.sig, entry.unseen)}
    return {
        "ops": places.lazy_ops,
        "runs": places.lazy_runs,
        "run_s": sum(row.ns for row in rows if row.sig in runs) / 1e9,
        "executor": seen.executor,
    }


def _seconds(tables: dict[str, Any], stage: str, main: str) -> float:
    if stage == main or stage not in tables:
        return 0.0
    return sum(row.ns for row in grouped(tables[stage], SIG)) / 1e9


def _steps(seen: Recording, warmup_s: float) -> dict[str, Any]:
    """Iterations: how many ended, how many of them are left out as warm-up and what those cost, times of the others."""
    count, times = len(seen.marks), seen.step_ns
    return {"count": count, "warmup": min(seen.warmup, count) if seen.reached != "warmup" else 0, "warmup_s": warmup_s,
            "time_s": seconds(times), "first_s": times[0] / 1e9 if times else None,
            "quartiles_s": (quartiles(times) / 1e9).tolist() if times else None,
            "running_quartiles_s": (quartiles(seen.running_ns) / 1e9).tolist() if times and seen.running_ns else None,
            "threads_aside": seen.loops_aside}  # fmt: skip


def _phases(
    seen: Recording, rows: list[Row], forecast: Forecast | None, launched: Mapping[int, float]
) -> list[dict[str, Any]]:
    found = sums(seen, rows, forecast, lambda row: row.phase)
    if forecast is not None:
        for phase, entry in found.items():
            entry.times = forecast.totals((row for row in rows if row.phase == phase), launched)
    return [
        {
            "name": name,
            **values(PHASES, found[phase], forecast is not None),
            "peak_bytes": seen.phase_peaks[phase],
        }
        for name in ("data", "prefill", "decode", "forward", "backward", "optimizer", "other")  # as they come
        if (phase := _PHASES[name]) in found
    ]


def _ops(seen: Recording, rows: list[Row], forecast: Forecast | None, waits: Counter[str]) -> list[dict[str, Any]]:
    """By op name, longest first, with the time between ops as "(python)", but for what was spent waiting.

    In an estimate it is "(launch)": the device waits for the host, whose time this is.
    """
    own = ("(launch)", "launch") if seen.mode == "estimate" else ("(python)", "python")

    def kind(row: Row) -> tuple[str, str]:
        op = seen.ops[row.sig]
        return own if op is None else (op.name, op.category)

    found = sums(seen, rows, forecast, kind)
    for sig, (ns, kernels) in ({} if seen.gpu is None else seen.gpu.ops).items():
        op = seen.ops[sig]
        entry = found.setdefault(own if op is None else (op.name, op.category), Sums())
        entry.device_ns, entry.kernels = entry.device_ns + ns, entry.kernels + kernels
    between = found.get(own, Sums())
    for what, ns in waits.items():
        waited = min(ns, between.ns)
        between.ns, between.python_ns = between.ns - waited, between.python_ns - waited
        found[f"(waiting for {what})", "waiting"] = Sums(ns=waited, python_ns=waited)
    return [
        {"name": name, "category": category, **values(OPS, of, forecast is not None)}
        for (name, category), of in sorted(found.items(), key=_longest)
    ]


def _longest(item: tuple[Any, Sums]) -> int:
    return -item[1].ns


def _shapes(seen: Recording, rows: list[Row], found: Mapping[int, call_shapes.Shaped]) -> list[dict[str, Any]]:
    """By op and the shapes of its inputs and outputs, longest first."""
    mine = [row for row in rows if row.sig in found]
    table = sums(seen, mine, None, lambda row: (_op(seen, row).name, found[row.sig].inputs, found[row.sig].outputs))
    return [
        {
            "name": name,
            "inputs": call_shapes.facts(inputs),
            "outputs": call_shapes.facts(outputs),
            **values(SHAPES, of, False),
        }
        for (name, inputs, outputs), of in sorted(table.items(), key=_longest)
    ]


def _labels(seen: Recording) -> list[dict[str, Any]]:
    """What `record_function` names, longest first; what is within another one counts in both."""
    main = seen.reached
    first_batch = main == "main" and not (seen.warmup or seen.announced) and "init" in seen.stages
    before = seen.stages["init"].labels if first_batch else {}
    found = []
    for name, label in seen.stages[main].labels.items():
        if name in before:  # the loop's first batch: see stage_tables
            label = label.plus(before[name])
        found.append({"name": name, "calls": label.calls, "total_s": label.ns / 1e9, "min_s": label.least / 1e9,
                      "max_s": label.most / 1e9})  # fmt: skip
    return sorted(found, key=lambda row: -row["total_s"])


def _waits(seen: Recording, labels: list[dict[str, Any]], waits: Counter[str], by_phase: list[Row]) -> dict[str, float]:
    """Seconds of what is no work of the model: loading data (the phase), what backward calls."""
    return {
        "data_s": sum(row.ns for row in by_phase if row.phase == _LOADING) / 1e9,
        "recompute_s": sum(row["total_s"] for row in labels if row["name"] == RECOMPUTING),
        "in_backward_s": sum(row["total_s"] for row in labels if row["name"] == IN_BACKWARD),
        "compile_s": seen.compiled_ns / 1e9,
        **{f"{key}_s": waits[what] / 1e9 for key, what in _WAITED.items()},
    }


def _for_data(seen: Recording, by_phase: list[Row]) -> Counter[str]:
    """Of a measured run: what a DataLoader took between ops. An estimate's is launching what makes a batch."""
    ns = sum(row.ns for row in by_phase if row.phase == _LOADING and not row.sig)
    return Counter({LOADER: ns} if ns and seen.mode == "measured" else {})


def _imports(seen: Recording) -> list[dict[str, Any]]:
    """The packages that took longest to import, with what they imported in turn; none of ours, which no program names.

    within: the package of which that was most a part; within_s: how much of it.
    """
    found = []
    others = [item for item in seen.imports.items() if item[0] != "mindtorch"]
    for name, ns in sorted(others, key=lambda item: -item[1])[:_IMPORTS]:
        outer = {outer: part for (inner, outer), part in seen.imports_within.items() if inner == name}
        most = max(outer, key=outer.__getitem__, default="")
        found.append({"name": name, "total_s": ns / 1e9, "within": most, "within_s": outer.get(most, 0) / 1e9})
    return [row for row in found if row["total_s"]]


def _uncounted(seen: Recording, op_rows: list[Row]) -> list[dict[str, Any]]:
    """Ops that compute something we have no formula for, longest first."""
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in op_rows:
        if seen.flops[row.sig] is None:
            table[_op(seen, row).name][0] += row.calls
            table[_op(seen, row).name][1] += row.ns
    for row in op_rows:  # the time of an op that was recorded without a formula, and ran later
        op = _op(seen, row)
        if op.is_run and op.name in table:
            table[op.name][1] += row.ns
    ordered = sorted(table.items(), key=lambda item: -item[1][1])
    return [{"name": name, "calls": calls, "self_s": ns / 1e9} for name, (calls, ns) in ordered]


def _version() -> str:
    try:
        return importlib.metadata.version("mindtorch-genie")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
