"""The tree that text and DOT show: phases, modules in the order they ran, ops; what repeats is there once, a loop's
iterations included.

Two stretches are the same if they have the same ops with the same results in modules of the same names, layer numbers
aside. Steps of decode are, whatever their sizes: a cache grows from one to the next. Of single ops in a row, only those
are that do the same: to the same tensors, or each to what the one before it gave. A stretch that repeats is an item
with the first repetition's nodes; of the others, each node's `Twin` says which of those it is like.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any, NamedTuple

from .. import ops
from ..base.words import counted
from .graph import CLOSED, SOURCES, ComputationGraph, Node

MAX_PERIOD = 64  # longest stretch of lines looked at for a repetition
_DECODE = "decode"
_BETWEEN = "other"  # the phase of what is none of a model's: preparing data, reading results
_INDEX = re.compile(r"(.*?)(\d+)\Z", re.DOTALL)


class Twin(NamedTuple):
    """Of a node in a repetition that is not shown: the same node in the first one, and which repetition it is."""

    shown: int
    stretch: Item
    number: int  # from 1 on
    word: str  # ``@h.3``, ``#2``, of an iteration ``@2``


Folded = dict[int, Twin]


class Item:
    """A line: an op or input (``node``), a module, a closed one (both), or a stretch that repeats."""

    __slots__ = ("children", "cls", "exact", "ids", "label", "loose", "node", "repeated", "shape", "varies", "words")

    def __init__(self, label: str = "", cls: str = "", node: Node | None = None) -> None:
        self.label, self.cls, self.node = label, cls, node
        self.children: list[Item] = []
        self.repeated = 1
        self.words: list[str] = []  # what to call each repetition
        # equal for stretches that are the same, are so to the last size, or are so but for sizes
        self.shape = self.exact = self.loose = 0
        self.varies = False  # stands for results of other sizes, too
        # of all nodes here, those in repetitions that are not shown included: in equal stretches, in the same order
        self.ids: list[int] = [] if node is None else [node.id]


def initialization(graph: ComputationGraph) -> set[int]:
    """What makes parameters and buffers, and nothing else: ops outside of modules, before the last of those has a name.

    They are made of each other alone. Whoever reads one of them from elsewhere knows it by a name.
    """
    kind, names = graph._kind, graph._names
    alone = bytearray(len(graph))
    for node in graph.nodes:
        own = not kind[node.id] and not graph._module[node.id] and node.phase == _BETWEEN
        alone[node.id] = kind[node.id] in SOURCES or (own and all(alone[source] for source, _ in node.inputs))
    last = max((node for node in names if alone[node] and not kind[node]), default=-1)
    found: set[int] = set()
    elsewhere = {node for node, _ in graph.outputs}  # read there
    within: set[int] = set()
    for node in reversed(graph.nodes):
        op = kind[node.id] not in SOURCES
        only_within = node.id not in elsewhere and (node.id in within or (op and _is_upkeep(node)))
        if alone[node.id] and node.id <= last and (only_within or (op and node.id in names)):
            found.add(node.id)
            within.update(of for of, _ in node.inputs)
        else:
            elsewhere.update(of for of, _ in node.inputs)
    return found


def initialized(graph: ComputationGraph, nodes: Set[int]) -> str:
    """In words; empty where there is nothing."""
    made = sum(node in graph._names for node in nodes)
    count = sum(not graph._kind[node] for node in nodes)
    return f"initialization: {counted(made, 'parameter')}, {counted(count, 'op')}" if nodes else ""


def grow(graph: ComputationGraph, without: Set[int] = frozenset()) -> list[tuple[str, Item]]:
    """(phase, root) per stretch of one phase; below, modules in the order they ran. without: nodes to leave out."""
    sections: list[tuple[str, Item]] = []
    trail: list[Item] = []
    names: tuple[str, ...] = ()
    module, kind = graph._module, graph._kind
    said, recorded = graph._said_phases, graph._phase
    waiting: list[Node] = []
    last: tuple[object, int] = (None, -1)  # phase and module of the op before
    for node in graph.nodes:
        if node.id in without:
            continue
        if kind[node.id] in SOURCES:
            if node.id not in graph._names:  # readers of the others show the name
                waiting.append(node)  # belongs before the model that uses it first
            continue
        phase = said.get(node.id) or recorded[node.id]
        if phase != last[0]:
            root = Item()
            sections.append((node.phase, root))
            trail, names = [root], ()
            last = (phase, -1)
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
            last = (phase, module[node.id])
        end = len(trail[0].children) - (len(trail) > 1)
        trail[0].children[end:end] = [Item(node=item) for item in waiting]
        waiting.clear()
        if kind[node.id] == CLOSED:  # the module itself, in place of what is in it
            place = trail.pop()
            place.node, place.ids = node, [node.id]
            names = where.names[:-1]
            last = (phase, -1)
            continue
        trail[-1].children.append(Item(node=node))
    if waiting:
        sections.append(("other", Item()))
        sections[-1][1].children.extend(Item(node=node) for node in waiting)
    return sections


def _hoist(item: Item) -> None:
    """A ``ModuleList`` runs nothing itself: its layers take its name, ``h.0``."""
    found: list[Item] = []
    for child in item.children:
        if child.node is None and child.children and all(g.label.isdigit() for g in child.children):
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


class Folder:
    """Gives equal stretches equal numbers and folds repetitions, from the leaves up."""

    def __init__(self) -> None:
        self.shapes: dict[Any, int] = {}
        self.folded: Folded = {}

    def fold(self, root: Item, phase: str) -> None:
        """What is below the root of a phase; the root itself then is like others of that phase, or not."""
        for item in reversed(_parents_first(root)):
            _hoist(item)
        root.label = phase
        for item in reversed(_parents_first(root)):
            if item.node is not None:
                node = item.node
                known = (node.op, node.outputs, _without_number(item.label), item.label and repr(node.kwargs))
                item.exact = item.shape = self._number(known)
                item.loose = self._number((node.op, len(node.outputs), *known[2:]))
                if not item.label and _is_upkeep(node):
                    item.shape = self._number(node.op)
                elif not item.label and _is_of_state(node):
                    item.shape = self._number((node.op, repr((node.args, node.kwargs))))
                continue
            item.ids = [node for child in item.children for node in child.ids]
            item.children = self.repeats(item.children)
            label = _without_number(item.label)
            item.exact = item.shape = self._number((label, tuple((c.exact, c.repeated) for c in item.children)))
            item.loose = self._number(("sizes aside", label, tuple((c.loose, c.repeated) for c in item.children)))

    def _number(self, key: Any) -> int:
        return self.shapes.setdefault(key, len(self.shapes))

    def repeats(self, items: list[Item], sign: str = "#", of: str = "") -> list[Item]:
        """The same with each stretch that comes several times in a row as one item; sign: before its number. of: only
        stretches with this phase, whatever their sizes.
        """
        keys = [(item.loose if of else item.shape, item.repeated) for item in items]
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
            if best == 1 and items[i].node is not None and not items[i].label:
                times = _alike(items[i : i + times])
            runs = [items[i + k * best : i + (k + 1) * best] for k in range(times)]
            if of and not any(item.label == of for item in runs[0]):
                times = 1
            if times < 2 or (times == 2 and any(a.exact != b.exact for a, b in zip(*runs))):
                found.append(items[i])
                i += 1
                continue
            found.append(self._join(runs, sign))
            i += best * times
        return found

    def _join(self, runs: list[list[Item]], sign: str) -> Item:
        first, last = runs[0], runs[-1]
        joined = first[0] if len(first) == 1 else Item()
        named = [len(run) == 1 and run[0].label not in ("", first[0].label) for run in runs]
        labels = [run[0].label if name else f"{sign}{number}" for number, (run, name) in enumerate(zip(runs, named), 1)]
        joined.words = [first[0].label if any(named) else f"{sign}1", *labels[1:]]
        ids = [node for item in first for node in item.ids]
        joined_ids = list(ids)
        for number, run in enumerate(runs[1:], 1):
            there = [node for item in run for node in item.ids]
            joined_ids += there
            word = f"@{labels[number]}" if named[number] else labels[number]
            for shown, node in zip(ids, there, strict=True):
                self.folded[node] = Twin(shown, joined, number, word)
        for place, item in enumerate(first):
            _say_what_varies(item, [run[place] for run in runs])
        if len(first) > 1:
            joined.children = first
            joined.exact = self._number(("these", tuple((item.exact, item.repeated) for item in first)))
            joined.loose = self._number(("these, sizes aside", tuple((item.loose, item.repeated) for item in first)))
        elif joined.label and joined.label != last[0].label:
            joined.label = f"{joined.label} … {last[0].label}"
        joined.repeated = len(runs)
        joined.ids = joined_ids
        return joined


def _say_what_varies(first: Item, all_of_it: list[Item]) -> None:
    """Of what stands for all of these, and of what is in it."""
    todo = [(first, all_of_it)]
    for item, alike in todo:  # grows while it is read
        if any(each.exact != item.exact for each in alike):
            item.varies = True
            todo += [(child, [each.children[i] for each in alike]) for i, child in enumerate(item.children)]


def _alike(items: list[Item]) -> int:
    """How many ops from the first on are one call, made again with the same tensors, or with what it just gave."""
    nodes = [item.node for item in items if item.node is not None]
    count = 1
    while count < len(nodes) and _again(nodes[count - 1], nodes[count]):
        count += 1
    return count


def _again(node: Node, later: Node) -> bool:
    if _is_upkeep(node) or _is_of_state(node):
        return True
    sources = [source for source, _ in node.inputs]
    follows = [source for source, _ in later.inputs]
    if len(sources) != len(follows):
        return False
    if not all(then in (before, node.id) for before, then in zip(sources, follows)):
        return False
    looks = ops.about(node.op).tag == "view"  # at one part of a tensor after the other
    return looks or (node.args, node.kwargs) == (later.args, later.kwargs)


def _without_number(label: str) -> tuple[str, bool]:
    key = _INDEX.match(label)
    return (key.group(1), True) if key else (label, False)


def _is_upkeep(node: Node) -> bool:
    """Initialization and parameter updates: the same few ops for each parameter, whatever its size."""
    return node.phase == "optimizer" or (not node.module and (node.op.endswith("_") or not node.inputs))


def _is_of_state(node: Node) -> bool:
    """A copy of a parameter or buffer, its norm: the same for each of them, whatever its size."""
    names = node.graph._names
    return not node.module and bool(node.inputs) and all(source in names for source, _ in node.inputs)


def fold(graph: ComputationGraph, without: Set[int] = frozenset()) -> tuple[list[tuple[str, Item]], Folded]:
    """`grow`, with what repeats folded; and the twins of all nodes that are not shown.

    What repeats across phases are the iterations of a loop: one section, with the phases of the first one within it.
    """
    folder = Folder()
    items: list[Item] = []
    phases: set[Item] = set()  # those that stay one item
    for phase, root in grow(graph, without):
        folder.fold(root, phase)
        if phase == _BETWEEN:  # a loop may begin or end within it
            items += root.children
        else:
            items.append(root)
            phases.add(root)
    sections: list[tuple[str, Item]] = []
    for item in folder.repeats(folder.repeats(items, "@"), "@", _DECODE):
        if item in phases:
            sections.append((item.label, item))
            continue
        name = "iterations" if any(child in phases for child in item.children) else _BETWEEN
        if name != _BETWEEN or not sections or sections[-1][0] != _BETWEEN:
            sections.append((name, Item()))
        sections[-1][1].children.append(item)
        sections[-1][1].ids += item.ids
    return sections, folder.folded
