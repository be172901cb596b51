"""The graph as a tree to read: phases, modules in the order they ran, ops; what repeats is shown once.

Two stretches are the same if they have the same ops with the same results in modules of the same names, layer numbers
aside. The numbers shown (``%12``) are node ids, of the first repetition where a stretch is folded; what a later one
made is ``%12@h.3``, what %12 is in h.3, or ``%12#2``, what it is the second time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from .graph import ComputationGraph, Node
from .parts import Hole, Opaque, Output

MAX_PERIOD = 64  # longest stretch of lines looked at for a repetition
_INDEX = re.compile(r"(.*?)(\d+)\Z", re.DOTALL)
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
    return node.name or ("parameter" if node.kind == "parameter" else "data")


def _result(node: Node) -> str:
    if not node.outputs:
        return "-"
    first = node.outputs[0]
    more = f" +{len(node.outputs) - 1}" if len(node.outputs) > 1 else ""
    return f"{sizes(first)} {element_type(first)}{more}"


def _arguments(node: Node, folded: Folded) -> str:
    module = node.module + "."
    inputs = node.inputs
    graph = node.graph

    def show(value: Any) -> str:
        if isinstance(value, Hole):
            source, output = inputs[value.index]
            if source in graph._names:
                return graph._names[source].removeprefix(module)
            name = _name(source, folded)
            return f"{name}.{output}" if output else name
        if isinstance(value, Opaque):
            return value.text
        if isinstance(value, list):
            return "[" + ", ".join(map(show, value)) + "]"
        if isinstance(value, tuple):
            return "(" + ", ".join(map(show, value)) + ")"
        if isinstance(value, float):
            return f"{value:.6g}"
        return "max" if value == _LAST and isinstance(value, int) else repr(value).removeprefix("torch.")

    words = [show(a) for a in node.args]
    words += [f"{key}={show(v)}" for key, v in node.kwargs.items() if v is not None and key not in _UNTOLD]
    return ", ".join(words)


#: {id of a node in a repetition that is not shown: (id of the same node in the first one, which repetition it is)}.
Folded = dict[int, tuple[int, str]]


def _name(node: int, folded: Folded) -> str:
    which = ""
    while node in folded:
        node, repetition = folded[node]
        which = repetition + which
    return f"%{node}{which}"


# ---- the tree --------------------------------------------------------------------------------------------------------
class Item:
    """A line: an op or input (``node``), a module, or a stretch that repeats."""

    __slots__ = ("children", "cls", "exact", "ids", "label", "node", "repeated", "shape", "varies")

    def __init__(self, label: str = "", cls: str = "", node: Node | None = None) -> None:
        self.label, self.cls, self.node = label, cls, node
        self.children: list[Item] = []
        self.repeated = 1
        self.shape = self.exact = 0  # equal for stretches that are the same, and are so to the last size
        self.varies = False  # stands for results of other sizes, too
        # of all nodes here, those in repetitions that are not shown included: in equal stretches, in the same order
        self.ids: list[int] = [] if node is None else [node.id]


def _grow(graph: ComputationGraph) -> list[tuple[str, Item]]:
    """(phase, root) per stretch of one phase; below, modules in the order they ran."""
    sections: list[tuple[str, Item]] = []
    trail: list[Item] = []
    names: tuple[str, ...] = ()
    module, phase, kind = graph._module, graph._phase, graph._kind
    waiting: list[Node] = []
    last = (-1, -1)  # phase and module of the op before
    for node in graph.nodes:
        if kind[node.id]:
            if node.id not in graph._names:  # readers of the others show the name
                waiting.append(node)  # belongs where it is first used
            continue
        if phase[node.id] != last[0]:
            root = Item()
            sections.append((node.phase, root))
            trail, names = [root], ()
            last = (phase[node.id], -1)
        if module[node.id] != last[1]:
            where = node.module_info
            common = 0
            while common < min(len(names), len(where.names)) and names[common] == where.names[common]:
                common += 1
            del trail[common + 1 :]
            for name, cls in zip(where.names[common:], where.classes[common:]):
                child = Item(name, cls)
                trail[-1].children.append(child)
                trail.append(child)
            names = where.names
            last = (phase[node.id], module[node.id])
        for item in (*waiting, node):
            trail[-1].children.append(Item(node=item))
        waiting.clear()
    if waiting:
        sections.append(("other", Item()))
        sections[-1][1].children.extend(Item(node=node) for node in waiting)
    return sections


def _hoist(item: Item) -> None:
    """A ``ModuleList`` runs nothing itself: its layers take its name, ``h.0``."""
    found: list[Item] = []
    for child in item.children:
        if child.node is None and child.children and all(g.node is None and g.label.isdigit() for g in child.children):
            for layer in child.children:
                layer.label = f"{child.label}.{layer.label}"
            found += child.children
        else:
            found.append(child)
    item.children = found


def _parents_first(root: Item) -> list[Item]:
    order = [root]
    for item in order:  # grows while it is read
        order += item.children
    return order


class _Folder:
    """Gives equal stretches equal numbers and folds repetitions, from the leaves up."""

    def __init__(self) -> None:
        self.shapes: dict[Any, int] = {}
        self.folded: Folded = {}

    def fold(self, root: Item) -> None:
        for item in reversed(_parents_first(root)):
            _hoist(item)
        for item in reversed(_parents_first(root)):
            if item.node is not None:
                item.exact = item.shape = self._number((item.node.op, item.node.outputs))
                if _is_upkeep(item.node):
                    item.shape = self._number(item.node.op)
                continue
            item.ids = [node for child in item.children for node in child.ids]
            item.children = self._repeats(item.children)
            key = _INDEX.match(item.label)
            label = (key.group(1), True) if key else (item.label, False)
            item.exact = item.shape = self._number((label, tuple((c.exact, c.repeated) for c in item.children)))

    def _number(self, key: Any) -> int:
        return self.shapes.setdefault(key, len(self.shapes))

    def _repeats(self, items: list[Item]) -> list[Item]:
        keys = [item.shape for item in items]
        later = [0] * len(items)  # where the same line comes next
        seen: dict[Any, int] = {}
        for i in range(len(items) - 1, -1, -1):
            later[i] = seen.get(keys[i], 0)
            seen[keys[i]] = i
        found: list[Item] = []
        i = 0
        while i < len(items):
            best, times = 0, 1
            j = later[i]
            while j and j - i <= MAX_PERIOD:
                period = j - i
                if best and period % best == 0:
                    j = later[j]  # the shorter period says it already
                    continue
                n = 1
                while keys[i : i + period] == keys[i + n * period : i + (n + 1) * period]:
                    n += 1
                if n > 1 and (n - 1) * period > (times - 1) * best:
                    best, times = period, n
                j = later[j]
            runs = [items[i + k * best : i + (k + 1) * best] for k in range(times)]
            if times < 2 or (times == 2 and any(a.exact != b.exact for a, b in zip(*runs))):
                found.append(items[i])
                i += 1
                continue
            found.append(self._join(runs))
            i += best * times
        return found

    def _join(self, runs: list[list[Item]]) -> Item:
        first, last = runs[0], runs[-1]
        ids = [node for item in first for node in item.ids]
        joined_ids = list(ids)
        for number, run in enumerate(runs[1:], 2):
            named = len(run) == 1 and run[0].label not in ("", first[0].label)
            which = f"@{run[0].label}" if named else f"#{number}"
            there = [node for item in run for node in item.ids]
            joined_ids += there
            for shown, node in zip(ids, there, strict=True):
                self.folded[node] = (shown, which)
        for place, item in enumerate(first):
            item.varies = any(run[place].exact != item.exact for run in runs)
        joined = first[0]
        if len(first) > 1:
            joined = Item()
            joined.children = first
            joined.exact = self._number(("these", tuple((item.exact, item.repeated) for item in first)))
        elif joined.label and joined.label != last[0].label:
            joined.label = f"{joined.label} … {last[0].label}"
        joined.repeated = len(runs)
        joined.ids = joined_ids
        return joined


def _is_upkeep(node: Node) -> bool:
    """Initialization and parameter updates: the same few ops for each parameter, whatever its size."""
    return node.phase == "optimizer" or (not node.module and (node.op.endswith("_") or not node.inputs))


# ---- lines -----------------------------------------------------------------------------------------------------------
def to_text(graph: ComputationGraph, width: int = 80) -> str:
    """The tree, at most ``width`` columns wide (at least 40)."""
    width = max(width, 40)
    lines = list(_summary(graph, width))
    sections = _grow(graph)
    folded: Folded = {}
    for _, root in sections:  # all of them first: gradients are computed from what the forward pass made
        folder = _Folder()
        folder.fold(root)
        folded |= folder.folded
    for phase, root in sections:
        lines += ["", f"── {phase} " + "─" * (width - len(phase) - 4)]
        lines += _tree(root, width, folded)
    return "\n".join(lines)


def _summary(graph: ComputationGraph, width: int) -> Iterator[str]:
    segments = graph.segments
    counts = ((graph.count("op"), "op"), (len(graph.edges), "edge"), (graph.count("parameter"), "parameter"),
              (graph.count("input"), "other input"))
    yield _cut(", ".join(f"{n:,} {word}{'' if n == 1 else 's'}" for n, word in counts), width)
    made = sum(1 for node in graph._names if not graph._kind[node])
    if made:
        yield _cut(f"{made:,} more parameters and buffers are made by the program's own ops", width)
    readers = Counter(s.read_by.removeprefix("aten::") for s in segments if s.read_by)
    if readers:
        text = ", ".join(f"{name} ×{n}" if n > 1 else name for name, n in readers.most_common())
        yield _cut(f"{len(segments)} segments: the program reads values by {text}", width)


def _tree(root: Item, width: int, folded: Folded) -> Iterator[str]:
    stack = [("", "", child) for child in reversed(root.children)]  # the outermost level has no branches
    while stack:
        head, below, item = stack.pop()
        yield _line(item, head, width, folded)
        last = len(item.children) - 1
        for i, child in reversed(list(enumerate(item.children))):
            stack.append((below + ("└─ " if i == last else "├─ "), below + ("   " if i == last else "│  "), child))


def _line(item: Item, head: str, width: int, folded: Folded) -> str:
    times = f" ×{item.repeated}" if item.repeated > 1 else ""
    node = item.node
    if node is None:
        if not item.label:
            return _cut(f"{head}{item.repeated} × these {len(item.children)}:", width)
        cls = f"  {item.cls}" if item.cls and item.cls not in (item.label, f"({item.label})") else ""
        return _cut(f"{head}{item.label}{times}{cls}", width)
    right = "sizes differ" if item.varies else _cut(_result(node), width // 2)
    left = f"{head}%{node.id} {title(node)}"
    if node.kind == "op":
        room = width - len(left) - len(times) - len(right) - 3
        arguments = _clean(_arguments(node, folded))
        if len(arguments) > room:
            arguments = arguments[: max(room - 1, 0)] + "…" if room > 0 else ""
        left += f"({arguments})" if arguments else ""
    left = _cut(_clean(left) + times, width - len(right) - 1)
    return left + " " * (width - len(left) - len(right)) + right


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
