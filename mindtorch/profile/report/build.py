"""The report: one plain dict of seconds, bytes and FLOPs, in which nothing is counted twice.

Every nanosecond between start and stop is in exactly one of: start-up (also imports and compiling in the middle of the
run), warm-up, interception (`overhead_s`), and the rows of `ops` (equally: of `modules`, of `phases`), whose self times
sum to `totals.time_s`.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mindtorch._ext import context
from mindtorch._ext.labels import RECOMPUTING
from mindtorch.base import sourceline
from mindtorch.engine.execute import tensors
from mindtorch.profile.cost import shapes
from mindtorch.profile.cost.forecast import Forecast
from mindtorch.profile.report.rows import BYTES, CALLS, LOCATION, PHASE, SIG, Row, as_table, grouped
from mindtorch.profile.report.times import seconds
from mindtorch.profile.report.tree import module_rows

if TYPE_CHECKING:
    from mindtorch.profile.measure.collect import Profiler

SCHEMA_VERSION = 1
_MATTERS = 0.05  # of the peak
_DATA = "enumerate(DataLoader)"  # so do torch's data loaders name a wait for a batch


def build_report(profiler: Profiler, **facts: Any) -> dict[str, Any]:
    """Sum up a profile that has ended. `facts` replace or add top-level entries, as ``command=[...], exit_code=1``."""
    main, stages, overhead_ns = _stages(profiler)
    every = stages[main]
    collector = profiler.collector
    rows, by_phase, labels = grouped(every, SIG), grouped(every, SIG, PHASE), _labels(profiler, main)
    forecast = None
    if profiler.target is not None:
        forecast = Forecast(profiler.target, profiler.works(), footprint=profiler.parts[main][3])
    op_rows = [(row, _cost(profiler, row)) for row in rows if row[0]]
    told = [part for name, part in profiler.parts.items() if name in ("warmup", "main")] if profiler.announced else []
    profiler.book.forget_all_but({path for part in told or profiler.parts.values() for path in part[2]})
    params, _ = profiler.book.total()
    counted = sum(row[4] for row, cost in op_rows if cost is not None and not _op(profiler, row).is_free)
    uncounted = _uncounted(profiler, op_rows)
    missing = sum(entry["calls"] for entry in uncounted)
    before = [stages[name] for name in ("import", "init") if name != main and name in stages]
    early = [(row, _cost(profiler, row)) for stage in before for row in grouped(stage, SIG) if row[0]]
    macs, early_macs = (sum(row[4] * cost[1] for row, cost in found if cost) for found in (op_rows, early))
    time_ns = sum(row[5] for row in rows)
    spent = time_ns + profiler.parts[main][1]
    share = time_ns / spent if spent else 1.0  # of the time of the run, what is the program's own
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "tool": {"mindtorch": _version(), "torch": str(torch.__version__), "python": platform.python_version()},
        "mode": "measured",
        "device": ", ".join(_devices(profiler, main)),
        "command": list(sys.argv),
        "lazy": _lazy(profiler, main, rows),
        "npu": profiler.npu.report() if profiler.npu is not None else None,
        "threads": [
            {"name": name, "count": work.threads, "ops": work.ops, "self_s": work.ns / 1e9}
            for name, work in profiler.thread_work()
        ],
        "model": profiler.book.main(),
        "startup": {
            "import_s": _seconds(stages, "import", main) + collector.imported / 1e9,
            "compile_s": collector.compiled / 1e9,
            "init_s": _seconds(stages, "init", main),
            "ops": sum(row[4] for row, _ in early),
            "macs": early_macs,
        },
        "totals": {
            "ops": sum(row[4] for row, _ in op_rows),
            "flops": sum(row[4] * cost[0] for row, cost in op_rows if cost),
            "macs": macs,
            "params": params,
            "trainable_params": profiler.book.trainable(),
            "peak_bytes": profiler.parts[main][3],
            "time_s": time_ns / 1e9,
            "overhead_s": overhead_ns / 1e9,
            "wall_s": ((profiler.frozen_ns or collector.stopped) - collector.started) / 1e9,
            "counted_ops": counted,
            "coverage": counted / (counted + missing) if counted + missing else 1.0,
        },
        "steps": _steps(profiler, stages, main, share),
        "phases": _phases(profiler, by_phase, forecast),
        "modules": module_rows(profiler, main, every, forecast, share),
        "ops": _ops(profiler, rows, forecast),
        "memory": profiler.held_at_peak(main),
        "labels": labels,
        "waits": _waits(profiler, labels),
        "lines": _lines(profiler, grouped(every, SIG, LOCATION)),
        "uncounted": uncounted,
        "unseen": _unseen(profiler),
        "assumed": [],
        "warnings": _warnings(profiler, main, uncounted, by_phase, macs, early_macs),
        "interrupted": profiler.interrupted,
        "exit_code": profiler.exit_code,
    }
    if found := profiler.shapes():
        report["shapes"] = _shapes(profiler, rows, found)
    if forecast is not None:
        report["totals"]["predicted_s"] = forecast.seconds(rows)
        report["roofline"] = forecast.summary(rows)
    report.update(facts)
    return report


def _stages(profiler: Profiler) -> tuple[str, dict[str, Any], int]:
    """(name of the stage reported, the tables of rows by stage, interception in all stages, ns)."""
    # A run that called no module, or ended early, is reported from the furthest stage that it reached.
    main = next(name for name in ("main", "warmup", "init", "import") if name in profiler.parts)
    stages = {name: as_table(part[0]) for name, part in profiler.parts.items()}
    first = "warmup" if "warmup" in stages else "main"
    if not profiler.announced and main in ("warmup", "main") and "init" in stages:
        # What a line does before the first call of a model, and does again later, is the loop's: its first batch.
        lines = np.unique(np.concatenate([stages[name][:, LOCATION] for name in ("warmup", "main") if name in stages]))
        again = np.isin(stages["init"][:, LOCATION], lines[lines != 0])
        stages[first] = np.concatenate([stages["init"][again], stages[first]])
        stages["init"] = stages["init"][~again]
    return main, stages, sum(p[1] for name, p in profiler.parts.items() if name != "rest")


def _op(profiler: Profiler, row: Row) -> Any:
    return profiler.collector.sig_ops[row[0]]


def _cost(profiler: Profiler, row: Row) -> tuple[int, int] | None:
    """(FLOPs, MACs) of one call; None without a formula."""
    return profiler.collector.sig_flops[row[0]]


def _devices(profiler: Profiler, main: str) -> list[str]:
    """Where the program's tensors are, the device of most ops first."""
    places = profiler.places[main]
    plain = ["cuda" if torch.cuda.is_initialized() else "cpu"]
    lazy = [f"{tensors.DEVICE_TYPE}:{index}" for index in places.lazy_devices]
    if profiler.npu is not None and profiler.npu.devices:
        return profiler.npu.devices + lazy  # what is staged runs on plain tensors, too
    if not lazy or not places.plain_ops:
        return lazy or plain
    return lazy + plain if places.lazy_ops >= places.plain_ops else plain + lazy


def _lazy(profiler: Profiler, main: str, rows: list[Row]) -> dict[str, Any] | None:
    """Ops on lazy tensors: how many were recorded, how many ran and for how long; None without any."""
    places = profiler.places[main]
    if not places.lazy_ops and not places.lazy_runs:
        return None
    runs = {sig for entry in profiler.collector.runs.values() for sig in (entry.sig, entry.unseen)}
    return {
        "ops": places.lazy_ops,
        "runs": places.lazy_runs,
        "run_s": sum(row[5] for row in rows if row[0] in runs) / 1e9,
        "executor": str(tensors.executor().device),
    }


def _seconds(stages: dict[str, Any], stage: str, main: str) -> float:
    if stage == main or stage not in stages:
        return 0.0
    return sum(row[5] for row in grouped(stages[stage], SIG)) / 1e9


def _steps(profiler: Profiler, stages: dict[str, Any], main: str, share: float) -> dict[str, Any]:
    """Iterations: how many ended, how many of them are left out as warm-up and what those cost, times of the others."""
    warmup, times = _seconds(stages, "warmup", main), profiler.step_times()
    return {"count": len(profiler.marks), "warmup": min(profiler.warmup, len(profiler.marks)), "warmup_s": warmup,
            "time_s": seconds(times, share), "first_s": times[0] * share / 1e9 if times else None}  # fmt: skip


def _phases(profiler: Profiler, rows: list[Row], forecast: Forecast | None) -> list[dict[str, Any]]:
    found = []
    for phase in (4, 5, 1, 2, 3, 0):  # as they come: prefill, decode, forward, backward, optimizer, other
        mine = [(row, _cost(profiler, row)) for row in rows if row[PHASE] == phase]
        if not mine:
            continue
        found.append({
            "name": context.phase_name(phase),
            "ops": sum(row[4] for row, _ in mine if row[0]),
            "time_s": sum(row[5] for row, _ in mine) / 1e9,
            "flops": sum(row[4] * cost[0] for row, cost in mine if cost),
            "macs": sum(row[4] * cost[1] for row, cost in mine if cost),
            "peak_bytes": profiler.phase_peaks[phase],
        })  # fmt: skip
        if forecast is not None:
            found[-1]["predicted_s"] = forecast.seconds(row for row, _ in mine)
    return found


def _ops(profiler: Profiler, rows: list[Row], forecast: Forecast | None) -> list[dict[str, Any]]:
    """By op name, longest first, with the time between ops as "(python)"."""
    table: dict[str, dict[str, Any]] = {}
    for row in rows:
        op, cost = _op(profiler, row), _cost(profiler, row)
        name = "(python)" if op is None else op.name
        entry = table.setdefault(name, {
            "name": name, "calls": 0, "self_s": 0, "total_s": 0, "flops": 0, "macs": 0, "bytes": 0,
            "category": "python" if op is None else op.category,
        })  # fmt: skip
        entry["calls"] += row[4]
        entry["self_s"] += row[5]
        entry["bytes"] += row[6]
        if forecast is not None:
            entry["predicted_s"] = entry.get("predicted_s", 0.0) + forecast.seconds([row])
        if cost:
            entry["flops"] += row[4] * cost[0]
            entry["macs"] += row[4] * cost[1]
    for entry in table.values():
        entry["self_s"] /= 1e9
        entry["total_s"] = entry["self_s"]  # ops are leaves: what one calls below the dispatcher is its own
    return sorted(table.values(), key=lambda entry: -entry["self_s"])


def _lines(profiler: Profiler, rows: list[Row]) -> list[dict[str, Any]]:
    """By source line of the user's program, longest first: its ops, and what Python does between them."""
    table: dict[tuple[str, int, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in rows:
        cost = _cost(profiler, row)
        entry = table[context.location(row[LOCATION]) or ("", 0, "")]
        entry[0] += row[4] if row[SIG] else 0
        entry[1] += row[5]
        entry[2] += row[4] * cost[0] if cost else 0
        entry[3] += 0 if row[SIG] else row[5]
    return [
        {**sourceline.facts(where), "calls": calls, "self_s": ns / 1e9, "flops": flops, "python_s": python / 1e9}
        for where, (calls, ns, flops, python) in sorted(table.items(), key=lambda item: -item[1][1])
        if ns or calls
    ]


def _shapes(profiler: Profiler, rows: list[Row], found: dict[int, shapes.Shaped]) -> list[dict[str, Any]]:
    """By op and the shapes of its inputs and outputs, longest first."""
    table: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        if row[SIG] in found:
            cost, call = _cost(profiler, row), found[row[SIG]]
            entry = table[_op(profiler, row).name, call.inputs, call.outputs]
            entry[0] += row[4]
            entry[1] += row[5]
            entry[2] += row[4] * cost[0] if cost else 0
    return [
        {"name": name, "inputs": shapes.facts(inputs), "outputs": shapes.facts(outputs), "calls": calls,
         "self_s": ns / 1e9, "flops": flops}
        for (name, inputs, outputs), (calls, ns, flops) in sorted(table.items(), key=lambda item: -item[1][1])
    ]  # fmt: skip


def _labels(profiler: Profiler, main: str) -> list[dict[str, Any]]:
    """What `record_function` names, longest first; what is within another one counts in both."""
    mine = profiler.labels.get(main, {})
    before = profiler.labels.get("init", {}) if main == "main" and not profiler.warmup else {}
    found = []
    for name, (calls, ns, least, most) in mine.items():
        if name in before:  # the loop's first batch: see _stages
            calls, ns = calls + before[name][0], ns + before[name][1]
            least, most = min(least, before[name][2]), max(most, before[name][3])
        found.append({"name": name, "calls": calls, "total_s": ns / 1e9, "min_s": least / 1e9, "max_s": most / 1e9})
    return sorted(found, key=lambda row: -row["total_s"])


def _waits(profiler: Profiler, labels: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds of what is no work of the model: waiting for a DataLoader, running forward passes again in backward."""
    return {
        "data_s": sum(row["total_s"] for row in labels if row["name"].startswith(_DATA)),
        "recompute_s": sum(row["total_s"] for row in labels if row["name"] == RECOMPUTING),
        "compile_s": profiler.collector.compiled / 1e9,
    }


def _uncounted(profiler: Profiler, op_rows: list[tuple[Row, Any]]) -> list[dict[str, Any]]:
    """Ops that compute something we have no formula for, longest first."""
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row, cost in op_rows:
        if cost is None:
            table[_op(profiler, row).name][0] += row[4]
            table[_op(profiler, row).name][1] += row[5]
    for row, _ in op_rows:  # the time of an op that was recorded without a formula, and ran later
        op = _op(profiler, row)
        if op.is_run and op.name in table:
            table[op.name][1] += row[5]
    ordered = sorted(table.items(), key=lambda item: -item[1][1])
    return [{"name": name, "calls": calls, "self_s": ns / 1e9} for name, (calls, ns) in ordered]


def _warnings(profiler: Profiler, main: str, uncounted: list[dict[str, Any]], rows: list[Row], macs: int,
              early_macs: int) -> list[str]:  # fmt: skip
    found = []
    if uncounted:
        calls = sum(entry["calls"] for entry in uncounted)
        names = ", ".join(entry["name"] for entry in uncounted[:5])
        more = f" and {len(uncounted) - 5} more" if len(uncounted) > 5 else ""
        found.append(f"FLOPs leave out {calls} call{'s' * (calls != 1)} of ops without a formula: {names}{more}")
    if profiler.collector.other_thread:
        found.append(
            "modules ran in threads that began before the profile or that no Python code started; what those "
            "did is not counted"
        )
    if profiler.compiled:
        found.append("compiled functions ran: kernels that their backend made count as time between ops, without FLOPs")
    if profiler.torch_profiles:
        times = f"torch's own profiler ({profiler.torch_profiles} ×)"
        found.append(
            f"the program ran {times}: what that shows has every op twice, and PythonDispatchMode, as ops "
            "pass through this one first; in a plain run it has them once"
        )
    if sums := _gradient_sums(profiler, rows):
        calls, nbytes = sums
        found.append(
            f"of the add calls in backward, up to {calls} ({nbytes:,} bytes) sum the gradients of what is "
            "used more than once; a plain run does some of them in place (add_): its peak may be one of them "
            "lower"
        )
    if profiler.children:
        names = ", ".join(f"{name} ×{n}" for name, n in list(profiler.children.items())[:5])
        more = f" and {len(profiler.children) - 5} more" if len(profiler.children) > 5 else ""
        found.append(
            f"NOT COUNTED: what child processes ran ({names}{more}); to see that, run them under genie: "
            "genie profile in place of python, torchrun … --no-python genie profile SCRIPT"
        )
    if early_macs > (early_macs + macs) // 100:
        found.append(
            f"{early_macs:,} multiply-adds (MACs) ran before the first call of a module and count as "
            "construction: they are not in the totals"
        )
    if profiler.warmup and main == "warmup":
        found.append(f"the program ended within the {profiler.warmup} warm-up iterations; the report covers them")
    if profiler.frozen_ns:
        found.append(f"recording stopped after {profiler.steps} iterations, as asked")
    if profiler.places[main].lazy_runs:
        found.append("peak memory leaves out what lazy ops hold while they run; only computed values are seen")
    left = {op.name: runs.recorded - runs.ran for op, runs in _recorded(profiler) if not op.is_free}
    left = {name: calls for name, calls in left.items() if calls}
    if left:
        names = ", ".join(f"{name} ×{calls}" for name, calls in list(left.items())[:5])
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        found.append(
            f"recorded ops had not run at the end, as nothing read what they give: {names}{more}; "
            "their FLOPs are counted, their time is not"
        )
    if main in ("init", "import"):
        found.append("no nn.Module was called; everything after the first op is reported")
    if profiler.collector.mark_error is not None:
        found.append(f"start-up and iterations could not be told apart: {profiler.collector.mark_error!r}")
    return found


def _gradient_sums(profiler: Profiler, rows: list[Row]) -> tuple[int, int] | None:
    """(calls, bytes) of what autograd's engine may have summed in place if nobody watched, where one matters for the
    peak: it never does while a dispatch mode is on. Formulas of backward that add are among them."""
    backward = context.PHASES.index("backward")
    calls = nbytes = 0
    for row in rows:
        if row[PHASE] == backward and row[SIG] and _op(profiler, row).name == "aten::add":
            calls, nbytes = calls + row[CALLS], nbytes + row[BYTES]
    return (calls, nbytes) if calls and nbytes / calls > _MATTERS * max(profiler.phase_peaks) else None


def _unseen(profiler: Profiler) -> list[dict[str, Any]]:
    """What ran and is in none of the figures."""
    found = []
    if profiler.compiled:
        found.append({"what": "compiled function", "count": profiler.compiled})
    if profiler.children:
        found.append({"what": "child process", "count": sum(profiler.children.values())})
    if profiler.collector.other_thread:
        found.append({"what": "thread", "count": None})
    return found


def _recorded(profiler: Profiler) -> list[tuple[Any, Any]]:
    """(op, runs) of every op that was recorded on lazy tensors."""
    return [(profiler.collector.sig_ops[runs.sig], runs) for runs in profiler.collector.runs.values()]


def _version() -> str:
    try:
        return importlib.metadata.version("mindtorch-genie")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
