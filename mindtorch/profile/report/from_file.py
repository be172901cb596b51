"""Reports that `genie profile --json` has written."""

from __future__ import annotations

import gzip
import json
import os
from typing import Any

from mindtorch.base.errors import UsageError
from mindtorch.profile.report.export import SCHEMA_VERSION

__all__ = ["check", "read"]


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
            raise UsageError(f"{name}: expected the report of one rank, got that of all {len(ranks)} in one")
        raise UsageError(f"{name}: expected a report with rows by line, got one of an older genie: make it again")
