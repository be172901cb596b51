"""The flame graph of a profile, in speedscope's file format (https://www.speedscope.app/file-format-schema.json)."""

from __future__ import annotations

import json
import os
from typing import Any

from mindtorch.base.formats import atomic
from mindtorch.profile.report import stacks
from mindtorch.profile.report.recording import Recording
from mindtorch.profile.report.stacks import Stacks

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write_flame(report: dict[str, Any], seen: Recording, path: str | os.PathLike[str]) -> bool:
    """Two profiles: by module and op, by line and op. Weights are integers of nanoseconds, and sum to the report's
    ``totals.time_s`` in each. Returns whether there is any. Raises OSError if the file can't be written."""
    both = {"by module": stacks.by_module(seen), "by line": stacks.by_line(seen)}
    frames: list[dict[str, Any]] = []
    profiles = [_profile(name, found, frames) for name, found in both.items()]
    with atomic(path) as file:
        # What the file begins with says whose it is: see `FORMATS`.
        json.dump({
            "$schema": SCHEMA,
            "exporter": f"genie {report['tool']['mindtorch']}",
            "name": " ".join(["genie profile", *report["command"]]),
            "activeProfileIndex": 0,
            "shared": {"frames": frames},
            "profiles": profiles,
        }, file, separators=(",", ":"))  # fmt: skip
        file.write("\n")
    return any(profile["weights"] for profile in profiles)


def _profile(name: str, found: Stacks, frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Adds its frames to those that all profiles share."""
    first = len(frames)
    for frame in found.frames:
        facts: dict[str, Any] = {"name": frame.name}
        if frame.file:
            facts |= {"file": frame.file, "line": frame.line}
        frames.append(facts)
    weighed = [(stack, weight.ns) for stack, weight in found.weights.items() if weight.ns]
    return {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": found.ns,
        "samples": [[first + index for index in stack] for stack, _ in weighed],
        "weights": [ns for _, ns in weighed],
    }
