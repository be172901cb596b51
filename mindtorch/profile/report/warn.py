"""The report's warnings: what its figures leave out, and where they may mislead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindtorch._ext import context
from mindtorch.base import children, torch_facts
from mindtorch.base.words import bytes_in_words, counted
from mindtorch.profile.report.recording import Recording
from mindtorch.profile.report.rows import Row

_MATTERS = 0.05  # of the peak


def warnings(
    seen: Recording, uncounted: list[dict[str, Any]], rows: list[Row], macs: int, early_macs: int
) -> list[str]:
    """`rows`: by signature and phase. `macs`: multiply-adds that are counted; `early_macs`: before, in construction."""
    main = seen.reached
    found = []
    if uncounted:
        calls = sum(entry["calls"] for entry in uncounted)
        names = ", ".join(entry["name"] for entry in uncounted[:5])
        more = f" and {len(uncounted) - 5} more" if len(uncounted) > 5 else ""
        found.append(f"FLOPs leave out {counted(calls, 'call')} of ops without a formula: {names}{more}")
    if seen.hits == {}:
        found.append("another trace function (sys.settrace: a debugger, coverage) was set: lines have no hits")
    if seen.unseen_threads:
        found.append(
            "modules ran in threads that started before the profile or outside Python; their work is not counted"
        )
    if seen.compiled:
        found.append("compiled functions ran: their backend's kernels count as time between ops, without FLOPs")
    if seen.torch_profiles:
        times = f"torch's own profiler ({seen.torch_profiles} ×)"
        found.append(
            f"the program ran {times}: its output lists every op twice, and PythonDispatchMode, because ops go "
            "through genie first; in a plain run it lists them once"
        )
    if sums := _gradient_sums(seen, rows):
        calls, nbytes = sums
        found.append(
            f"of the add calls in backward, up to {calls} ({bytes_in_words(nbytes)}) sum gradients of tensors that are "
            "used more than once; a plain run does some of them in place (add_), so its peak may be one gradient lower"
        )
    if seen.children:
        found.append(_not_counted(seen.children))
    if early_macs > (early_macs + macs) // 100:
        found.append(
            f"{counted(early_macs, 'multiply-add')} (MACs) ran before the first call of a module and count as "
            "construction: they are not in the totals"
        )
    if seen.warmup and main == "warmup":
        found.append(f"the program ended within the {seen.warmup} warm-up iterations; the report covers them")
    if seen.frozen:
        found.append(f"recording stopped after {counted(seen.steps, 'iteration')}, as asked")
    if seen.stages[main].places.lazy_runs:
        found.append("peak memory leaves out memory that recorded ops use while they run; it counts only their results")
    left = {op.name: runs.recorded - runs.ran for op, runs in _recorded(seen) if not op.is_free}
    left = {name: calls for name, calls in left.items() if calls}
    if left:
        names = ", ".join(f"{name} ×{calls}" for name, calls in list(left.items())[:5])
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        found.append(
            f"these ops never ran because their results were never read: {names}{more}; their FLOPs are counted, "
            "their time is not"
        )
    if torch_facts.lost:
        found.append(torch_facts.summary())
    if main in ("init", "import"):
        found.append("no nn.Module was called; everything after the first op is reported")
    if seen.mark_error is not None:
        found.append(f"start-up and iterations could not be told apart: {seen.mark_error!r}")
    return [*found, *(seen.gpu.notes() if seen.gpu is not None else ()), *seen.notes]


def _not_counted(processes: Mapping[str, int]) -> str:
    """What child processes ran, and what to do about those for which something can be done."""
    names = ", ".join(f"{name} ×{n}" for name, n in list(processes.items())[:5])
    more = f" and {len(processes) - 5} more" if len(processes) > 5 else ""
    text = f"NOT COUNTED: operations of child processes ({names}{more})"
    if children.LOADER_WORKER in processes:
        text += "; with num_workers=0, a DataLoader makes its batches in this process, where they are counted"
    if any(name not in (children.LOADER_WORKER, children.FORK) and not name.startswith(children.MULTIPROCESSING)
           for name in processes):  # fmt: skip
        text += (
            "; to count those of a command, run it under genie: genie profile instead of python, "
            "torchrun … --no-python genie profile SCRIPT"
        )
    return text


def _gradient_sums(seen: Recording, rows: list[Row]) -> tuple[int, int] | None:
    """(calls, bytes) of what autograd's engine may have summed in place if nobody watched, where one matters for the
    peak: it never does while a dispatch mode is on. Formulas of backward that add are among them."""
    backward = context.PHASES.index("backward")
    calls = nbytes = 0
    for row in rows:
        if row.phase == backward and row.sig and seen.op_name(row.sig) == "aten::add":
            calls, nbytes = calls + row.calls, nbytes + row.nbytes
    return (calls, nbytes) if calls and nbytes / calls > _MATTERS * max(seen.phase_peaks) else None


def _recorded(seen: Recording) -> list[tuple[Any, Any]]:
    """(op, runs) of every op that was recorded on lazy tensors."""
    return [(seen.ops[runs.sig], runs) for runs in seen.runs]
