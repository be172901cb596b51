"""The graph as a page for a browser: the boxes of `boxes`, to open and close, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..base.document import document
from .boxes import Box, pre_order, starred
from .graph import ComputationGraph
from .picture import shown
from .svg import grid_of

_VIEWER = Path(__file__).with_name("viewer")
_FILES = ("graph.css", "dom.js", "search.js", "graph.js")


def to_html(
    graph: ComputationGraph, *, title: str = "", beside: Sequence[tuple[str, ComputationGraph]] = (), **options: Any
) -> str:
    """See `mindtorch.graph.picture.shown` for what is there, and open at first."""
    root, heads = shown(graph, title, beside, **options)
    whole = " | ".join([title, *(name for name, _ in beside)])
    return document(
        f"genie graph {whole}".strip(), page_data(root, heads, whole), _VIEWER, _FILES, tool="genie graph",
        noun="graph", searched="modules and operations",
    )  # fmt: skip


def page_data(root: Box, heads: list[str], title: str) -> dict[str, Any]:
    """What the page shows: all boxes, each before those in it, and where those lie."""
    order = pre_order(root)
    number = {box: i for i, box in enumerate(order)}
    return {"title": title, "summary": heads, "boxes": [_box(box, number) for box in order]}


def _box(box: Box, number: dict[Box, int]) -> dict[str, Any]:
    lines = box.lines() if box.kind != "all" else []
    found: dict[str, Any] = {"kind": box.kind, "lines": lines, "about": box.about, "path": starred(box.path)}
    if box.pattern is not None:
        found["pattern"] = 0 if box.kind == "pattern" else 1  # which of the lines
    if box.children:
        grid, edges = grid_of(box)
        found["open"] = box.open
        found["children"] = [number[child] for child in box.children]
        found["cells"] = [[n, row, grid.columns[n]] for n, row in grid.rows.items()]  # 0: from outside, the last: to it
        found["lanes"] = [list(lane) for lane in grid.lanes]
        found["edges"] = [list(edge) for edge in edges]
    if box.found:
        found["found"] = True
    return found
