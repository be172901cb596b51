"""What a picture shows: all boxes of a graph or those of one module and its neighbours, which of them are open; several
graphs beside each other."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..base.errors import UsageError
from ..base.words import counted
from .boxes import IN, OUT, Box, boxed, pre_order
from .graph import ComputationGraph
from .reduce import matches, module_paths, there_are
from .structure import part_lines
from .text import left_out

MOST_SHOWN = 60  # boxes of a phase that are open by themselves


def boxes(graph: ComputationGraph, *, init: bool = False, depth: int | None = None, focus: str = "") -> Box:
    """The whole, its children the phases in program order.

    init: with the ops that make parameters, which else are one box. depth: how many levels of modules are open; without
    it, as many as can be looked at. focus: only modules of that path, and what they read from and give to. Raises
    UsageError where there is none.
    """
    root = boxed(graph, init)
    if focus:
        root = _focused(graph, root, focus)
    _open(root, depth)
    return root


def shown(
    graph: ComputationGraph, title: str = "", beside: Sequence[tuple[str, ComputationGraph]] = (), **options: Any
) -> tuple[Box, list[str]]:
    """The whole, and what stands above it. beside: titles and graphs, each of which is a box then, and so is this one.

    title: what ran. options: those of `boxes`.
    """
    if not beside:
        root = boxes(graph, **options)
        return root, [f"{counted(graph.count('op'), 'op')}{': ' * bool(root.name)}{root.name}", *_less(graph)]
    whole = Box("", kind="all")
    for name, each in ((title, graph), *beside):
        try:
            root = whole.add(boxes(each, **options))
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from error
        root.kind, root.name, root.notes = "graph", name, [*filter(None, [root.name]), *_less(each)]
    whole.open = True
    return whole, [f"{len(whole.children)} graphs side by side"]


def _less(graph: ComputationGraph) -> list[str]:
    return list(filter(None, [left_out(graph), *part_lines(graph)]))


def _focused(graph: ComputationGraph, root: Box, pattern: str) -> Box:
    """Wherever modules match: they, and those beside them that they read from or give to."""
    wanted = {path for path in module_paths(graph) if matches(path, [pattern])}
    if not wanted:
        raise UsageError(f"no module matches {pattern!r}{_near(graph, pattern)}")
    around: dict[Box, None] = {}
    for box in pre_order(root):
        if box.kind != "module" or any(up.found for up in box.above()):
            continue
        around_it = _size(box.parent)  # in between are modules whose layers have taken their names
        places = {graph.nodes[node].module_info.names for node in box.nodes}
        box.found = any(names[:size] in wanted for names in places for size in range(around_it + 1, _size(box) + 1))
        if box.found and box.parent is not None:
            around[box.parent] = None
    for box in list(around):
        if any(up in around for up in box.above()):  # is shown there
            box.found = True
            del around[box]
    whole = Box(root.name, kind="all")
    for box in around:
        phase = next(up for up in (box, *box.above()) if up.kind == "phase")
        if box is not phase:
            where = box.parent.path if box.parent is not None else ""
            box.cls = box.cls if box.cls != box.name else ""
            box.name, box.kind = f"{phase.name}, {'.'.join(filter(None, (where, box.name)))}", "phase"
        found = {i for i, child in enumerate(box.children) if child.found}
        edges = {edge: n for edge, n in box.edges.items() if found.intersection(edge)}
        kept = sorted(found.union(i for edge in edges for i in edge if i >= 0))
        number = {IN: IN, OUT: OUT} | {old: new for new, old in enumerate(kept)}
        box.children = [box.children[i] for i in kept]
        box.edges = Counter({(number[a], number[b]): n for (a, b), n in edges.items()})
        whole.add(box)
    return whole


def _size(box: Box | None) -> int:
    """How many names lead to it."""
    return box.path.count(".") + 1 if box is not None and box.path else 0


def _near(graph: ComputationGraph, pattern: str) -> str:
    paths = [".".join(names) for names in module_paths(graph)]
    known = {form: path for path in reversed(paths) for form in (path.split(".")[-1], path.partition(".")[2], path)}
    near = dict.fromkeys(known[form] for form in difflib.get_close_matches(pattern, filter(None, known), 5, 0.6))
    return f"; nearest: {', '.join(list(near)[:3])}" if near else there_are(graph)


def _open(root: Box, depth: int | None) -> None:
    """Which boxes show what is in them: so many levels of modules, or as many boxes as can be looked at."""
    level = {root: 0}
    everything = pre_order(root)
    small = len(everything) <= MOST_SHOWN and not any(box.found for box in everything)
    shown: Counter[Box] = Counter()  # by phase
    phase: dict[Box, Box] = {root: root}
    todo = [root]
    for box in todo:  # grows while it is read
        here = phase[box]
        folds = box.kind in ("module", "pattern") and not box.found
        if depth is not None:
            box.open = not folds or level[box] < depth
        elif box.found or box.kind in ("all", "phase"):
            box.open = True
        elif small:
            box.open = box.pattern is None
        else:
            deep = box.kind == "these" or any(child.children for child in box.children)
            box.open = deep and box.pattern is None and shown[here] + len(box.children) <= MOST_SHOWN
        box.open = box.open and bool(box.children)
        if box.open:
            shown[here] += len(box.children)
            phase |= {child: child if box is root else here for child in box.children}
            level |= dict.fromkeys(box.children, level[box] + folds)
            todo += box.children
