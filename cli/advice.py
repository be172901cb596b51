"""What could be done where a program does not fit, or is slow: alternatives, estimated like the program (SPEC C4)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindtorch.program.workload import Request

__all__ = ["CHANGES", "Change", "advice", "figures", "halved"]


@dataclass(frozen=True)
class Change:
    """what: how to make it, for the program's author. of: ``training``, ``inference`` or both."""

    what: str
    of: tuple[str, ...] = ("training", "inference")


#: By the name that ``--what-if`` takes; `mindtorch.profile.estimate.what_if` makes them, but for --batch and --seq.
CHANGES = {
    "bf16": Change("torch.autocast('cuda', torch.bfloat16) around the model's forward"),
    "tf32": Change("torch.set_float32_matmul_precision('high')"),
    "checkpointing": Change(
        "torch.utils.checkpoint.checkpoint(layer, ..., use_reentrant=False) for each of the repeated layers",
        ("training",),
    ),
    "fused-optimizer": Change("fused=True for Adam, AdamW, SGD", ("training",)),
    "adafactor": Change("torch.optim.Adafactor instead of Adam or AdamW; this changes training", ("training",)),
    "no-grad": Change("with torch.no_grad(): around the model's forward", ("inference",)),
    "expandable-segments": Change("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment"),
    "half-batch": Change("batches of half the size: batch_size of the DataLoader, or --batch"),
    "half-seq": Change("sequences of half the length: --seq"),
}

_MOST_TOGETHER = 4  # changes
_SAME = 0.005  # of memory and of time: less is no alternative
_DRAWN = ("half-batch", "half-seq")  # which give less work to do, and so come last when changes are put together


def advice(report: dict[str, Any], options: Sequence[str], program: Sequence[str]) -> list[dict[str, Any]]:
    """The alternatives to what a report is of, those that do anything, each computed by a process of its own.

    options: genie's own that the report was made with; program: with its arguments. A row has ``changes`` (names of
    ``--what-if``), ``what`` (how to make them), ``peak_bytes`` and ``time_s`` of the run, ``fits``. Several together
    come last, and only where none suffices alone.
    """
    kind = "training" if any(row.get("name") == "backward" for row in report.get("phases") or []) else "inference"
    base = figures(report)
    rows = []
    for name, change in CHANGES.items():
        if name == "half-seq" and not str(program[0]).endswith(".json"):
            continue
        if kind in change.of and (row := _estimated([name], options, program)) is not None and not _same(row, base):
            rows.append(row)
    if base["fits"] is False and not any(row["fits"] for row in rows):
        useful = [row for row in rows if (row["peak_bytes"] or 0) < (base["peak_bytes"] or 0)]
        useful.sort(key=lambda row: (row["changes"][0] in _DRAWN, row["peak_bytes"]))
        names = [row["changes"][0] for row in useful]
        for count in range(2, min(len(names), _MOST_TOGETHER) + 1):
            row = _estimated(names[:count], options, program)
            if row is not None:
                rows.append(row)
                if row["fits"]:
                    break
    return rows


def halved(names: Sequence[str], request: Request) -> Request:
    """What is asked of a configuration's model, with these changes."""
    if "half-batch" in names and request.batch is not None:
        request = replace(request, batch=max(request.batch // 2, 1))
    if "half-seq" in names:
        request = replace(request, seq=max((request.seq or 128) // 2, 1))
    return request


def _estimated(names: list[str], options: Sequence[str], program: Sequence[str]) -> dict[str, Any] | None:
    """The program with these changes; None where it fails then."""
    import subprocess  # not above: with what these import themselves, the command's help would be slower
    import tempfile

    with tempfile.TemporaryDirectory(prefix="genie-") as folder:
        file = os.path.join(folder, "report.json")
        what_if = [word for name in names for word in ("--what-if", name)]
        done = subprocess.run(
            [sys.executable, "-m", "mindtorch", "profile", *options, *what_if, "--json", file, *program],
            capture_output=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode or not os.path.exists(file):
            return None
        with open(file, encoding="utf-8") as source:
            report = json.load(source)
    return {"changes": names, "what": "; ".join(CHANGES[name].what for name in names), **figures(report)}


def figures(report: dict[str, Any]) -> dict[str, Any]:
    """What alternatives are compared by."""
    totals, memory = report.get("totals") or {}, report.get("memory") or {}
    return {
        "peak_bytes": totals.get("peak_device_bytes") or totals.get("peak_bytes"),
        "time_s": totals.get("about_s") or totals.get("time_s"),
        "fits": memory.get("fits"),
    }


def _same(row: dict[str, Any], base: dict[str, Any]) -> bool:
    return all(abs((row[key] or 0) - (base[key] or 0)) <= _SAME * (base[key] or 1) for key in ("peak_bytes", "time_s"))
