"""The lines of a report that say what a configuration's model was given to do (``--decode``, ``--train``)."""

from __future__ import annotations

from typing import Any

from .units import amount, bytes_text, count, counted, seconds

__all__ = ["workload_facts"]


def workload_facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    """(label, text): the work, or what a program generates; its rates, and what the cache and the optimizer hold."""
    workload, generation = report.get("workload"), report.get("generation")
    done = workload or generation
    if not done:
        return []
    unit = done.get("unit") or "tokens"
    facts = [("workload", _asked(workload, unit)) if workload else ("generates", _generated(done))]
    rates = _rates(done, report.get("phases") or [], unit)
    if rates:
        facts.append(("speed", " · ".join(rates)))
    cache, optimizer = done.get("kv_cache"), done.get("optimizer")
    if cache and (workload or cache["bytes"]):
        grows = cache.get("bytes_per_step")
        more = f", {bytes_text(grows)} more a step" if grows else ""
        facts.append(("cache", f"{bytes_text(cache.get('bytes'), '0 B')} at the end{more}"))
    if optimizer:
        held = f"gradients {bytes_text(optimizer.get('gradient_bytes'))}, state {bytes_text(optimizer['state_bytes'])}"
        facts.append(("optimizer", f"{optimizer.get('name')}, {held}"))
    return facts


def _asked(workload: dict[str, Any], unit: str) -> str:
    """What a configuration's model was given to do."""
    batch, seq = workload.get("batch") or 1, workload.get("seq")
    text = f"{count(batch)} × {count(seq)} {unit}" if seq else f"{count(batch)} {unit if batch > 1 else unit[:-1]}"
    images = workload.get("images")
    if images:
        number = images["per_prompt"]
        text += f" with {counted(number, 'image')} of {images['height']} x {images['width']}{' each' * (batch > 1)}"
    if workload.get("decode"):
        text += f", then {count(workload['decode'])} decoded"
    if workload.get("train"):
        text += "; a training step" if workload.get("decode") else ", a training step"
    return f"{text}, {workload.get('dtype')}"


def _generated(generation: dict[str, Any]) -> str:
    return "; ".join(
        f"{row['name']} {counted(row['tokens'], 'token')} in {counted(row['steps'], 'call')}"
        for row in generation["phases"]
    )


def _rates(workload: dict[str, Any], phases: list[dict[str, Any]], unit: str) -> list[str]:
    """Tokens a second of each part; forward, backward and optimizer are one when they are a training step."""
    times = {row.get("name"): row.get("time_s") or 0.0 for row in phases}
    covered = {row["name"]: row for row in workload.get("phases") or []}
    parts = [("prefill", ["prefill"]), ("decode", ["decode"]), ("forward", ["forward"])]
    if workload.get("train"):
        parts[-1] = ("training", ["forward", "backward", "optimizer"])
    found = []
    for name, phase_names in parts:
        row, spent = covered.get(phase_names[0]), sum(times.get(phase, 0.0) for phase in phase_names)
        if row and spent and row.get("steps"):
            a_call = f", {seconds(spent / row['steps'])} a call" if name == "decode" else ""
            found.append(f"{name} {amount(row.get(unit, 0) / spent)} {unit}/s{a_call}")
    return found
