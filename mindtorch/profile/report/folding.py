"""The module tree of a report, made small enough to read: repeated layers folded, deep levels hidden, nothing dropped
from the sums."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

_SUMMED = ("self_s", "total_s", "forward_s", "backward_s", "self_flops", "flops", "macs", "self_params", "params",
           "trainable_params", "calls", "ops", "predicted_s", "self_predicted_s", "bound_s", "about_s", "about_low_s",
           "about_high_s")  # fmt: skip
_INDEXED = re.compile(r"(.*?)(\d+)\Z", re.DOTALL)


@dataclass
class Node:
    label: str
    cls: str
    values: dict[str, Any]
    children: list[Node] = field(default_factory=list)
    repeated: int = 1
    paths: list[str] = field(default_factory=list)  # of all modules that it stands for

    def size(self) -> int:
        """Number of nodes below this one."""
        return sum(1 + child.size() for child in self.children)


def build(modules: list[dict[str, Any]]) -> list[Node]:
    """The roots of the pre-order list ``modules``; labels are relative to the parent's path."""
    roots: list[Node] = []
    trail: list[tuple[int, str, Node]] = []
    for row in modules:
        depth, path = int(row.get("depth") or 0), row.get("path") or ""
        while trail and trail[-1][0] >= depth:
            trail.pop()
        label = path
        if trail and path.startswith(trail[-1][1] + "."):
            label = path[len(trail[-1][1]) + 1 :]
        node = Node(label, row.get("class") or "", row, paths=[path])
        (trail[-1][2].children if trail else roots).append(node)
        trail.append((depth, path, node))
    return roots


def _shape(node: Node) -> tuple[Any, ...]:
    """What makes two layers the same layer: everything but the time, the memory and the index."""
    values = node.values
    return (
        node.cls,
        values.get("calls"),
        values.get("flops"),
        values.get("self_params"),
        values.get("params"),
        tuple((child.label, child.repeated, _shape(child)) for child in node.children),
    )


def fold(nodes: list[Node], whole: float) -> list[Node]:
    """Join runs of three or more identical, consecutively numbered siblings into one node with the sums.

    A layer that stands out (over 5 % of ``whole`` seconds and twice the median of its run) stays on its own line.
    """
    for node in nodes:
        node.children = fold(node.children, whole)
    result: list[Node] = []
    start = 0
    while start < len(nodes):
        end = start + 1
        while end < len(nodes) and _continues(nodes[end - 1], nodes[end]):
            end += 1
        result += _fold_run(nodes[start:end], whole)
        start = end
    return result


def _continues(before: Node, after: Node) -> bool:
    one, two = _INDEXED.match(before.label), _INDEXED.match(after.label)
    if one is None or two is None or one.group(1) != two.group(1):
        return False
    return int(two.group(2)) == int(one.group(2)) + 1 and _shape(before) == _shape(after)


def _fold_run(run: list[Node], whole: float) -> list[Node]:
    if len(run) < 3:
        return run
    times = [node.values.get("total_s") or 0.0 for node in run]
    usual = median(times)
    odd = [time > 2 * usual and time > 0.05 * whole for time in times]
    result: list[Node] = []
    pending: list[Node] = []
    for node, stands_out in zip(run, odd):
        if stands_out:
            result += [_join(pending)] if len(pending) > 2 else pending
            result.append(node)
            pending = []
        else:
            pending.append(node)
    return result + ([_join(pending)] if len(pending) > 2 else pending)


def _join(run: list[Node]) -> Node:
    values = dict(run[0].values)
    for key in _SUMMED:
        values[key] = sum(node.values.get(key) or 0 for node in run)
    calls = sorted(filter(None, (node.values.get("call_s") for node in run)), key=lambda spread: spread["median"])
    values["call_s"] = calls[len(calls) // 2] if calls else None
    values["peak_bytes"] = max((node.values.get("peak_bytes") or 0 for node in run), default=0)
    children = [_join_same([node.children[i] for node in run]) for i in range(len(run[0].children))]
    last = _INDEXED.match(run[-1].label)
    paths = [path for node in run for path in node.paths]
    return Node(f"{run[0].label}-{last.group(2) if last else ''}", run[0].cls, values, children, len(run), paths)


def _join_same(run: list[Node]) -> Node:
    joined = _join(run)
    joined.label, joined.repeated = run[0].label, run[0].repeated
    return joined


def names(nodes: list[Node]) -> dict[str, str]:
    """{path of a module: that of the node that stands for it}, as ``Net.h.7.attn``: ``Net.h.0-11.attn``."""
    found: dict[str, str] = {}
    todo = [("", node) for node in nodes]
    while todo:
        above, node = todo.pop()
        name = f"{above}.{node.label}" if above else node.label
        found.update(dict.fromkeys(node.paths, name))
        todo += [(name, child) for child in node.children]
    return found


def collapse(nodes: list[Node]) -> list[Node]:
    """Put a container that did nothing itself (a ``ModuleList``) and its only child on one line: ``h.0-11``."""
    result = []
    for node in nodes:
        node.children = collapse(node.children)
        idle = not any(node.values.get(key) for key in ("calls", "self_s", "self_flops", "self_params"))
        if idle and node.label and len(node.children) == 1:
            child = node.children[0]
            child.label = f"{node.label}.{child.label}"
            node = child
        result.append(node)
    return result


def order(nodes: list[Node], key: Callable[[Node], Any]) -> None:
    """Sort siblings in place, at every level."""
    nodes.sort(key=key)
    for node in nodes:
        order(node.children, key)


def _count(nodes: list[Node], depth: int) -> int:
    return sum(1 + (_count(node.children, depth - 1) if depth > 0 else 0) for node in nodes)


def shown_depth(nodes: list[Node], limit: int) -> int:
    """The deepest level to show so that at most ``limit`` rows result; always at least the roots' children."""
    depth = 1
    while depth < 64 and _count(nodes, depth + 1) <= limit and _count(nodes, depth + 1) > _count(nodes, depth):
        depth += 1
    return depth


def rows(nodes: list[Node], depth: int) -> Iterator[tuple[list[bool], Node, int]]:
    """(for each level, whether it is the last sibling; node; nodes hidden below it), top to bottom, no recursion."""
    stack: list[tuple[list[bool], Node]] = [([], node) for node in reversed(nodes)]
    while stack:
        trail, node = stack.pop()
        show = len(trail) < depth
        yield trail, node, 0 if show else node.size()
        if show:
            last = len(node.children) - 1
            stack += [([*trail, i == last], child) for i, child in reversed(list(enumerate(node.children)))]
