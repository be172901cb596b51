"""Findings about time: what a report shows of waiting, of launching, and of what torch has a faster call for.

One file: each finding is a function that is read by itself; they share only what is called too little to be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from mindtorch._ext import context
from mindtorch._ext.timeline import OP
from mindtorch.base.words import counted
from mindtorch.profile.cost import op_time
from mindtorch.profile.cost.families import BACKWARD as MORE_BACKWARD
from mindtorch.profile.cost.families import itemsize
from mindtorch.profile.cost.op_time import Precision
from mindtorch.profile.cost.work import Work
from mindtorch.profile.report import times
from mindtorch.profile.report.finding_inputs import BACKWARD, DATA, OPTIMIZER, Looked, Said, percent
from mindtorch.profile.report.lines import package_of
from mindtorch.profile.report.recording import WORKERS, Loaded
from mindtorch.profile.report.rows import Row

__all__ = ["attention", "data", "first", "float32", "host", "optimizer", "python", "reads"]

_IDLE = 0.2  # of the time: so much waiting for launches, or Python at one line, is more than every program has
_BATCHED = ("aten::bmm", "aten::baddbmm", "aten::matmul")  # those of projections are mm
_SOFTMAX = ("aten::_softmax", "aten::softmax")
#: What an attention that is written out runs backward on its scores, beside products.
_ON_SCORES = frozenset(f"aten::{name}" for name in (
    "_softmax_backward_data", "mul", "mul_", "div", "div_", "add", "masked_fill", "masked_fill_", "where", "clone",
    "native_dropout_backward", "tanh_backward", "_to_copy",
))  # fmt: skip
_FUSABLE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
_CALLING = 50_000  # ns of Python for one operation, modules and their hooks included, at most
_NORMS = frozenset({"aten::_foreach_norm", "aten::linalg_vector_norm"})  # of gradients that are clipped
_STARTS = 10**8  # ns that workers of a DataLoader take to start and to end, about
_HANDED = 0.1  # of the ops: so many are no odd one of a data set's
_SEEN = 0.2  # of loading data: so much at lines that make batches says where it is slow
_TOLD = 0.005  # of the time: less is 0 %
_FEW = 4  # calls of an optimizer's step: so few are no loop over parameters


def data(of: Looked) -> Said | None:
    if of.seen.mode != "measured":
        return None
    mine, starting = [row for row in of.rows if row.phase == DATA], _starting(of)
    there, waits = {row.location for row in starting}, of.seen.stages[of.seen.reached].waits.items()
    spent = [row.ns for row in starting] + [ns for (what, at), ns in waits if what == WORKERS and at not in there]
    ns = sum(row.ns for row in mine)
    waited, part = of.part(ns / 1e9), of.part(sum(spent) / 1e9)
    part = part if part >= _TOLD else 0.0
    more = f", and for another {percent(part)} the DataLoader starts and ends workers" if part else ""
    text = f"{percent(waited)} of the time the model waits for data{more}"
    return Said(text, waited + part, of.heaviest(_seen_loading(of, mine)), _load_faster(of.seen.loaded, ns))


def _seen_loading(of: Looked, mine: list[Row]) -> list[Row]:
    """Those of lines that make batches, if that is where a fifth of it was seen: of short waits, the others are known
    at the line alone that asks the loader."""
    asking = {context.location(location) for location in of.seen.loads.values()}
    making = [row for row in mine if context.location(row.location) not in asking] if asking else []
    return making if sum(row.ns for row in making) >= _SEEN * sum(row.ns for row in mine) else mine


def _load_faster(loaded: Loaded | None, ns: int) -> str:
    """ns: what waiting for batches took in all."""
    cheaper = "cheaper transforms"
    if loaded is None or not loaded.started:
        if loaded is not None and loaded.iterators and ns / loaded.iterators < _STARTS:
            return f"{cheaper}, or batches that index whole tensors; starting workers would take longer"
        return f"num_workers of the DataLoader: batches are made while the model computes; or {cheaper}"
    kept = "persistent_workers=True" if loaded.again else ""
    if loaded.anew:
        kept = "one DataLoader for all epochs, with persistent_workers=True"
    if loaded.starting > 0.5:
        none = "num_workers=0 if items are cheap to make: most of that time goes into starting workers, up to"
        none += " their first batch, and into ending them"
        return f"{kept}, or {none}" if kept else none
    return f"more num_workers of the DataLoader{kept and ', '}{kept}; or {cheaper}"


def _starting(of: Looked) -> list[Row]:
    """The rows of Python at a line that waits for batches of workers: there it starts them, and ends them."""
    if not any("DataLoader" in kind for kind in of.seen.children):
        return []
    waiting = {context.location(row.location) for row in of.rows if row.phase == DATA and not row.sig}
    return [row for row in of.rows
            if row.phase != DATA and not row.sig and context.location(row.location) in waiting]  # fmt: skip


def python(of: Looked) -> Said | None:
    """Of a measured run: a line that takes long between operations, longer than calling them, and waits for nobody,
    nor, as far as is known, for a processor.

    Between the operations of a backward pass, and of an optimizer of torch's, it is torch that works, at the line that
    called it. What `first` tells of is left out, as far as the line is there.
    """
    if of.seen.mode != "measured":
        return None
    phases = [BACKWARD]
    if all(kind.__module__.startswith("torch.") for kind in of.seen.optimizers):
        phases.append(OPTIMIZER)
    torchs = {(row.phase, context.location(row.location)) for row in of.rows if row.sig and row.phase in phases}
    lines: Counter[Any] = Counter()
    rows: dict[Any, list[Row]] = {}
    starting = {id(row) for row in _starting(of)}
    for row in of.rows:
        where = context.location(row.location)
        if row.sig:
            lines[where] -= row.calls * _CALLING
        elif row.phase != DATA and (row.phase, where) not in torchs and id(row) not in starting:
            lines[where] += row.ns
            rows.setdefault(where, []).append(row)
    for (_, location), ns in of.seen.stages[of.seen.reached].waits.items():
        lines[context.location(location)] -= ns
    where, ns = max(lines.items(), key=lambda item: item[1], default=(None, 0))
    seconds = ns / 1e9
    if first(of) is not None:
        seconds = min(seconds, of.time_s - of.report["steps"]["first_s"])
    share = of.part(seconds)
    # Where the program waited for a processor, nobody knows: it may have been at that line alone.
    if where is None or share - of.seen.queued < _IDLE or where not in rows:
        return None
    often = _how_often(of, where)
    to_try = f"the same work on whole tensors, or {'once before the' if of.seen.spans else 'outside any'} loop; {often}"
    if package := package_of(where[0]):  # whose lines nobody here changes, and --hits does not count
        to_try = f"fewer calls into {package} there, or one call on larger tensors"
    elif _outside_iterations(of, where):
        to_try = f"fewer calls at that line, which is outside the iterations; {often}"
    text = f"{percent(share)} of the time is Python at one line, between operations"
    return Said(text, share, of.heaviest(rows[where]), to_try)


def _how_often(of: Looked, where: Any) -> str:
    if of.seen.hits:
        return f"the line is reached {counted(of.seen.hits.get(of.seen.reached, {}).get(where, 0), 'time')}"
    return "genie profile --hits says how often the line runs"


def _outside_iterations(of: Looked, where: Any) -> bool:
    """The line ran operations, as far as single ones are known, and all of them before or after the iterations."""
    log, spans = of.seen.log, of.seen.spans
    if log is None or log.dropped_events or not spans:
        return False
    events = np.frombuffer(log.events(), times.EVENT)
    ran = {row.location: context.location(row.location) for row in of.rows if row.sig}
    here = [number for number, place in ran.items() if place and place[:2] == where[:2]]  # in whichever function
    starts = events["start"][(events["kind"] == OP) & np.isin(events["location"], here)]
    return bool(len(starts)) and not any(((starts >= begin) & (starts < end)).any() for begin, end in spans)


def first(of: Looked) -> Said | None:
    """Of a measured run: a first iteration that takes longer than the others together suggest."""
    steps = of.report["steps"]
    spread, first = steps["time_s"], steps["first_s"] or 0.0
    usual = spread["median"] if spread else 0.0  # none, where nothing is left of it beside recording
    if of.seen.mode != "measured" or steps["warmup"] or not 0 < 2 * usual < first or _other_work(of):
        return None
    share, times = of.part(first - usual), first / usual
    text = (
        f"the first of {steps['count']:,} iterations takes {times:.1f} × the usual time; the excess is {percent(share)}"
    )
    place = of.place(0, _slow_at_first(of, first - usual))
    return Said(f"{text} of the time", share, place, "--warmup 1, which leaves it out of the report")


def _other_work(of: Looked) -> bool:
    """Does the first iteration compute more than twice of what the usual one does? Then it is none of those."""
    log, spans = of.seen.log, of.seen.spans
    if log is None or log.dropped_events or len(spans) < 2:
        return False
    events = (every := np.frombuffer(log.events(), times.EVENT))[every["kind"] == OP]
    flops = np.array([0 if found is None else found[0] for found in of.seen.flops])[events["sig"]]
    done = [int(flops[(events["start"] >= begin) & (events["start"] < end)].sum()) for begin, end in spans]
    return done[0] > 2 * float(np.median(done[1:]))


def _slow_at_first(of: Looked, excess: float) -> int:
    """Path id of the innermost module whose first call alone took most of that longer than its others; 0 for none."""
    totals = of.report["totals"]
    own = totals["time_s"] / (totals["time_s"] + totals["overhead_s"])  # of a call's time
    slow = {
        path: seconds for path, times in of.seen.call_ns.items()
        if len(times) > 1 and (seconds := own * (times[0] - float(np.median(times[1:]))) / 1e9) > excess / 2
    }  # fmt: skip
    depth = {row["path"]: row["depth"] for row in of.report["modules"]}
    return max(slow, key=lambda path: (depth.get(of.seen.names[path], -1), slow[path]), default=0)


def host(of: Looked) -> Said | None:
    if of.forecast is None:
        return None
    mine = [row for row in of.for_kernels() if row.phase != DATA]  # which launches nothing, or by the way
    share = of.part(sum(row.ns for row in mine) / 1e9)
    if share < _IDLE:
        return None
    calls = sum(row.calls for row in of.rows if row.sig and of.forecast.cost(row.sig).family)
    text = f"about {percent(share)} of the time the device waits for Python to launch {counted(calls, 'kernel')}"
    return Said(text, share, of.heaviest(of.forward(mine)), _launch_less(of, mine))


def _launch_less(of: Looked, waiting: Iterable[Row]) -> str:
    """torch.compile, too, where it takes the model, and most of what waits is in calls of it: its forward pass is what
    is compiled, and not what else its class does, or the program around it."""
    fewer = "larger batches, or fewer small operations"
    if of.seen.differentiates_twice:  # AOTAutograd refuses that
        return fewer
    if of.seen.handed_on > _HANDED * of.report["totals"]["ops"]:  # Dynamo gives up at most such classes of tensors
        return fewer
    if not of.report["models"]:
        return f"torch.compile(step, mode='reduce-overhead'), {fewer}"  # a function of the program's
    called = of.seen.stages[of.seen.reached].entries
    by_model: Counter[bool] = Counter()
    for row in waiting:
        by_model[bool(row.module and called.get(context.path_root(row.module)))] += row.ns
    return f"torch.compile(model, mode='reduce-overhead'), {fewer}" if by_model[True] > by_model[False] else fewer


def idle(of: Looked) -> Said | None:
    """Measured: the GPU or NPU has nothing to do, because the host has not launched it yet."""
    work = of.seen.gpu
    if work is None or work.how != "traced" or not work.busy:
        return None
    share = of.part(work.idle / 1e9)
    if share < _IDLE:
        return None
    kernels = sum(use.kernels for use in work.uses.values())
    nothing = f"the {work.called} is idle for {percent(share)} of the time"
    text = f"{nothing}: the host launches its {counted(kernels, 'kernel')} too late"
    waiting = [row for row in of.rows if not row.sig]
    return Said(text, share, of.heaviest(of.forward(waiting)), _launch_less(of, waiting))


def reads(of: Looked) -> Said | None:
    """Each is at least what the host takes to launch the next kernel: until then the device has nothing to do."""
    if of.forecast is None or of.forecast.target.model is not None:
        return None
    reads = of.seen.stages[of.seen.reached].reads
    count = sum(reads.values())
    share = of.part(count * op_time.read_seconds(of.forecast.target))
    text = (
        f"the program reads values from the device {of.an_iteration(count, '×')}: this takes about {percent(share)} of "
        "the time, because the device is idle after each read until the next launch"
    )
    to_try = "values that stay on the device (torch.where, a sum read once at the end) instead of .item() and .cpu()"
    return Said(text, share, of.busiest(reads), to_try)


def attention(of: Looked) -> Said | None:
    """Measured: what runs on the scores between the two products. Estimated: what a fused kernel of the same sizes
    saves."""
    cores, alike = of.labels.cores, of.labels.alike
    forward = {row: cores[key] / alike[key] for row in of.rows
               if row.sig and row.phase != BACKWARD and cores[key := of.key(row)]}  # fmt: skip
    softmax = [row for row in forward if of.op(row) in _SOFTMAX]
    if not softmax:
        return None
    least: dict[int, float] = {}  # bytes of scores, by module
    for row in softmax:
        least[row.module] = min(row.nbytes / row.calls, least.get(row.module, row.nbytes / row.calls))
    backward = [
        row for row in of.rows
        if row.sig and row.phase == BACKWARD and row.module in least and _is_attention(of, row)
        and (of.op(row) in _BATCHED or (of.op(row) in _ON_SCORES and row.nbytes / row.calls >= least[row.module]))
    ]  # fmt: skip
    parts = forward | dict.fromkeys(backward, 1.0)
    seems = all(row["verified"] for row in of.report["patterns"] if row["name"] == "attention")
    start = f"attention {'is' if seems else 'seems to be'} computed op by op"
    to_try = "torch.nn.functional.scaled_dot_product_attention; with nn.MultiheadAttention, need_weights=False"
    place = of.heaviest(softmax)
    if of.forecast is None:
        between = sum(row.ns * part for row, part in parts.items() if of.op(row) not in (*_BATCHED, "aten::mm"))
        # Which operations of the backward pass are theirs is not known of all.
        at_least = "at least " if any(row.phase == BACKWARD for row in of.rows) else ""
        share = of.part(between / 1e9)
        text = f"{start}: {at_least}{percent(share)} of the time goes into its scores, besides its two products"
        return Said(text, share, place, to_try)
    device: dict[int, float] = {}
    host: dict[int, float] = {}
    for row, part in parts.items():
        device[row.phase] = device.get(row.phase, 0.0) + part * row.ns / 1e9
        host[row.phase] = host.get(row.phase, 0.0) + part * row.calls * of.forecast.host(row.sig, row.phase)
    for row, calls in _weighted(of, forward, softmax).items():
        for phase in {row.phase, BACKWARD if backward else row.phase}:
            fused = _fused_attention(of.seen.works[row.sig], phase == BACKWARD)
            device[phase] -= calls * of.forecast.of(fused).seconds
            host[phase] -= calls * op_time.host_seconds(fused, of.forecast.target, phase == BACKWARD)
    share = of.part(of.seconds_saved(device, host))
    # More where the host is what takes the time: which views and copies go, too, is not known of all.
    saves = f"would save about {percent(share)} of the time or more, by the cost model"
    text = f"{start}; scaled_dot_product_attention {saves}"
    return Said(text, share, place, to_try)


def _weighted(of: Looked, forward: Iterable[Row], softmax: Iterable[Row]) -> dict[Row, float]:
    """Products of probabilities and values, and how many of their calls are: as many as there are softmaxes of as many
    numbers. The other product, of queries and keys, may be on the same line."""
    wanted: Counter[tuple[int, int, int]] = Counter()
    for row in softmax:
        work = of.seen.works[row.sig]
        size = row.nbytes // row.calls // int(itemsize(work.dtype if work is not None else "float32"))
        wanted[row.module, row.phase, size] += row.calls
    found: dict[Row, tuple[int, int, int]] = {}
    for row in forward:
        work = of.seen.works[row.sig]
        if work is not None and work.product is not None:
            heads, queries, _, keys = work.product
            if wanted[size_key := (row.module, row.phase, heads * queries * keys)]:
                found[row] = size_key
    calls: Counter[tuple[int, int, int]] = Counter()
    for row, key in found.items():
        calls[key] += row.calls
    return {row: row.calls * min(wanted[key] / calls[key], 1.0) for row, key in found.items()}


def _is_attention(of: Looked, row: Row) -> bool:
    return of.labels.patterns(row, of.op(row)).keys() == {"attention"}


def _fused_attention(product: Any, backward: bool) -> Work:
    """One call of a fused kernel, from the work of the product of probabilities and values."""
    heads, queries, size, keys = product.product
    nbytes = int(itemsize(product.dtype)) * heads * size * (queries + keys)
    flops = 4 * heads * queries * keys * size
    name = "aten::_scaled_dot_product_flash_attention"
    if backward:
        flops, nbytes, name = int(MORE_BACKWARD * flops), 2 * nbytes, f"{name}_backward"
    return Work(
        flops, flops // 2, nbytes, nbytes, product.dtype, "attention", name, product=(heads, queries, keys, size)
    )


def float32(of: Looked) -> Said | None:
    if of.forecast is None or of.seen.precision is None or of.seen.precision.tf32:
        return None
    other = of.forecast.allowing(Precision(True, of.seen.precision.tf32_conv))
    less: dict[int, float] = {}
    weights: dict[Row, float] = {}
    for row in of.rows:
        if not row.sig or (cost := of.forecast.cost(row.sig)).bound != "compute":
            continue  # moving numbers, or starting, takes as long with TF32, whatever the model of products says
        if (gain := cost.seconds - other.cost(row.sig).seconds) > 0:
            weights[row] = row.calls * gain
            less[row.phase] = less.get(row.phase, 0.0) + weights[row]
    share = of.part(of.seconds_saved(less))
    text = (
        f"matrix products run in float32 without TF32, which would save about {percent(share)} of the time, by the "
        "cost model"
    )
    to_try = "torch.set_float32_matmul_precision('high'); torch.autocast in bfloat16 (--what-if bf16) saves more"
    return Said(text, share, of.heaviest(of.forward(weights), weights.__getitem__), to_try)


def optimizer(of: Looked) -> Said | None:
    mine = _of_optimizer(of)
    ran = [row for row in mine if row.sig and not of.seen.ops[row.sig].is_free]  # type: ignore[union-attr]
    names = {of.op(row) for row in ran}
    calls = sum(row.calls for row in ran)
    often = of.an_iteration(calls, "operations")
    if of.forecast is not None and of.forecast.target.model is None and of.memory.get("device") == "cpu":
        return None  # of tensors that are on the CPU: there torch takes one by one what it takes together on a GPU
    # Those around others are none of torch's: what they do beside them is no step that torch could fuse.
    every = of.seen.optimizers
    kinds = {kind: takes for kind, takes in every.items() if getattr(getattr(kind, "step", None), "hooked", False)}
    fusable = kinds and all(kind in _FUSABLE and takes for kind, takes in kinds.items())
    if len(kinds) < len(every):
        fusable = fusable and all(of.labels.patterns(row, of.op(row)).keys() == {"optimizer update"} for row in ran)
    stepped = max(of.seen.steps_taken.total(), of.steps())
    a_step = stepped / of.steps()
    if not fusable or any("_fused_" in name for name in names) or calls <= _FEW * stepped:
        return None
    named = ", ".join(sorted(kind.__name__ for kind in kinds))
    to_try = f"fused=True for {named}"
    whole = sum(row.ns for row in mine) / 1e9
    apart = percent(of.part(whole)) != percent(of.part(sum(r.ns for r in of.rows if r.phase == OPTIMIZER) / 1e9))
    rest = ", without creating its state or clipping gradients" if apart else ""  # the phase's share is another
    if of.forecast is None:
        # Each optimizer that takes parameters together does more so than clipping does.
        if any("_foreach_" in name for name in names - {"aten::_foreach_mul_"}):
            return None
        text = f"{percent(of.part(whole))} of the time is {named}{rest}: {often}, one by one"
        return Said(text, of.part(whole), of.heaviest(mine), to_try)
    parameters, state = _trained_bytes(of), of.kinds.get("optimizer state", 0)  # gradients are as large as parameters
    read, written = int((2 * parameters + state) / a_step), int((parameters + state) / a_step)
    works = [Work(None, 0, read, written, "float32", "optimizer", "aten::_fused_adamw_")]
    if set(kinds) != {torch.optim.SGD}:  # the others count their steps, fused or not
        works.append(Work(None, 0, 4, 4, "float32", "optimizer", "aten::_foreach_add_"))
    device = stepped * sum(of.forecast.of(work).seconds for work in works)
    host = stepped * sum(op_time.host_seconds(work, of.forecast.target, False) for work in works)
    busy = sum(row.ns for row in mine if row.sig) / 1e9
    launched = sum(row.calls * of.forecast.host(row.sig, OPTIMIZER) for row in mine if row.sig)
    share = of.part(of.seconds_saved({OPTIMIZER: busy - device}, {OPTIMIZER: min(launched, whole) - host}))
    kernels = "one fused kernel" if a_step == 1 else f"{a_step:.3g} fused kernels, one for each step(),"
    text = (
        f"{named} takes {percent(of.part(whole))} of the time{rest}, in {often}; {kernels} would save about "
        f"{percent(share)}, by the bytes moved"
    )
    return Said(text, share, of.heaviest(mine), to_try)


def _of_optimizer(of: Looked) -> list[Row]:
    """The rows of optimizers' steps, without those of a hook that clips gradients, and of what makes the state."""
    mine = [row for row in of.rows if row.phase == OPTIMIZER and not _makes(of, row)]
    norms = {context.location(row.location) for row in mine if of.op(row) in _NORMS}
    others = [row for row in mine if context.location(row.location) not in norms]
    if any(row.sig for row in others):
        return others
    return [row for row in mine if of.op(row) not in _NORMS]  # the hook is torch's own function


def _makes(of: Looked, row: Row) -> bool:
    """Its first step makes the state, fused or not."""
    op = of.seen.ops[row.sig]
    return op is not None and op.category == "creation"


def _trained_bytes(of: Looked) -> int:
    totals, models = of.report["totals"], of.report["models"]
    whole = sum(model.get("param_bytes") or 0 for model in models)
    return int(whole * totals["trainable_params"] / totals["params"]) if totals["params"] else 0
