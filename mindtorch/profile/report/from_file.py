"""Reports that `genie profile --json` has written."""

from __future__ import annotations

import gzip
import json
import os
from typing import Any

from mindtorch.base.errors import UsageError
from mindtorch.profile.report.export import SCHEMA_VERSION

__all__ = ["check", "read"]

_TABLES = ("models", "phases", "parts", "modules", "ops", "patterns", "labels", "lines", "findings", "assumed",
           "uncounted")  # fmt: skip
_PARTS: dict[str, type | tuple[type, ...]] = {
    "tool": dict, "mode": str, "command": list, "model": dict, "startup": dict, "totals": dict, "steps": dict,
    "memory": (dict, type(None)), "waits": dict, "detail": dict, "warnings": list, **dict.fromkeys(_TABLES, list),
}  # fmt: skip
_MODULE, _OP, _PHASE, _LINE = range(4)  # of a row of the detail; what follows are numbers, the last may have none


def read(name: str | os.PathLike[str]) -> Any:
    """What stands in a file, packed by gzip where its name ends in .gz. UsageError where it is no JSON."""
    name = os.fspath(name)
    try:
        with gzip.open(name, "rt", encoding="utf-8") if name.endswith(".gz") else open(name, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from error
    except ValueError as error:  # no text, or no JSON
        raise UsageError(f"{name}: expected a file that genie profile --json made, got something else") from error


def check(report: Any, name: str) -> None:
    """UsageError where that is not the report of one process, of this version."""
    if not isinstance(report, dict) or "totals" not in report or "diff" in report:
        raise UsageError(f"{name}: expected a file that genie profile --json made, got something else")
    if report.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            f"{name}: expected a report with schema_version {SCHEMA_VERSION}, got {report.get('schema_version')!r}: "
            "make it again with this version of genie"
        )
    if "detail" not in report:
        ranks = report.get("ranks")
        if ranks and not report.get("rank"):
            raise UsageError(f"{name}: expected the report of one rank, got that of all {len(ranks)} ranks in one")
        raise UsageError(f"{name}: expected a report with rows by line, got one of an older genie: make it again")
    if (what := _damage(report)) is not None:
        raise UsageError(f"{name} is damaged: {what}; make it again")


def _damage(report: dict[str, Any]) -> str | None:
    """What is not as `genie profile` writes it, of what all that reads reports relies on."""
    for name, kind in _PARTS.items():
        if name in report and not isinstance(report[name], kind):
            return f"{name} is of type {type(report[name]).__name__}"
    for name in _TABLES:
        if not all(isinstance(row, dict) for row in report.get(name, ())):
            return f"a row of {name} is not an object"
    if not all(isinstance(each, str) for each in (*report.get("command", ()), *report.get("warnings", ()))):
        return "command or warnings are not texts"
    for name, value in report["totals"].items():
        if value is not None and not _is_number(value):
            return f"{name} of totals is {value!r}"
    detail = report["detail"]
    columns, rows, lines = (detail.get(part) for part in ("columns", "rows", "lines"))
    if not all(isinstance(part, list) for part in (columns, rows, lines)):
        return "detail has no columns, rows or lines"
    for row in rows:
        if not isinstance(row, list) or len(row) != len(columns):
            return "a row of detail does not have one value for each column"
        named = all(isinstance(row[at], str) for at in (_MODULE, _OP, _PHASE))
        if not named or not all(map(_is_number, row[_LINE:-1])) or row[_LINE] not in range(len(lines)):
            return "a row of detail has values that genie does not write"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
