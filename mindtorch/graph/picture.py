"""What a picture of a graph shows: all boxes or those of one module and its neighbours, and which of them are open."""

from __future__ import annotations

import difflib
from collections import Counter

from ..base.errors import UsageError
from .boxes import IN, OUT, Box, boxed, inside
from .graph import ComputationGraph
from .reduce import matches, module_paths, there_are

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


def _focused(graph: ComputationGraph, root: Box, pattern: str) -> Box:
    """Wherever modules match: they, and those beside them that they read from or give to."""
    wanted = {path for path in module_paths(graph) if matches(path, [pattern])}
    if not wanted:
        raise UsageError(f"no module matches {pattern!r}{_near(graph, pattern)}")
    around: dict[Box, None] = {}
    for box in inside(root):
        if box.kind != "module" or any(up.found for up in box.above()):
            continue
        size = box.path.count(".") + 1
        names = {graph.nodes[node].module_info.names[:size] for node in box.nodes}
        box.found = not wanted.isdisjoint(names)
        if box.found and box.parent is not None:
            around[box.parent] = None
    whole = Box(root.name, kind="all")
    for box in around:
        phase = next(up for up in (box, *box.above()) if up.kind == "phase")
        if box is not phase:
            where = box.parent.path if box.parent is not None else ""
            box.name, box.kind = f"{phase.name}, {'.'.join(filter(None, (where, box.name)))}", "phase"
        found = {i for i, child in enumerate(box.children) if child.found}
        edges = {edge: n for edge, n in box.edges.items() if found.intersection(edge)}
        kept = sorted(found.union(i for edge in edges for i in edge if i >= 0))
        number = {IN: IN, OUT: OUT} | {old: new for new, old in enumerate(kept)}
        box.children = [box.children[i] for i in kept]
        box.edges = Counter({(number[a], number[b]): n for (a, b), n in edges.items()})
        whole.add(box)
    return whole


def _near(graph: ComputationGraph, pattern: str) -> str:
    paths = [".".join(names) for names in module_paths(graph)]
    known = {form: path for path in reversed(paths) for form in (path.split(".")[-1], path.partition(".")[2], path)}
    near = dict.fromkeys(known[form] for form in difflib.get_close_matches(pattern, filter(None, known), 5, 0.6))
    return f"; nearest: {', '.join(list(near)[:3])}" if near else there_are(graph)


def _open(root: Box, depth: int | None) -> None:
    """Which boxes show what is in them: so many levels of modules, or as many boxes as can be looked at."""
    level = {root: 0}
    everything = inside(root)
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
