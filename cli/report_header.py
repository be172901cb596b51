"""The box at the head of a report: what ran where, for how long, and how much of it was seen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from mindtorch.profile.report.module_names import alike

from . import report_cluster, report_memory
from .render import Canvas, clean
from .report_workload import workload_facts
from .units import bytes_text, count, counted, joules, number, seconds, work

__all__ = ["header"]

_MODELS = 4  # named
_BOUNDS = ("compute", "memory", "launch")  # what a predicted time is bound by
_WAITS = {
    "data_s": "loading data",
    "recompute_s": "recomputing forward passes in backward",
    "in_backward_s": "calling modules in backward",
    "children_s": "waiting for child processes",
    "workers_s": "waiting for a DataLoader's workers to start and to end",
    "threads_s": "waiting for threads",
    "network_s": "waiting for the network",
    "files_s": "saving and loading",
}
_SLOW = 0.1  # of what went into imports: a package that is named
_BUSY = 0.1  # of the time: less waiting for a processor is usual
_SHOWN = 0.01  # of it: a wait that is
_UNSEEN = 0.1  # of it: what may have been in each iteration, and is not seen


Fact = tuple[str, str]  # label, words


def header(report: dict[str, Any], canvas: Canvas, target: str) -> None:
    facts = _models(report) + workload_facts(report)
    for part in (_place, _time, _machine, _composition, _start, _work, _prediction, _memory, _end):
        facts += part(report, report.get("totals") or {}, report.get("mode") == "estimate")
    canvas.facts("genie profile", target, facts)


def _place(report: dict[str, Any], totals: dict[str, Any], sized: bool) -> Iterator[Fact]:
    if report.get("cluster"):
        yield "rank", report_cluster.rank(report)
    if rank := report.get("rank"):
        yield "rank", f"{rank['rank']} of {rank['world_size']}; the report is about this process alone"
    tool = report.get("tool") or {}
    versions = f"torch {tool.get('torch')} · Python {tool.get('python')}"
    yield "sized for" if sized else "ran on", f"{report.get('device')}, {report.get('mode')} · {versions}"


def _time(report: dict[str, Any], totals: dict[str, Any], sized: bool) -> Iterator[Fact]:
    time_s, wall = totals.get("time_s") or 0.0, totals.get("wall_s")
    ops = totals.get("ops") or 0
    text = f"{_expected(totals) if sized and time_s else seconds(time_s)} in {counted(ops, 'op', count(ops))}"
    if sized and not time_s:
        text += " (--target predicts the time)"
    elif not sized and wall is not None:
        text += f" · whole run {seconds(wall)}{_mostly(report)}"
    yield "time", text
    waits, said = report.get("waits") or {}, {row["id"] for row in report.get("findings") or []}
    told = {"data_s", "workers_s"} if "data-wait" in said else set()
    waited = {what: waits.get(key) or 0.0 for key, what in _WAITS.items() if key not in told}
    spent = [f"{seconds(long)}{f' ({100 * long / time_s:.0f} %)' if time_s else ''} {what}"
             for what, long in waited.items() if long > _SHOWN * time_s]  # fmt: skip
    if spent:
        yield "of that", ", ".join(spent)
    if totals.get("energy_j") and report.get("energy"):
        yield "energy", _energy(report)


def _machine(report: dict[str, Any], totals: dict[str, Any], sized: bool) -> Iterator[Fact]:
    """What the time leaves out, or has of the machine's own."""
    time_s, host = totals.get("time_s") or 0.0, report.get("host") or {}
    queued = totals.get("queued_s") or 0.0
    if queued > _BUSY * time_s > 0:
        part = f"{seconds(queued)} of the time above ({100 * queued / time_s:.0f} %)"
        yield "machine", f"busy: for {part}, the program waited for a processor"
    if not sized or not time_s:
        return
    if (host.get("here_s") or 0.0) > _SHOWN * time_s:
        yield "host time", _host(host)
    elif _may_hide(report, time_s):
        least = f"{1000 * host['seen_from_s']:.0f} ms"
        text = f"the program's own Python never ran for {least} between two ops; no figure includes shorter stretches"
        yield "host time", text
    if (loading := host.get("workers_s") or 0.0) > _SHOWN * time_s:
        text = f"at least {seconds(loading)} of the work of a DataLoader's workers, measured on this machine"
        yield "data work", f"{text}; no other figure includes it"


def _composition(report: dict[str, Any], totals: dict[str, Any], sized: bool) -> Iterator[Fact]:
    """What the time is made of, and where its operations ran."""
    if made_of := _patterns(report, totals.get("time_s") or 0.0):
        yield "made of", made_of
    if lazy := report.get("lazy"):
        runs = f"{count(lazy.get('runs') or 0)} ops ran when values were read, {seconds(lazy.get('run_s'))}"
        yield "recorded", f"{runs} on {lazy.get('executor')}"
    threads = report.get("threads") or []
    if any(row["name"] != "main" for row in threads):
        yield "threads", _threads(threads)
    if report.get("npu"):
        yield "on NPUs", _on_npus(report["npu"])
    if gpu := report.get("gpu"):
        yield "NPU time" if report.get("npu") else "on GPUs", _on_gpus(gpu)


def _start(report: dict[str, Any], totals: dict[str, Any], sized: bool) -> Iterator[Fact]:
    """What was before the time of the report, and which steps that is of."""
    startup, steps = report.get("startup") or {}, report.get("steps") or {}
    if not sized and (parts := _startup(startup)):
        slow = _slow_imports(startup)
        apart = ", ".join(f"{seconds(spent)} {what}{slow if what == 'imports' else ''}" for what, spent in parts)
        yield "start-up", f"{apart}, not in the time above"
    if steps.get("count", 0) <= 1:
        return
    each = ""
    if steps.get("about_s") and not report.get("generation"):
        low, high = seconds(steps["about_low_s"]), seconds(steps["about_high_s"])
        each = f", about {seconds(steps['about_s'])} each ({low} to {high})"
    elif times := steps.get("time_s"):
        each = f", median {seconds(times['median'])} ({seconds(times['min'])} to {seconds(times['max'])})"
    left_out = f", {steps['warmup']} of them left out as warm-up ({seconds(steps.get('warmup_s'))})"
    aside = steps.get("threads_aside")
    of_one = f" of one loop ({counted(aside, 'other thread')} left out)" if aside else ""
    yield "steps", f"{steps['count']}{of_one}{each}{left_out if steps.get('warmup') else ''}"


def _work(report: dict[str, Any], totals: dict[str, Any], sized: bool) -> Iterator[Fact]:
    time_s, flops = totals.get("time_s") or 0.0, totals.get("flops") or 0
    macs, products = work(totals.get("macs"), "MAC"), totals.get("product_flops")
    text = f"{work(flops, 'FLOP')} ({macs})"
    if flops and products is not None and products != flops:
        text = f"{work(flops, 'FLOP')} in all ops, {work(products, 'FLOP')} ({macs}) in products alone"
    if (timed := flops - (totals.get("host_flops") or 0)) and time_s:
        text += f" · {work(timed / time_s, 'FLOP/s')}"
    yield "work", text
    if totals.get("coverage") is not None:
        # Rounded down: 100 % is said only of everything.
        share = f"{int(1000 * totals['coverage']) / 10:g} %"
        unseen = [counted(row["count"], clean(row["what"])) for row in report.get("unseen") or []]
        calls = "the compute calls that genie saw" if unseen else "compute calls"
        left = f"; NOT SEEN: {', '.join(unseen)}" if unseen else ""
        yield "coverage", f"{share} of {calls} have a FLOP formula{left}"


def _prediction(report: dict[str, Any], totals: dict[str, Any], sized: bool) -> Iterator[Fact]:
    roofline, predicted = report.get("roofline") or {}, totals.get("predicted_s")
    if not roofline or not predicted:
        return
    shares = ", ".join(f"{100 * (roofline.get(f'{bound}_s') or 0.0) / predicted:.0f} % {bound}" for bound in _BOUNDS)
    if waiting := roofline.get("communication_s"):
        shares += f", {100 * waiting / predicted:.0f} % communication"
    text = f"bound by: {shares} · {roofline.get('intensity') or 0.0:.3g} FLOP/byte"
    if not sized:
        text = f"{seconds(predicted)} on {clean(str(roofline.get('target')))}, {text}"
    yield "predicted", text
    yield from _grounds(roofline)


def _memory(report: dict[str, Any], totals: dict[str, Any], sized: bool) -> Iterator[Fact]:
    if not totals.get("peak_bytes"):
        return
    held = report.get("memory") or {"peak_bytes": totals["peak_bytes"]}
    fits = report_memory.fit(held, sized and report.get("roofline") is not None)
    earlier = 0 if sized else (report.get("startup") or {}).get("peak_bytes", 0)  # an estimate's is of the whole run
    more = f" · {bytes_text(earlier)} earlier, in start-up" if earlier > held["peak_bytes"] else ""
    yield "memory", f"{fits}{more}"


def _end(report: dict[str, Any], totals: dict[str, Any], sized: bool) -> Iterator[Fact]:
    time_s, overhead = totals.get("time_s") or 0.0, totals.get("overhead_s")
    if overhead is not None and not sized:
        # Of what was measured: a run that is mostly imports would make any overhead look like none.
        share = f", {100 * overhead / time_s:.1f} % of the time above" if time_s else ""
        yield "overhead", f"{seconds(overhead)} of recording{share}, calibrated and subtracted"
    if report.get("interrupted"):
        yield "ended", "interrupted; the report covers what ran until then"
    elif report.get("exit_code"):
        yield "ended", f"with exit code {report['exit_code']}; the report covers what ran until then"


def _patterns(report: dict[str, Any], time_s: float) -> str:
    """What it consists of, with the share of the time."""
    return "; ".join(
        f"{clean(row['name'])} {count(row['instances'])} ×"
        + (f", {100 * row['time_s'] / time_s:.0f} %" if time_s else "")
        + _noted(_bound(row.get("bound_by_s") or {}), "" if row["verified"] else "not verified")
        for row in report.get("patterns") or []
        if not time_s or row["time_s"] > _SHOWN * time_s
    )


def _bound(seconds_by: dict[str, float]) -> str:
    """What most of the time on the target is bound by, if one thing is."""
    most = max(seconds_by, key=lambda name: seconds_by[name], default="")
    return f"{most}-bound" if most and 2 * seconds_by[most] > sum(seconds_by.values()) else ""


def _noted(*notes: str) -> str:
    return f" ({', '.join(filter(None, notes))})" if any(notes) else ""


def _models(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The model, or several of them, with their parameters."""
    totals = report.get("totals") or {}
    models = report.get("models") or [model for model in (report.get("model"),) if model]
    if not models:
        return []
    kinds = alike(models)
    found = [
        f"{clean(kind['name'])}{_times(kind)}, {counted(kind['params'], 'parameter', number(kind['params'], '0'))}"
        + (f" ({size})" if (size := bytes_text(kind["param_bytes"])) else "")
        + (" each" if kind["times"] > 1 else "")
        for kind in kinds
    ]
    text = "; ".join(found[:_MODELS])
    if more := kinds[_MODELS:]:
        rest = number(sum(kind["times"] * kind["params"] for kind in more), "0")
        text += f"; {counted(sum(kind['times'] for kind in more), 'more model')}, {rest}"
    trainable = totals.get("trainable_params")
    every = totals.get("params") or 0
    if trainable is not None and trainable < every:
        few = number(trainable, "0") == number(every, "0")  # are not: both would read the same
        which = "not trainable" if few else "trainable"
        which = f"; {which} of all" if len(models) > 1 else f", {which}"
        text += f"{which}: {number(every - trainable if few else trainable, '0')}"
    return [("models" if len(models) > 1 else "model", text)]


def _times(kind: dict[str, Any]) -> str:
    return f" ×{kind['times']}" if kind["times"] > 1 else ""


def _startup(startup: dict[str, Any]) -> list[tuple[str, float]]:
    """What went into starting up, and seconds of each, in the order in which it is told."""
    waits = [(f"waiting for {clean(row['for'])}", row["self_s"]) for row in startup.get("waits") or []]
    construction = (startup.get("init_s") or 0.0) - sum(spent for _, spent in waits)
    parts = [("imports", startup.get("import_s") or 0.0), *waits, ("construction", construction)]
    return [(what, spent) for what, spent in [*parts, ("compiling", startup.get("compile_s") or 0.0)] if spent > 0]


def _slow_imports(startup: dict[str, Any]) -> str:
    """The packages that most of the time of imports went into; of one within another, which one that is, and of one
    that another went on with, how much: times with what they import in turn add up to more than the whole."""
    most = _SLOW * (startup.get("import_s") or 0.0)
    slow = [row for row in startup.get("imports") or [] if row["total_s"] > most][:3]
    named = []
    for row in slow:
        part, inside = row.get("within_s") or 0.0, ""
        if part > 0.1 * row["total_s"]:
            how_much = "" if part > 0.9 * row["total_s"] else f"{seconds(part)} of it "
            inside = f", {how_much}in {clean(row['within'])}"
        named.append(f"{clean(row['name'])} {seconds(row['total_s'])}{inside}")
    return f" ({'; '.join(named)})" if slow else ""


def _mostly(report: dict[str, Any]) -> str:
    """Where most of the run was, if that was not in what follows, or nothing of it is seen."""
    totals, waits = report.get("totals") or {}, report.get("waits") or {}
    wall, time_s = totals.get("wall_s") or 0.0, totals.get("time_s") or 0.0
    parts = _startup(report.get("startup") or {})
    if waits.get("children_s"):
        parts.append(("waiting for child processes", waits["children_s"]))
    what, spent = max(parts, key=lambda part: part[1], default=("", 0.0))
    if 2 * spent > wall:
        return f", most of it {what}"
    apart = sum(spent for _, spent in parts)
    waiting = " and waiting" if any(what.startswith("waiting") for what, _ in parts) else ""
    return f", most of it start-up{waiting}: {seconds(apart)}" if 2 * apart > wall > time_s else ""


def _may_hide(report: dict[str, Any], time_s: float) -> bool:
    """Is what an iteration may spend in the program's own Python, unseen, no small part of the time?"""
    unseen = (report.get("host") or {}).get("seen_from_s") or 0.0
    return bool(unseen * ((report.get("steps") or {}).get("count") or 0) > _UNSEEN * time_s)


def _host(host: dict[str, Any]) -> str:
    """The program's own Python, which is in none of an estimate's times."""
    here = seconds(host["here_s"])
    text = (
        f"at least {here} of the program's own Python between ops, measured on this machine; "
        "no other figure includes it"
    )
    if host.get("lines"):
        most = host["lines"][0]
        text += f" (most at {os.path.basename(most['file'])}:{most['line']}, {seconds(most['self_s'])})"
    return text


def _expected(totals: dict[str, Any]) -> str:
    """The time of an estimate: about, the interval of eight measurements in ten, and at least."""
    text = f"about {seconds(totals.get('about_s') or totals.get('time_s'))}"
    if totals.get("about_high_s"):
        text += f" ({seconds(totals.get('about_low_s'))} to {seconds(totals['about_high_s'])}, 8 in 10)"
    return f"{text}, at least {seconds(totals.get('bound_s'))}"


def _energy(report: dict[str, Any]) -> str:
    """Joules of a target's board: in all, of a step, of a token; where it is one of several, of all of them."""
    totals, energy = report["totals"], report["energy"]
    low, high = totals.get("energy_low_j"), totals.get("energy_high_j")
    text = f"about {joules(totals['energy_j'])} ({joules(low)} to {joules(high)}), {energy['power_w']:.0f} W"
    if report.get("mode") != "estimate":
        text += f" on {clean(str((report.get('roofline') or {}).get('target')))}"
    unit = ((report.get("workload") or {}).get("unit") or "tokens")[:-1]
    parts = [f"{name} {joules(each)} a {unit}" for name, each in (energy.get("token_j") or {}).items()]
    if energy.get("step_j") and (report.get("steps") or {}).get("count", 0) > 1 and not report.get("generation"):
        parts.insert(0, f"{joules(energy['step_j'])} a step")
    if energy["accelerators"] > 1:
        parts.append(f"all {count(energy['accelerators'])}: {joules(energy['all_j'])} if each does as much")
    return " · ".join([text, *parts])


def _grounds(roofline: dict[str, Any]) -> list[tuple[str, str]]:
    """Where the factors of "about" come from, and the ops that its interval is wide by."""
    sources: dict[str, list[str]] = {}
    for family, source in (roofline.get("factors") or {}).items():
        sources.setdefault(source, []).append(family)
    found = []
    if sources:
        text = "; ".join(f"{', '.join(families)}: {clean(source)}" for source, families in sources.items())
        found.append(("factors", f"{text}{' · TF32' if roofline.get('tf32') else ''}"))
    doubt = [row for row in roofline.get("doubt") or [] if row.get("seconds")]
    if doubt:
        first, *more = (f"{clean(r['name']).removeprefix('aten::')} ±{seconds(r['seconds'])}" for r in doubt)
        found.append(("uncertain", f"most of all {first}{', then ' if more else ''}{', '.join(more)}"))
    return found


def _threads(threads: list[dict[str, Any]]) -> str:
    """Which threads ran ops. Times of threads that ran at once add up to more than the run took."""
    named = [f"{clean(row['name'])}{' ×' + str(row['count']) if row['count'] > 1 else ''} {count(row['ops'])}"
             for row in threads[:5]]  # fmt: skip
    more = f" and {len(threads) - 5} more" if len(threads) > 5 else ""
    return f"ops in {', '.join(named)}{more}; times of concurrent threads are added up"


def _on_gpus(gpu: dict[str, Any]) -> str:
    if gpu["how"] == "waited":
        return "genie waited for each op, so host and device times are not separate"
    found = [
        f"{row['device']}: {counted(row['kernels'], 'kernel')}, {counted(row['copies'], 'transfer')} "
        f"on {counted(row['streams'], 'stream')}, at most {bytes_text(row['peak_allocated_bytes'])} allocated "
        f"by torch, {bytes_text(row['peak_reserved_bytes'])} reserved"
        for row in gpu["devices"]
    ]
    text = f"busy {seconds(gpu['busy_s'])}, idle {seconds(gpu['idle_s'])} of the time above; {'; '.join(found)}"
    return text + (" (until genie had to wait for each op)" if gpu["how"] != "traced" else "")


def _on_npus(npu: dict[str, Any]) -> str:
    """How many calls the NPUs ran themselves, and which went through the CPU."""
    native, staged = sum(npu["native"].values()), sum(npu["staged"].values())
    text = f"{counted(native, 'call', count(native))} native, {count(staged)} staged through the CPU"
    peaks = ", ".join(f"{bytes_text(most)} on {name}" for name, most in npu["peak_bytes"].items())
    names = [f"{name.removeprefix('aten::')} ×{calls}" for name, calls in list(npu["staged"].items())[:4]]
    text += f": {', '.join(names)}{' …' if len(npu['staged']) > 4 else ''}" if names else ""
    return f"{text} · peak {peaks}"
