"""``genie devices`` on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .render import Canvas, Text
from .units import bytes_text

__all__ = ["node_text", "render_devices"]


def render_devices(answer: dict[str, Any], canvas: Canvas) -> str:
    """One block per device type: usable or not, the facts, and for the others the reason and the way out."""
    versions = ", ".join(f"{name} {value or 'not installed'}" for name, value in answer["versions"].items())
    canvas.paragraph(versions, "dim", "")
    for name, cost in answer["torch_lost"].items():
        canvas.paragraph(f"this torch has no {name}: {cost}", "", "  slower: ")
    for row in answer["devices"]:
        name = row["type"] if row["index"] is None else f"{row['type']}:{row['index']}"
        usable = row["available"]
        canvas.add(
            "",
            Text.assemble(
                ("● " if usable else "○ ", "green" if usable else "red"),
                (f"{name:<22}", "bold"),
                ("available" if usable else "not available", "green" if usable else "red"),
            ),
        )
        for label, value in _facts(row, canvas):
            canvas.paragraph(value, "", f"  {label:<11}")
    return canvas.text()


def _facts(row: dict[str, Any], canvas: Canvas) -> Iterator[tuple[str, str]]:
    details = row["details"]
    if row["reason"]:
        yield "why", row["reason"]
    if row["enable"]:
        yield "to enable", row["enable"]
    if row["type"] == "cpu":
        yield from _cpu_facts(details, canvas)
    elif row["type"] == "cuda":
        yield from _cuda_facts(details, canvas)
    elif row["type"] == "npu":
        if details.get("runtime"):
            yield "runtime", f"AscendCL {details['runtime']}"
        if operators := details.get("operators"):
            yield "operators", _operators(operators)
            for reason in operators["not_opened"]:
                yield "", f"cannot be opened: {reason}"
        for found in details.get("devices") or []:
            yield f"npu:{found['index']}", found["name"] or f"cannot be used: {found['error']}"
            if found.get("memory"):
                yield "", _memory(found.get("free"), found["memory"], canvas)
        if details["torch_npu"]:
            yield "torch_npu", details["torch_npu"]
    elif row["type"] == "remote_accelerator":
        yield "is", details["note"]
        if details["executor"]:
            yield "executor", f"{details['executor']}: {details['where']}, on {details['runs_on']}"
        for node in details.get("nodes") or []:
            yield "", f"{node['address']} {node_text(node)}"
    elif details.get("note"):
        yield "is", details["note"]


def node_text(node: dict[str, Any]) -> str:
    """What a machine of a cluster has."""
    gpus = f"{node['gpus']} GPU(s)" + (f" ({node['accelerator']})" if node["accelerator"] else "")
    return f"{node['name']}: {node['cpus']} CPU(s), {gpus}, {bytes_text(node['memory'])} of memory"


def _operators(operators: dict[str, Any]) -> str:
    text = f"{operators['found']} of {operators['of']} that mindtorch calls"
    if operators["libraries"]:
        text += f", in {', '.join(operators['libraries'])}"
    return text if operators["found"] == operators["of"] else f"{text}; the others run through the CPU"


def _cpu_facts(details: dict[str, Any], canvas: Canvas) -> Iterator[tuple[str, str]]:
    yield "processor", f"{details['name']} ({details['architecture']})"
    cores = f"{details['usable_cores']} usable of {details['logical_cores']} logical"
    if details["physical_cores"]:
        cores += f", {details['physical_cores']} physical"
    if details["cpu_limit"] is not None:
        cores += f"; the container may use {details['cpu_limit']:g}"
    yield "cores", cores
    memory = details["memory"]
    if memory["total"]:
        yield "memory", _memory(memory["available"], memory["limit"] or memory["total"], canvas)
        if memory["limit"]:
            yield "", f"limited by the container; the machine has {bytes_text(memory['total'])}"
    if details["instruction_sets"]:
        yield "sets", " ".join(details["instruction_sets"])


def _cuda_facts(details: dict[str, Any], canvas: Canvas) -> Iterator[tuple[str, str]]:
    if details["driver"] or details["driver_cuda"]:
        yield "driver", f"{details['driver'] or 'unknown version'}, CUDA up to {details['driver_cuda']}"
    if details["torch_cuda"]:
        yield "torch", f"built for CUDA {details['torch_cuda']}"
    for found in details["devices"]:
        capability = f", compute capability {found['capability']}" if found.get("capability") else ""
        yield f"cuda:{found['index']}", f"{found['name']}{capability}"
        if found.get("memory"):
            yield "", _memory(found.get("free"), found["memory"], canvas)


def _memory(available: int | None, total: int, canvas: Canvas) -> str:
    if available is None:
        return bytes_text(total)
    bar = canvas.bar(1 - available / total, 16).rstrip().ljust(16, "░")
    return f"{bar} {bytes_text(available, '0 B')} available of {bytes_text(total)}"
