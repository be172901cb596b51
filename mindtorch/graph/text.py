"""The graph as a tree to read: phases, modules in the order they ran, ops; what repeats is shown once.

Two stretches are the same if they have the same ops with the same results in modules of the same names, layer numbers
aside. The numbers shown (``%12``) are node ids, of the first repetition where a stretch is folded; what a later one
made is ``%12@h.3``, what %12 is in h.3, or ``%12#2``, what it is the second time; in the third iteration of a loop, it
is ``%12@3``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from typing import Any

import torch

from ..base.words import counted, visible
from .fold import Folded, Item, fold, initialization, initialized
from .graph import DATA, ComputationGraph, Node
from .parts import Hole, Opaque, Output
from .structure import part_lines

_LAST = 2**63 - 1  # torch's "to the end" of a slice
_UNTOLD = frozenset({"device", "pin_memory", "layout"})  # the same all over a program; JSON has them
_TYPES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
    torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip


# ---- words -----------------------------------------------------------------------------------------------------------
def element_type(output: Output) -> str:
    """``f32``, ``i64``; torch's own word for the rarer ones."""
    return _TYPES.get(output.dtype) or str(output.dtype).removeprefix("torch.")


def sizes(output: Output) -> str:
    """``1x64x768``; ``scalar`` for no dimensions."""
    return "x".join(map(str, output.shape)) or "scalar"


def title(node: Node) -> str:
    """What to call a node: the op without ``aten::``, or the name of the tensor it brings in."""
    if node.kind == "op":
        return node.op.removeprefix("aten::")
    if node.kind == "module":
        return node.module
    if node.op != DATA:  # of a part of a graph: what an op elsewhere makes
        return f"from {node.name or node.op.removeprefix('aten::')}{', ' * bool(node.module)}{node.module}"
    return node.name or ("parameter" if node.kind == "parameter" else "data")


def _result(node: Node) -> str:
    if not node.outputs:
        return "-"
    first = node.outputs[0]
    more = f" +{len(node.outputs) - 1}" if len(node.outputs) > 1 else ""
    return f"{sizes(first)} {element_type(first)}{more}"


def arguments(node: Node, folded: Folded) -> str:
    """Of an op, as written in a line."""
    inputs = node.inputs
    words = [_shown(a, node, inputs, folded) for a in node.args]
    if node.kind == "op":
        given = {key: v for key, v in node.kwargs.items() if v is not None and key not in _UNTOLD}
        words += [f"{key}={_shown(v, node, inputs, folded)}" for key, v in given.items()]
    return ", ".join(words)


def _shown(value: Any, node: Node, inputs: tuple[tuple[int, int], ...], folded: Folded) -> str:
    if isinstance(value, Hole):
        source, output = inputs[value.index]
        if source in node.graph._names:
            return node.graph._names[source].removeprefix(node.module + ".")
        name = _name(source, folded)
        return f"{name}.{output}" if output else name
    if isinstance(value, Opaque):
        return value.text
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_shown(item, node, inputs, folded) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "max" if value == _LAST and isinstance(value, int) else repr(value).removeprefix("torch.")


def _name(node: int, folded: Folded) -> str:
    which = ""
    while node in folded:
        twin = folded[node]
        node, which = twin.shown, twin.word + which
    return f"%{node}{which}"


# ---- lines -----------------------------------------------------------------------------------------------------------
def to_text(graph: ComputationGraph, width: int = 80, init: bool = False) -> str:
    """The tree, at most ``width`` columns wide (at least 40)."""
    width = max(width, 40)
    hidden = set() if init else initialization(graph)
    lines = list(_summary(graph, width, hidden))
    sections, folded = fold(graph, hidden)
    for phase, root in sections:
        lines += ["", f"── {phase} " + "─" * (width - len(phase) - 4)]
        lines += _tree(root, width, folded, _named(graph, root))
    return "\n".join(lines)


def _summary(graph: ComputationGraph, width: int, hidden: Set[int]) -> Iterator[str]:
    segments = graph.segments
    counts = (
        (graph.count("op"), "op"),
        (len(graph.edges), "edge"),
        (graph.count("parameter"), "parameter"),
        (graph.count("input"), "other input"),
    )
    yield _cut(", ".join(counted(n, word) for n, word in counts), width)
    if graph.left_out:
        yield _cut(left_out(graph), width)
    for line in part_lines(graph):
        yield _cut(line, width)
    if hidden:
        yield _cut(initialized(graph, hidden), width)
    made = sum(1 for node in graph._names if not graph._kind[node] and node not in hidden)
    if made:
        yield _cut(f"{made:,} more parameters and buffers are made by the program's own ops", width)
    readers = Counter(s.read_by.removeprefix("aten::") for s in segments if s.read_by)
    if readers:
        text = ", ".join(f"{name} ×{n}" if n > 1 else name for name, n in readers.most_common())
        yield _cut(f"{counted(len(segments), 'segment')}: the program reads values by {text}", width)


def ops_inside(node: Node) -> str:
    """``8 ops``: how many a closed module stands for."""
    return counted(node.kwargs["ops"], "op")


def left_out(graph: ComputationGraph) -> str:
    """What is not in a part of a graph, in words; empty where nothing is missing."""
    less = [(graph.left_out.get(key, 0), key[:-1]) for key in ("ops", "edges", "parameters")]
    words = [counted(n, word) for n, word in less if n]
    steps = graph.left_out.get("after_steps")
    words += [f"what came after {counted(steps, 'iteration')}"] if steps else []
    return f"left out: {', '.join(words)}" if words else ""


def _named(graph: ComputationGraph, root: Item) -> dict[Item, str]:
    """What an analyzer says that lines are: the innermost that holds all of a pattern, else those of its parts."""
    found: dict[Item, dict[str, None]] = {}
    shown = set(root.ids)
    for each in graph.patterns or ():
        if each.refused or each.anchor not in shown:
            continue
        item, below = root, [root]
        while below:
            item = below[0]
            below = [child for child in item.children if each.nodes <= set(child.ids)]
        for named in item.children if item is root else [item]:
            if not each.nodes.isdisjoint(named.ids):
                found.setdefault(named, {})[each.pattern] = None
    return {item: ", ".join(names) for item, names in found.items()}


def _tree(root: Item, width: int, folded: Folded, named: dict[Item, str]) -> Iterator[str]:
    stack = [("", "", child) for child in reversed(root.children)]  # the outermost level has no branches
    while stack:
        head, below, item = stack.pop()
        yield _line(item, head, width, folded, f"  [{named[item]}]" if item in named else "")
        last = len(item.children) - 1
        for i, child in reversed(list(enumerate(item.children))):
            stack.append((below + ("└─ " if i == last else "├─ "), below + ("   " if i == last else "│  "), child))


def _line(item: Item, head: str, width: int, folded: Folded, pattern: str) -> str:
    times = (f" ×{item.repeated}" if item.repeated > 1 else "") + pattern
    node = item.node
    if node is None:
        if not item.label:
            return _cut(f"{head}{item.repeated} × these {len(item.children)}:", width)
        cls = f"  {item.cls}" if item.cls and item.cls not in (item.label, f"({item.label})") else ""
        return _cut(f"{head}{item.label}{times}{cls}", width)
    right = "sizes differ" if item.varies else _cut(_result(node), width // 2)
    closed = item.label != ""
    left = f"{head}%{node.id} {item.label or title(node)}"
    if closed:
        times += f"  {item.cls} ▸{ops_inside(node)}"
    if node.kind not in ("input", "parameter"):
        room = width - len(left) - len(times) - len(right) - 3
        given = visible(arguments(node, folded))
        if len(given) > room:
            given = given[: max(room - 1, 0)] + "…" if room > 0 else ""
        left += f"({given})" if given else ""
    left = _cut(visible(left) + times, width - len(right) - 1)
    return left + " " * (width - len(left) - len(right)) + right


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
