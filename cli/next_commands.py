"""What to run after a profile: the commands that answer the questions which this report raises."""

from __future__ import annotations

import shlex
from typing import Any

from .render import clean

__all__ = ["suggest"]

_MUCH = 0.2  # of the time: worth a question
_MOST = 3  # commands


def suggest(
    command: list[str], options: list[str], report: dict[str, Any], by: str | None = None
) -> list[tuple[str, str]]:
    """(command, what it shows), the most useful first; ``command`` is the program with its arguments, ``options`` are
    genie's own that the run had (``--input ...``), ``by`` is the table that is shown already."""
    found: list[tuple[str, str]] = []
    for own, what in (*_questions(report, by), *_always(report, by)):
        line = shlex.join(["genie", "profile", *own.split(), *options, *command])
        again = own.split()[0] in options  # it was asked for already, with another value
        if len(found) < _MOST and not again and line not in [known for known, _ in found]:
            found.append((line, what))
    return found


def _questions(report: dict[str, Any], by: str | None) -> list[tuple[str, str]]:
    totals = report.get("totals") or {}
    time_s = totals.get("time_s") or 0.0
    ops = report.get("ops") or []
    python = next((row.get("self_s") or 0.0 for row in ops if row.get("name") == "(python)"), 0.0)
    said = {row["id"] for row in report.get("findings") or []}
    found = []
    if by != "line" and time_s and python > _MUCH * time_s and not said & {"data-wait", "python-line"}:
        found.append(("--by line", f"{_share(python, time_s)} of the time is Python between ops: see which lines"))
    if "first-iteration" in said:
        found.append(("--warmup 1", "the same without the first iteration"))
    if by != "op" and (totals.get("coverage") or 1.0) < 1:
        found.append(("--by op", "all ops, including those without a FLOP formula"))
    computed = [row for row in ops if not str(row.get("name")).startswith("(")]
    top: dict[str, Any] = max(computed, key=lambda row: row.get("self_s") or 0.0, default={})
    if by != "line" and time_s and (top.get("self_s") or 0.0) > _MUCH * time_s:
        name = clean(str(top["name"])).removeprefix("aten::")
        found.append(("--by line", f"{_share(top['self_s'], time_s)} of the time is {name}: see which lines call it"))
    memory = report.get("memory") or {}
    if memory.get("fits") is False and report.get("advice") is None:
        found.append(("--advise", "it does not fit: estimate the changes that would help"))
    if memory.get("fits") is False and by != "module":
        found.append(("--by module --sort bytes", "it does not fit: the modules that hold most memory at the peak"))
    return found


def _always(report: dict[str, Any], by: str | None) -> list[tuple[str, str]]:
    found = [("--by line", "the same by source line; also --by op, module, phase")] if by != "line" else []
    if report.get("mode") == "measured":
        found.append(("--trace trace.json", "a timeline to open in ui.perfetto.dev"))
    found.append(("--json profile.json", "every number, for scripts"))
    return [*found, *([("--by module", "the whole tree")] if by not in (None, "module") else [])]


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %"
