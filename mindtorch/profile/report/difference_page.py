"""What two reports differ in, as one page for a browser, which asks nobody for anything (SPEC C5).

How pages are made: `mindtorch.base.document`. The scripts of this kind are in the folder `viewer` beside this file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mindtorch.base.document import document
from mindtorch.base.formats import atomic
from mindtorch.profile.report import flame_boxes, stacks
from mindtorch.profile.report.conditions import where
from mindtorch.profile.report.flame_boxes import short
from mindtorch.profile.report.repeated_rows import folded, total
from mindtorch.profile.report.step_times import SHARED

#: What a page has at most, so that it stays small whatever differs: rows of each table.
ROWS = 1500
_SCRIPTS = ("text", "dom", "table", "flame", "search", "difference")  # each uses those before it
_VIEWER = Path(__file__).with_name("viewer")
_SHOWN = ("flops", "bytes", "ops", "time")  # MACs go with the FLOPs
_MODULE, _OP = stacks.KINDS.index("module"), stacks.KINDS.index("op")


def write_html(difference: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """One HTML file. Raises OSError if it can't be written."""
    text = page(difference)
    with atomic(path) as file:
        file.write(text)


def page(difference: Mapping[str, Any]) -> str:
    """The whole of it, as text. difference: as `difference.compare` makes it."""
    return document(
        short(f"genie diff {' → '.join(difference['diff'])}"),
        page_data(difference),
        _VIEWER,
        [f"{name}.js" for name in _SCRIPTS],
        tool="genie diff",
        noun="comparison",
        searched="modules, operations and lines",
    )


def page_data(difference: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows. Figures are pairs: before, and after. Of a table, `rest` is how many rows were left out, and
    their sums."""
    metrics = [name for name in ("flops", "bytes", "ops", "params", "time") if name in difference["totals"]]
    measured = difference["mode"] == "measured"
    return {
        "diff": [short(name) for name in difference["diff"]],
        "mode": difference["mode"],
        "runs": [_run(difference[when]) for when in ("before", "after")],
        "notes": [short(note) for note in difference["notes"]],
        "failed": [short(line) for line in difference.get("failed", ())],
        "totals": {
            name: [*_pair(value), *([value["beyond_noise"]] if "beyond_noise" in value else [])]
            for name, value in difference["totals"].items()
        },
        "metrics": metrics,
        "flame": _flame(difference["detail"], [name for name in metrics if name != "time" or not measured]),
        "memory": [[row["category"], *_pair(row)] for row in difference["memory"]],
        "most": _most(difference),
        "renamed": _renamed(difference)[:ROWS],
        "held": _table(difference["held"], ("category", "file", "line", "before", "after"), ("category",), ()),
        "phases": _table(
            [
                {**row, "module": "", "category": row["part"] or row["phase"], "phase": row["part"] and row["phase"]}
                for row in difference["phases"]
            ],
            ("category", "phase", "what"),
            ("category", "phase", "what"),
            _SHOWN,
        ),
        "modules": _table(
            [row for row in difference["modules"] if _figures(row)],
            ("class", "what"),
            ("class", "what"),
            (*_SHOWN, "params"),
        ),
        "rows": _table(difference["rows"], ("op", "phase", "file", "line", "what"), ("op", "phase", "what"), _SHOWN),
    }


def _most(difference: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where most of the first metric that differs was added, or taken away."""
    totals = difference["totals"]
    for metric in ("flops", "bytes", "ops", "params", "peak"):
        by = totals[metric]["difference"]
        if by and (found := where(metric, difference, 1 if by > 0 else -1)) is not None:
            row = found.row
            place = {"module": short(row["module"]), "file": row.get("file", ""), "line": row.get("line", 0)}
            of = row.get("op") or row.get("category", "")
            return {
                "metric": metric,
                "by": found.by_module,
                "times": found.times,
                "op": of,
                "by_row": found.by_row,
                **place,
            }
    return None


def _renamed(difference: Mapping[str, Any]) -> list[list[str]]:
    """Pairs of names, and modules that differ in their class alone."""
    names = [[short(row[when]) for when in ("before", "after")] for row in difference["renamed"]]
    classes = [row for row in difference["modules"] if " → " in row["class"] and not _figures(row)]
    pairs = [(row["module"], *row["class"].split(" → ")) for row in classes]
    return names + [[short(f"{module} {old}"), short(f"{module} {new}")] for module, old, new in pairs]


def _figures(row: Mapping[str, Any]) -> bool:
    """Is any of its figures another?"""
    return any(isinstance(value, dict) and value["difference"] for value in row.values())


def _run(facts: Mapping[str, Any]) -> dict[str, Any]:
    tool = facts["tool"]
    return {
        "command": short(" ".join(map(str, facts["command"]))),
        "device": facts["device"],
        "steps": facts["steps"],
        "tool": f"mindtorch {tool['mindtorch']}, torch {tool['torch']}",
    }


def _pair(value: Mapping[str, Any]) -> list[float]:
    return [round(value[when], 12) for when in ("before", "after")]


def _table(
    rows: Sequence[Mapping[str, Any]], apart: tuple[str, ...], names: tuple[str, ...], metrics: tuple[str, ...]
) -> dict[str, Any]:
    """Equal layers are one row, `repeated` of them. apart: what tells rows apart, after the module. names: the fields
    that a row is called by. metrics: with a figure each; without, the row itself is a figure, of bytes."""
    found = []
    for same in folded(rows, apart):
        first = same[0]
        figures = {name: total(values) for name in metrics if (values := [row[name] for row in same if row.get(name)])}
        if "time" in figures and abs(figures["time"]["difference"]) <= SHARED * len(same):
            del figures["time"]  # shares of waiting are rounded
        found.append({
            "module": short(first["module"]), "repeated": len(same), **{name: first[name] for name in names},
            "file": first.get("file", ""), "line": first.get("line", 0), "source": short(first.get("source") or ""),
            "figures": {name: _marked(value) for name, value in (figures or {"bytes": total(same)}).items()},
        })  # fmt: skip
    left = found[ROWS:]
    sums = {
        name: [sum(row["figures"][name][side] for row in left if name in row["figures"]) for side in (0, 1)]
        for name in metrics or ("bytes",)
    }
    return {"rows": found[:ROWS], **({"rest": {"count": len(left), "figures": sums}} if left else {})}


def _marked(value: Mapping[str, Any]) -> list[Any]:
    """Before, after, and false where a measured time is within noise."""
    return [*_pair(value), *([False] if value.get("beyond_noise") is False else [])]


def _flame(detail: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, Any]:
    """Modules within modules, and their ops, in pre-order, whatever they differ in; pairs of figures of each box."""
    depths, frames, own, named = _tree(detail, metrics)
    of = flame_boxes.kept(depths, frames, own)
    used, number = flame_boxes.numbered(of)
    return {
        "frames": [named[i] for i in used],
        "depth": [depth for depth, _, _ in of],
        "frame": [number[frame] for _, frame, _ in of],
        **{
            f"{name}_{when}": [weights[2 * i + side] / _UNIT.get(name, 1) for _, _, weights in of]
            for i, name in enumerate(metrics)
            for side, when in enumerate(("before", "after"))
        },
    }


_UNIT = {"time": 10**12}  # boxes have whole numbers: picoseconds, as shares of waiting are no whole nanoseconds


def _tree(
    detail: Mapping[str, Any], metrics: Sequence[str]
) -> tuple[list[int], list[int], list[flame_boxes.Weights], list[list[Any]]]:
    """(depths, numbers of frames, weights, the frames: kind, name, class or kind of change)"""
    children: dict[tuple[str, bool] | None, list[tuple[str, bool]]] = {}
    ops: dict[tuple[str, bool], list[Any]] = {}
    own: dict[tuple[str, bool], flame_boxes.Weights] = {}
    classes: dict[tuple[str, bool], str] = {}
    nothing = (0,) * (2 * len(metrics))
    rows = [dict(zip(detail["columns"], values, strict=True)) for values in detail["rows"]]
    known = {(row["module"], row["removed"]) for row in rows}
    for row in rows:
        at = row["module"], row["removed"]
        weights = tuple(
            round(row[f"{name}_{when}"] * _UNIT.get(name, 1)) for name in metrics for when in ("before", "after")
        )
        if at not in own:
            own[at] = nothing
            children.setdefault(_above(at, known), []).append(at)
        classes[at] = row["class"]
        if row["op"]:
            ops.setdefault(at, []).append((row["op"], weights))
        else:
            own[at] = weights
    depths: list[int] = []
    found: list[flame_boxes.Weights] = []
    named: list[list[Any]] = []

    def add(depth: int, frame: list[Any], weights: flame_boxes.Weights) -> None:
        depths.append(depth)
        found.append(weights)
        named.append(frame)

    def walk(at: tuple[str, bool], depth: int) -> None:
        add(depth, [_MODULE, short(at[0] or "(outside any module)"), short(classes[at])], own[at])
        for inner in children.get(at, ()):
            walk(inner, depth + 1)
        for op, weights in ops.get(at, ()):
            add(depth + 1, [_OP, short(op), ""], weights)

    for root in children.get(None, ()):
        walk(root, 0)
    return depths, list(range(len(depths))), found, named


def _above(at: tuple[str, bool], known: set[tuple[str, bool]]) -> tuple[str, bool] | None:
    """The module that one is in: of a removed one, a removed one first."""
    path, removed = at
    while "." in path:
        path = path.rpartition(".")[0]
        for gone in (True, False) if removed else (False, True):
            if (path, gone) in known:
                return path, gone
    return None
