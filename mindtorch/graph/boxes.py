"""The graph as boxes within boxes, to look at: phases, modules, ops; what repeats is one box, and so is what a pattern
names.

Each node lies in one box, those of repetitions that are not shown included. Between the boxes within one box are edges,
one for all tensors that go the same way; what comes from outside of it, or goes there, does so by `IN` and `OUT`.
"""

from __future__ import annotations

import logging
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch

from ..base.words import counted, visible
from .dot import INIT, Drawing, Drawn, Read
from .fold import Item, initialized
from .graph import PHASES, ComputationGraph, Node
from .parts import Output
from .text import arguments, element_type, sizes, title

log = logging.getLogger(__name__)
Part = TypeVar("Part")
Found = TypeVar("Found")

IN, OUT = -1, -2  # in place of a box's number: all that is around
MOST_CHILDREN = 120  # more are boxes of so many each
_MOST = 60  # characters of a line
_PREFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


class Pattern(NamedTuple):
    """What a box computes, how many of it there are in the model, and whether all were run beside it."""

    name: str
    times: int
    verified: bool
    attributes: dict[str, Any]

    def label(self) -> str:
        """``attention 12 ×``."""
        return f"{self.name} {self.times} ×" if self.times > 1 else self.name


class Box:
    """kind: ``all``, ``graph`` of several, ``initialization``, ``phase``, ``module``, ``pattern``, ``op``, ``these``.

    The last are some in a row.
    """

    def __init__(
        self, name: str, cls: str = "", kind: str = "module", times: int = 1, node: Node | None = None
    ) -> None:
        self.name, self.cls, self.kind, self.times, self.node = name, cls, kind, times, node
        self.path = ""  # of the module, in the first repetition
        self.parent: Box | None = None
        self.children: list[Box] = []
        self.shown: set[int] = set()  # nodes of the first repetition
        self.nodes: list[int] = []  # all
        self.parameters: list[int] = []  # that are read here first
        self.ops = self.elements = 0
        self.pattern: Pattern | None = None
        self.result: Output | None = None
        #: {(number of a child or IN, of another or OUT): how many tensors}
        self.edges: Counter[tuple[int, int]] = Counter()
        self.notes: list[str] = []  # of a phase: from which others it reads
        self.about = ""
        self.varies = False  # stands for results of other sizes, too
        self.open = self.found = False  # found: asked for

    def add(self, box: Box) -> Box:
        """Within this one, as its last."""
        box.parent = self
        self.children.append(box)
        return box

    def gather(self, first: int, last: int, box: Box) -> None:
        """In place of its children from first to last (excluded), one that has them."""
        for child in self.children[first:last]:
            box.add(child)
            box.shown |= child.shown
        box.parent, box.path = self, self.path
        self.children[first:last] = [box]

    def above(self) -> Iterator[Box]:
        """What it is in, from the inside out."""
        box = self.parent
        while box is not None:
            yield box
            box = box.parent

    def lines(self) -> list[str]:
        """What is written on it: a name, what it computes, how much that is."""
        times = f"{self.times} ×" if self.times > 1 else ""
        cls = self.cls if self.cls not in (self.name, f"({self.name})") else ""
        what = " ".join(filter(None, (times, cls)))
        found = [
            f"{times} {self.name}" if self.kind == "these" and times else "  ".join(filter(None, (self.name, what)))
        ]
        if self.pattern is not None and self.kind != "pattern":
            found.append(self.pattern.label())
        facts = [counted(self.ops, "op")] if self.children and self.ops else []
        facts += [f"{_amount(self.elements)} parameters and buffers"] if self.elements and self.children else []
        if self.varies:
            facts.append("sizes differ")
        elif self.result is not None and self.kind not in ("graph", "phase"):
            facts.append(f"{sizes(self.result)} {element_type(self.result)}")
        notes = [line for note in self.notes for line in textwrap.wrap(note, _MOST)]
        return [_short(line) for line in [*found, " · ".join(facts), *notes] if line]


def pre_order(root: Box) -> list[Box]:
    """It and all within, each before what is in it."""
    order: list[Box] = []
    todo = [root]
    while todo:
        order.append(todo.pop())
        todo += reversed(order[-1].children)
    return order


def boxed(graph: ComputationGraph, init: bool = False) -> Box:
    """The whole, its children the phases in program order. init: with the ops that make parameters, which else are one
    box.
    """
    return _Boxes(graph, init).root


class _Boxes:
    def __init__(self, graph: ComputationGraph, init: bool) -> None:
        self.graph, self.drawing = graph, Drawing(graph, init)
        self.phases = {*PHASES, *graph._said_phases.values()}
        self.root = Box("", kind="all")
        self.of: dict[int, Box] = {}  # by node that is shown
        self.made: dict[Item, Box] = {}
        self._grow()
        self._name_patterns()
        for box in pre_order(self.root):
            _split(box)
        self._connect()
        self._count()

    def _grow(self) -> None:
        drawing = self.drawing
        if drawing.hidden:
            words = initialized(self.graph, drawing.hidden)
            self.of[INIT] = self.root.add(Box(words, kind="initialization"))
        todo: list[tuple[Item, Box, str]] = [(section, self.root, phase) for phase, section in drawing.sections]
        for item, parent, phase in todo:  # grows while it is read
            inner = not parent.path and item.label in self.phases and not item.cls  # of an iteration
            kind = "phase" if phase or inner else "module" if item.label else "op" if item.node else "these"
            name = item.label or phase or (title(item.node) if item.node else f"these {len(item.children)}")
            box = self.made[item] = parent.add(Box(name, item.cls, kind, item.repeated, item.node))
            box.varies = item.varies
            if kind == "module":
                first = item.words[0] if item.words and item.words[0][0] not in "#@" else item.label
                box.path = ".".join(filter(None, (parent.path, first)))
            else:
                box.path = parent.path
            todo += [(child, box, "") for child in item.children]
        self.of |= {node: self.made[item] for node, item in drawing.items.items()}
        for node, box in self.of.items():
            box.shown |= {node} if node != INIT else set()
        for box in reversed(self.made.values()):
            if box.parent is not None:
                box.parent.shown |= box.shown

    # ---- patterns ----------------------------------------------------------------------------------------------------
    def _name_patterns(self) -> None:
        """A box that holds one, and no product besides, has its name; ops in a row that are one become a box."""
        from .patterns import Instance, find_patterns

        if self.graph.patterns is not None:
            found = [each for each in self.graph.patterns if not each.refused]
        else:
            failed: dict[str, Exception] = {}
            with torch.no_grad(), torch._C.DisableTorchFunction():
                found = [each for each in find_patterns(self.graph, failed=failed) if not each.refused]
            for name, error in failed.items():  # the picture shows all else
                log.warning("the search for the pattern %s failed: %s: %s", name, type(error).__name__, error)
        alike: dict[tuple[str, frozenset[int]], list[Instance]] = {}
        for each in found:
            there = self.root.shown.intersection(self.drawing.shown(node)[0] for node in each.nodes)
            alike.setdefault((each.pattern, frozenset(there)), []).append(each)
        alike = _joined(alike)
        modules = [self.graph.nodes[each.anchor].module for each in found]
        known = [all(isinstance(name, str) for name in each.place) for each in found]  # by its weights' names
        sure = {(each.pattern, module) for each, module, by_name in zip(found, modules, known) if by_name}
        placed: dict[tuple[str, frozenset[Any]], list[Instance]] = {
            (each.pattern, frozenset(each.place if by_name else [each.place])): []
            for each, module, by_name in zip(found, modules, known)
            if by_name or (each.pattern, module) not in sure
        }
        places = Counter(pattern for pattern, _ in _joined(placed))
        self.root.name = "; ".join(f"{name} {n} ×" for name, n in places.most_common())
        part_of = {node: key for key in alike for node in key[1]}
        for key, instances in alike.items():
            (name, shown), first = key, instances[0]
            pattern = Pattern(name, len(instances), all(one.verified for one in instances), first.attributes)
            holder = self.of[min(shown)] if shown else self.root
            while holder.parent is not None and not shown <= holder.shown:
                holder = holder.parent
            if holder is self.root:
                continue  # in no phase alone
            if holder.kind in ("module", "op") and self._is_all(holder, shown):
                around = holder.parent
                if holder.kind == "op" and around and around.kind == "module" and len(around.children) == 1:
                    holder = around  # a module that is this op alone
                holder.pattern = pattern
                continue
            parts = [i for i, child in enumerate(holder.children) if child.shown & shown]
            row = range(parts[0], parts[-1] + 1)
            others = any(part_of.get(node, key) != key for i in row for node in holder.children[i].shown)
            if not others and len(row) <= 2 * len(parts):
                box = self._list(holder, row) or Box(pattern.label(), kind="pattern")
                box.pattern = pattern
                path = box.path
                holder.gather(row.start, row.stop, box)
                box.path = path or box.path

    def _list(self, holder: Box, row: range) -> Box | None:
        """A box for a `Sequential`, whose layers have taken its name, where these children are all that are in it."""
        name = holder.children[row.start].name.rpartition(".")[0]
        its = [
            i for i, child in enumerate(holder.children) if child.kind == "module" and child.name.startswith(name + ".")
        ]
        if not name or its != list(row):
            return None
        first = holder.children[row.start]
        path = first.path.rpartition(".")[0]
        classes = self.graph.nodes[min(first.shown)].module_info.classes
        box = Box(name, classes[path.count(".")])
        box.path = path
        return box

    def _is_all(self, holder: Box, shown: frozenset[int]) -> bool:
        """Whether these nodes are what a box computes: all its products, or all it does, where there are none."""
        from .patterns.flow import MOVES, PRODUCTS

        names = {node: self.graph.nodes[node].op for node in holder.shown}
        products = {node for node, op in names.items() if op in PRODUCTS}
        return products <= shown if products & shown else {n for n, op in names.items() if op not in MOVES} <= shown

    # ---- edges -------------------------------------------------------------------------------------------------------
    def _connect(self) -> None:
        numbers = {child: i for box in pre_order(self.root) for i, child in enumerate(box.children)}
        gives: dict[Box, int] = {}  # the last of its nodes that is read elsewhere
        for edge, reads in self.drawing.edges().items():
            if edge.source not in self.drawing.items or edge.target not in self.drawing.items:
                continue  # a parameter's
            tensors: dict[Box | None, set[int]] = {}
            for read in reads:
                tensors.setdefault(self._crossed(edge.source, read), set()).add(read.output)
            for crossed, outputs in tensors.items():
                before = [self.of[edge.source], *self.of[edge.source].above()]
                after = [self.of[edge.target], *self.of[edge.target].above()]
                while before[-2] is after[-2] is not crossed and before[-2].children:
                    before.pop()
                    after.pop()
                if not self._is_kept(edge):
                    for child, box in pairwise(before[:-1]):
                        box.edges[numbers[child], OUT] += len(outputs)
                    for child, box in pairwise(after[:-1]):
                        box.edges[IN, numbers[child]] += len(outputs)
                if before[-2] is not after[-2]:
                    before[-1].edges[numbers[before[-2]], numbers[after[-2]]] += len(outputs)
                for box in before[:-1]:
                    gives[box] = max(gives.get(box, -1), edge.source)
        for box in reversed(pre_order(self.root)):
            node = gives.get(box, box.node.id if box.node else -1)
            box.result = next(iter(self.graph.nodes[node].outputs), None) if node >= 0 else None
            if node < 0 and box.children:
                box.result = box.children[-1].result
        for i, box in enumerate(self.root.children):
            names: Counter[str] = Counter()
            for (source, target), n in self.root.edges.items():
                names[self.root.children[source].name] += n if target == i else 0
            words = ", ".join(f"{n} of {name}" for name, n in names.items() if n)
            box.notes = [f"reads {words}"] if words else []

    def _is_kept(self, edge: Drawn) -> bool:
        """For backward, or a gradient: one of so many that only their number between phases is shown."""
        source, target = self.graph.nodes[edge.source], self.graph.nodes[edge.target]
        return source.phase != target.phase and target.phase in ("backward", "optimizer")

    def _crossed(self, source: int, read: Read) -> Box | None:
        """What this read leaves for another repetition of it."""
        for stretch in self.drawing.stretches[source]:
            if read.source.get(stretch) != read.target.get(stretch) and stretch in read.target | read.source:
                return self.made[stretch]
        return None

    # ---- counts ------------------------------------------------------------------------------------------------------
    def _count(self) -> None:
        hidden = self.drawing.hidden
        homes: dict[int, Box] = {}
        for node in reversed(self.graph.nodes):  # readers first
            shown, _ = self.drawing.shown(node.id)
            first = homes.get(node.id, self.root)  # what reads it first
            home = self.of[INIT] if node.id in hidden else self.of.get(shown, first)
            home.nodes.append(node.id)
            home.ops += node.kwargs["ops"] if node.kind == "module" else node.kind == "op"
            if node.kind == "parameter" or (node.id in hidden and node.name):
                first.parameters.append(node.id)
                first.elements += torch.Size(node.outputs[0].shape).numel()
            if node.id not in hidden:
                around = home.parent if home.kind == "op" and home.parent is not None else home
                homes |= {source: around for source, _ in node.inputs}
        for box in reversed(pre_order(self.root)):
            box.about = self._about(box)
            if box.parent is not None:
                box.parent.nodes += box.nodes
                box.parent.parameters += box.parameters
                box.parent.ops += box.ops
                box.parent.elements += box.elements

    def _about(self, box: Box) -> str:
        """What there is no room for on it."""
        found = [box.path] if box.path else []
        node = box.node
        if node is not None and box.kind == "op":
            found.append(f"%{node.id} {title(node)}({arguments(node, self.drawing.folded)})")
            found += [f"gives {sizes(out)} {element_type(out)}" for out in node.outputs]
            found += [node.source] if node.source else []
        if box.pattern is not None:
            facts = ", ".join(f"{key}: {value}" for key, value in box.pattern.attributes.items())
            proof = "verified by running it" if box.pattern.verified else "not verified by running it"
            found.append(f"{box.pattern.name}, {proof}{'; ' * bool(facts)}{facts}")
        if box.children:
            found.append(f"{counted(box.ops, 'op')}, parameters and buffers read here first: {len(box.parameters):,}")
        return "\n".join(found)


def _split(box: Box) -> None:
    """Where too many lie side by side: boxes of so many each, until a box has few."""
    while len(box.children) > MOST_CHILDREN:
        total, size = len(box.children), MOST_CHILDREN
        parts = -(-total // size)
        for part in range(parts):
            these = Box(f"part {part + 1} of {parts}", kind="these")
            box.gather(part, part + min(size, total - part * size), these)


def _joined(found: dict[tuple[str, frozenset[Part]], list[Found]]) -> dict[tuple[str, frozenset[Part]], list[Found]]:
    """With those whose parts are all parts of a larger one of that name as that: of a step of decode, say, a projection
    is part of its attention if no later step reads the cache."""
    order = {key: place for place, key in enumerate(found)}
    larger: dict[tuple[str, Part], tuple[str, frozenset[Part]]] = {}
    whole_of: dict[tuple[str, frozenset[Part]], tuple[str, frozenset[Part]]] = {}
    for key in sorted(found, key=lambda key: -len(key[1])):
        name, parts = key
        wholes = {larger[name, part] for part in parts if (name, part) in larger}
        whole_of[key] = min((whole for whole in wholes if parts <= whole[1]), key=order.__getitem__, default=key)
        for part in parts:
            larger.setdefault((name, part), whole_of[key])
    joined: dict[tuple[str, frozenset[Part]], list[Found]] = {}
    for key, each in found.items():
        joined.setdefault(whole_of[key], []).extend(each)
    return joined


# ---- words -----------------------------------------------------------------------------------------------------------
def starred(path: str) -> str:
    """With ``*`` for the numbers of layers."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def _amount(n: int) -> str:
    return next((f"{n / size:.3g} {prefix}" for size, prefix in _PREFIXES if n >= size), str(n))


def _short(line: str) -> str:
    line = visible(line)
    return line if len(line) <= _MOST else line[: _MOST - 1] + "…"
