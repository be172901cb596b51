"""A profile as one page for a browser, which asks nobody for anything: the figures and what shows them are in the file.

How pages are made: `mindtorch.base.document`. The scripts of this kind are in the folder `viewer` beside this file.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mindtorch.base.document import document
from mindtorch.base.formats import atomic
from mindtorch.profile.report import columns, flame_boxes, folding, stacks
from mindtorch.profile.report.flame_boxes import short
from mindtorch.profile.report.module_names import alike
from mindtorch.profile.report.over_time import over_time
from mindtorch.profile.report.recording import Recording
from mindtorch.profile.report.stacks import Stacks

#: What a page has at most, so that it stays small whatever ran: rows of each table.
MODULES = 3000
ROWS = {"op": 1000, "line": 1500, "shape": 1500}
LISTED = 500  # of any other list
_LARGE = ("modules", "ops", "lines", "shapes")  # of the report, what has a table of its own here
_SCRIPTS = ("text", "dom", "table", "modules", "flame", "charts", "search", "page")  # each uses those before it
_NODE = ("depth", "label", "class", "repeated", "path")  # what a row of the tree of modules begins with
_VIEWER = Path(__file__).with_name("viewer")


def write_html(report: dict[str, Any], seen: Recording, path: str | os.PathLike[str]) -> None:
    """One HTML file. Raises OSError if it can't be written."""
    text = page(report, seen)
    with atomic(path) as file:
        file.write(text)


def page(report: dict[str, Any], seen: Recording) -> str:
    """The whole of it, as text."""
    return document(
        short(" ".join(["genie profile", *map(str, report["command"])])),
        page_data(report, seen),
        _VIEWER,
        [f"{name}.js" for name in _SCRIPTS],
        tool="genie profile",
        noun="report",
        searched="modules, operations and lines",
    )


def page_data(report: dict[str, Any], seen: Recording) -> dict[str, Any]:
    """What the page shows: the report with its tables as columns and rows, and the flame graphs; all bounded in size.

    What was left out of a table is its `rest`: how many rows, and their sums.
    """
    estimated = report["mode"] == "estimate" and bool(report.get("roofline"))
    target = "" if estimated else str((report.get("roofline") or {}).get("target") or "")

    def shown(of: tuple[columns.Column, ...]) -> list[columns.Column]:
        found = columns.shown(of, target=target, full=True, estimated=estimated)
        return [column for column in found if column.text != "bar"]

    shapes = [{**row, "inputs": _shapes(row["inputs"]), "outputs": _shapes(row["outputs"])}
              for row in report.get("shapes") or []]  # fmt: skip
    # How many stretches of time lie between ops says nothing.
    ops = [{**row, "calls": None} if row["name"].startswith("(") else row for row in report["ops"]]
    totals = report["totals"]
    tree = folding.fold(folding.build(report["modules"]), totals["time_s"])
    by_module, names = stacks.by_module(seen), folding.names(tree)
    return {
        "report": _plain(
            {key: value for key, value in report.items() if key not in _LARGE} | {"models": alike(report["models"])}
        ),
        "phases": _table(report["phases"], shown(columns.PHASES), ("name",), 100),
        "modules": _modules(folding.collapse(tree), shown(columns.MODULES)),
        "ops": _table(ops, shown(columns.OPS), ("name", "category"), ROWS["op"]),
        "lines": _table(
            report["lines"], shown(columns.LINES), ("file", "line", "function", "source", "package"), ROWS["line"]
        ),
        "shapes": _table(shapes, shown(columns.SHAPES), ("name", "inputs", "outputs"), ROWS["shape"]),
        "over_time": over_time(seen),
        "flames": {
            "together": _flame(stacks.together(by_module, names)),
            "module": _flame(by_module),
            "line": _flame(stacks.by_line(seen)),
        },
    }


def _plain(value: Any) -> Any:
    """For JSON as browsers read it, and bounded: numbers that are none are null, lists end where `LISTED` says."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        kept = [_plain(each) for each in value[:LISTED]]
        return [*kept, _left_out(value, len(value) - LISTED)] if len(value) > LISTED else kept
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _left_out(rows: Sequence[Any], n: int) -> Any:
    """What stands at the end of a list that is too long."""
    text = f"({n} more: --json has them all)"
    return {"name": text, "what": text, "op": text} if isinstance(rows[0], dict) else text


def _number(value: Any) -> Any:
    """Of a table. Seconds are whole nanoseconds in the report: nine digits are all of them."""
    if isinstance(value, dict):  # least, middle and most of several: the middle is shown
        value = value.get("median")
    if isinstance(value, float):
        return round(value, 9) if math.isfinite(value) else None
    return short(value) if isinstance(value, str) else value


def _filled(of: list[columns.Column], rows: Iterable[dict[str, Any]]) -> list[columns.Column]:
    """The columns in which there is anything."""
    found = {key for row in rows for key, value in row.items() if value}
    return [column for column in of if column.key in found and (column.text != "rate" or "flops" in found)]


def _titles(of: Iterable[columns.Column]) -> list[list[str]]:
    return [[column.key, column.title, column.text] for column in of]


def _fields(of: Iterable[columns.Column], names: tuple[str, ...]) -> list[str]:
    """Of a row: what it is called, what its columns show, and what rates are made from."""
    return list(dict.fromkeys([*names, *(column.key for column in of), "flops", "host_flops"]))


def _table(rows: list[dict[str, Any]], of: list[columns.Column], names: tuple[str, ...], most: int) -> dict[str, Any]:
    """The first rows of a table that is sorted, and the sums of the others."""
    of = _filled(of, rows)
    fields = _fields(of, names)
    found: dict[str, Any] = {
        "columns": _titles(of),
        "fields": fields,
        "rows": [[_number(row.get(field)) for field in fields] for row in rows[:most]],
    }
    if len(rows) > most:
        found["rest"] = _rest(rows[most:], [field for field in fields if field not in names])
    return found


def _rest(rows: list[dict[str, Any]], fields: list[str]) -> dict[str, Any]:
    sums = {field: sum(value for row in rows if isinstance(value := row.get(field), (int, float))) for field in fields}
    return {"count": len(rows), **{field: _number(value) for field, value in sums.items()}}


def _shapes(shapes: list[dict[str, Any]]) -> str:
    """``float32[2, 3] int64[5] ×48``: equal ones that follow each other once."""
    texts = [f"{shape['dtype']}{shape['shape']}" for shape in shapes]
    found: list[tuple[str, int]] = []
    for text in texts:
        if found and found[-1][0] == text:
            found[-1] = text, found[-1][1] + 1
        else:
            found.append((text, 1))
    return short(" ".join(text if n == 1 else f"{text} ×{n}" for text, n in found))


def _modules(roots: list[folding.Node], of: list[columns.Column]) -> dict[str, Any]:
    """The tree in pre-order, as a terminal shows it: repeated layers as one row, with how many they are."""
    tree = [(len(trail), node) for trail, node, _ in folding.rows(roots, sys.maxsize)]
    totals = [(node.values.get("total_s") or 0.0, node.values.get("flops") or 0) for _, node in tree]
    kept = flame_boxes.heaviest([depth for depth, _ in tree], totals, MODULES)
    of = _filled(of, (node.values for _, node in tree))
    fields = _fields(of, ("self_s", "total_s", "self_flops"))
    left = [node.values for (_, node), keep in zip(tree, kept, strict=True) if not keep]
    found: dict[str, Any] = {
        "columns": _titles(of),
        "fields": [*_NODE, *fields],
        "rows": [
            [
                depth,
                short(node.label),
                short(node.cls),
                node.repeated,
                short(node.values["path"]),
                *(_number(node.values.get(field)) for field in fields),
            ]
            for (depth, node), keep in zip(tree, kept, strict=True)
            if keep
        ],
    }
    if left:
        found["rest"] = _rest(left, ["self_s", "self_flops"])
    return found


def _flame(found: Stacks) -> dict[str, Any]:
    """The boxes in pre-order: depth, frame, and nanoseconds and FLOPs of a box itself. Small ones that lie in the same
    box are one where there are too many."""
    of = flame_boxes.kept(*_boxes(found))
    used, number = flame_boxes.numbered(of)
    return {
        "frames": [_frame(found.frames[i]) for i in used],
        "depth": [depth for depth, _, _ in of],
        "frame": [number[frame] for _, frame, _ in of],  # -1: smaller ones
        "ns": [ns for _, _, (ns, _) in of],
        "flops": [flops for _, _, (_, flops) in of],
    }


def _frame(frame: stacks.Frame) -> list[Any]:
    found: list[Any] = [stacks.KINDS.index(frame.kind), short(frame.name), short(frame.detail)]
    return [*found, frame.file, frame.line] if frame.file else found


def _boxes(found: Stacks) -> tuple[list[int], list[int], list[flame_boxes.Weights]]:
    """Of each box in pre-order: depth, index of its frame, (nanoseconds, FLOPs) that are in no box within it."""
    depths: list[int] = []
    frames: list[int] = []
    own: list[flame_boxes.Weights] = []
    last: tuple[int, ...] = ()
    for stack, weight in found.weights.items():  # siblings lie side by side
        same = 0
        while same < min(len(last), len(stack)) and last[same] == stack[same]:
            same += 1
        for depth in range(same, len(stack)):
            depths.append(depth)
            frames.append(stack[depth])
            own.append((weight.ns, weight.flops) if depth == len(stack) - 1 else (0, 0))
        last = stack
    return depths, frames, own
