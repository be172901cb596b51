"""Files made from a profile: JSON and CSV of the report; `FORMATS` has the trace, too.

Every file is written under a temporary name beside the target and renamed when complete: nothing is half-written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from mindtorch.base.formats import Format, atomic
from mindtorch.base.words import counted
from mindtorch.profile.report.columns import TABLES

#: Of the report and its JSON: raised by whoever renames or removes a key, or changes what one means or its unit. New
#: keys do not raise it; names of ops, modules, phases and categories are values.
SCHEMA_VERSION = 2
#: Every field of the tables that is one value; what names a row or is its time has one name in all tables.
_KEYS = (column.key for columns in TABLES.values() for column in columns)
CSV_COLUMNS = tuple(dict.fromkeys(["table", "name", *(k for k in _KEYS if k not in ("path", "time_s", "call_s"))]))


def write_json(report: dict[str, Any], path: str | os.PathLike[str]) -> None:
    import json  # which `genie --help` does without

    with atomic(path) as file:
        json.dump(report, file, indent=1, ensure_ascii=False)
        file.write("\n")


def write_csv(report: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """All tables in one file, told apart by the first column: phase, part, module, op, line."""
    import csv  # not above: the command's help needs the names of the formats alone

    with atomic(path) as file:
        writer = csv.DictWriter(file, CSV_COLUMNS, restval="", extrasaction="ignore")
        writer.writeheader()
        for phase in report["phases"]:
            writer.writerow({**phase, "table": "phase", "self_s": phase["time_s"], "total_s": phase["time_s"]})
        for part in report.get("parts", ()):  # none in reports of an older genie
            writer.writerow({**part, "table": "part", "name": f"{part['phase']}: {part['name']}",
                             "self_s": part["time_s"], "total_s": part["time_s"]})  # fmt: skip
        for module in report["modules"]:
            writer.writerow({**module, "table": "module", "name": module["path"]})
        for op in report["ops"]:
            writer.writerow({**op, "table": "op"})
        for line in report["lines"]:
            writer.writerow({**line, "table": "line", "name": f"{line['file']}:{line['line']}"})


def _draw(report: dict[str, Any], recording: Callable[[], Any], path: str) -> str | None:
    from mindtorch.profile.report.trace import write_trace  # here: `genie profile --help` loads next to nothing

    dropped = write_trace(recording(), path)
    return f"leaves out the last {counted(dropped, 'event')}; --steps makes a run shorter" if dropped else None


def _page(report: dict[str, Any], recording: Callable[[], Any], path: str) -> None:
    from mindtorch.profile.report.page import write_html

    write_html(report, recording(), path)


def _flame(report: dict[str, Any], recording: Callable[[], Any], path: str) -> str | None:
    from mindtorch.profile.report.flame import write_flame

    return None if write_flame(report, recording(), path) else "is empty: nothing in the report took time"


def _snapshot(report: dict[str, Any], recording: Callable[[], Any], path: str) -> str | None:
    import pickle

    from mindtorch.profile.report.recording import Recording

    seen: Recording = recording()
    facts = None if seen.memory_snapshot is None else seen.memory_snapshot()
    with open(path, "wb") as file:
        pickle.dump({"genie": "memory snapshot", **(facts or {"segments": [], "device_traces": []})}, file, protocol=4)
    return None if facts else "is empty: the program allocates no memory of the target"


#: What ``genie profile`` can write; each is given the report, what gives the recording, and a path.
FORMATS = (
    Format(
        "json",
        "Write everything as JSON; - for stdout.",
        rb'\{\s*"schema_version":\s*\d+,\s*"tool":\s*\{\s*"mindtorch"',
        lambda report, recording, path: write_json(report, path),
    ),
    Format(
        "csv",
        "Write the module and op tables as CSV.",
        rb"table,name,[a-z_,]*\bself_s,total_s,",
        lambda report, recording, path: write_csv(report, path),
    ),
    Format(
        "trace",
        "Write a timeline for ui.perfetto.dev.",
        rb'\{"displayTimeUnit":"ms","traceEvents":\[\s*\{[^}]*\{"name":"modules and ops"',
        _draw,
        needs="measured",
    ),
    Format(
        "html",
        "Write the report as one HTML file for a browser.",
        rb"<!doctype html>\s<!-- genie profile: ",
        _page,
    ),
    Format(
        "flame",
        "Write a flame graph by module and by line for speedscope.app.",
        rb'\{"\$schema":"[a-z:/.-]*speedscope[a-z./-]*","exporter":"genie ',
        _flame,
        needs="times",
    ),
    Format(
        "memory-snapshot",
        "With an estimate: write a pickle for torch's memory viewer, pytorch.org/memory_viz.",
        rb"\x80\x04\x95[\s\S]{8}\}\x94\(\x8c\x05genie\x94\x8c\x0fmemory snapshot",
        _snapshot,
        needs="card",
        binary=True,
    ),
)
