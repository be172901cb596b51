"""The graph as Graphviz source, with what repeats drawn once, as in the text. The layout is Graphviz's.

Of a stretch that repeats, the first repetition is drawn. An edge stands for the reads that are alike in all of them;
its label says between which repetitions they are where that is not plain: from one to the next (dashed), from the last
one out, into the first, to each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..base.words import visible
from .fold import Folded, Item, fold, initialization, initialized
from .graph import SOURCES, ComputationGraph, Node
from .text import element_type, left_out, ops_inside, sizes, title

_HEAD = """digraph computation {
  rankdir=TB; compound=true; fontname="Helvetica"; newrank=true;
  node [shape=box, style="rounded", fontname="Helvetica", fontsize=10];
  edge [arrowsize=0.6, fontsize=8];
"""
_STYLE = {
    "op": "",
    "input": ", shape=ellipse, style=filled, fillcolor=lightgrey",
    "parameter": ', style="rounded,dashed"',
    "module": ", shape=component, style=filled, fillcolor=lightblue",
}

INIT = -1  # in place of a node: the initialization, as a whole
MOST_PARALLEL = 4  # edges between the same two nodes; more are one

Numbers = dict[Item, int]  # which repetition (from 0) of each stretch a node is in; those of the first are not told


def quote(text: str) -> str:
    """``text`` as a DOT string. A backslash means something to Graphviz, so it is doubled, like in C."""
    text = visible(text.replace("\r", ""), "\n").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'


def to_dot(graph: ComputationGraph, init: bool = False) -> str:
    """A node per op, input and parameter, a cluster per phase and module, an edge per tensor read."""
    drawing = Drawing(graph, init)
    missing = left_out(graph)
    label = f"  label={quote(missing)};\n" if missing else ""
    return "".join([_HEAD, label, *drawing.clusters(), *drawing.lines(), "}\n"])


class Drawn(NamedTuple):
    """Between which shown nodes there are edges; whether from one repetition of a stretch to another of the same."""

    source: int
    target: int
    crosses: bool


class Read(NamedTuple):
    """One read of the graph, of those that are drawn alike."""

    output: int
    source: Numbers
    target: Numbers


class Drawing:
    """What of a graph is drawn, and where."""

    def __init__(self, graph: ComputationGraph, init: bool = False) -> None:
        self.graph = graph
        #: What is not drawn, unless asked for by `init`: what it makes is drawn as parameters are.
        self.hidden = set() if init else initialization(graph)
        self.sections, self.folded = fold(graph, self.hidden)
        self.parents: dict[Item, Item] = {}
        #: Of a shown node: the stretches around it that repeat, outermost first.
        self.stretches: dict[int, tuple[Item, ...]] = {}
        self.items: dict[int, Item] = {}
        for _, root in self.sections:
            self._walk(root)
        self.same: dict[int, tuple[int, Numbers]] = {}  # parameters of repetitions that are not shown, as `folded`
        self.beside: dict[Item, list[int]] = {}  # parameters and named inputs: the module they are drawn in
        self._place_parameters()

    def _walk(self, root: Item) -> None:
        todo: list[tuple[Item, tuple[Item, ...]]] = [(root, ())]
        while todo:
            item, around = todo.pop()
            if item.repeated > 1:
                around = (*around, item)
            if item.node is not None:
                self.items[item.node.id], self.stretches[item.node.id] = item, around
            for child in item.children:
                self.parents[child] = item
                todo.append((child, around))

    def shown(self, node: int) -> tuple[int, Numbers]:
        """The node that is drawn for this one (`INIT` for what is hidden), and in which repetitions this one is."""
        if node in self.same:
            return self.same[node]
        if node in self.hidden and node not in self.stretches:
            return INIT, {}
        return unfolded(node, self.folded)

    # ---- parameters --------------------------------------------------------------------------------------------------
    def _place_parameters(self) -> None:
        """They are drawn where they are first read; those of repetitions that are not shown, like the first one's."""
        graph, names = self.graph, self.graph._names
        reader: dict[int, int] = {}  # of a parameter that is drawn: the shown op that reads it first
        shared: dict[int, int] = {}  # … how many of the stretches around that op have one each, if not all
        for node in graph.nodes:
            if graph._kind[node.id] in SOURCES or node.id in self.hidden:
                continue
            like, numbers = unfolded(node.id, self.folded)
            twins = graph.nodes[like].inputs
            for place, (source, _) in enumerate(node.inputs):
                if source not in names or (graph._kind[source] not in SOURCES and source not in self.hidden):
                    continue
                twin = twins[place][0] if place < len(twins) else source
                if source in self.same:
                    continue
                if reader.get(twin) != like or not numbers:
                    reader.setdefault(source, like if not numbers else -1)
                elif source == twin:
                    first = next(i for i, stretch in enumerate(self.stretches[like]) if stretch in numbers)
                    shared[source] = min(first, shared.get(source, first))
                elif source not in reader and graph.nodes[source].outputs == graph.nodes[twin].outputs:
                    self.same[source] = twin, numbers
                else:
                    reader.setdefault(source, -1)
        for source, like in reader.items():
            around = self.stretches.get(like, ())[: shared.get(source)]
            self.stretches[source] = around
            home = self.parents[self.items[like]] if like >= 0 else self.sections[0][1]
            while self._around(home) != around[: len(self._around(home))]:
                home = self.parents[home]
            self.beside.setdefault(home, []).append(source)
        for source, (twin, numbers) in self.same.items():
            own = self.stretches[twin]
            self.same[source] = twin, {stretch: n for stretch, n in numbers.items() if stretch in own}

    def _around(self, item: Item) -> tuple[Item, ...]:
        found = []
        here: Item | None = item
        while here is not None:
            if here.repeated > 1:
                found.append(here)
            here = self.parents.get(here)
        return tuple(reversed(found))

    # ---- nodes -------------------------------------------------------------------------------------------------------
    def clusters(self) -> Iterator[str]:
        number = 0
        if self.hidden:
            yield f'  init [label={quote(initialized(self.graph, self.hidden))}, style="rounded,dashed"];\n'
        phases = len(self.sections) > 1
        stack: list[tuple[Item | None, int, str]] = [(root, 1, phase) for phase, root in reversed(self.sections)]
        while stack:
            item, depth, label = stack.pop()
            indent = "  " * depth
            if item is None:  # all of its children are written
                yield f"{indent}}}\n"
                continue
            if item.node is not None:
                yield f"{indent}{self._node(item.node, item)}\n"
                continue
            if label and not (depth == 1 and not phases and not self.parents.get(item)):
                style = ' style="rounded,dashed";' if not item.label and item.repeated > 1 else ""
                yield f"{indent}subgraph cluster_{number} {{ label={quote(label)};{style}\n"
                number += 1
                stack.append((None, depth, ""))
            for node in self.beside.get(item, ()):
                yield f"{indent}  {self._node(self.graph.nodes[node])}\n"
            stack.extend((child, depth + 1, _label(child)) for child in reversed(item.children))

    def _node(self, node: Node, item: Item | None = None) -> str:
        made = node.id in self.hidden
        label = item.label if item is not None and item.label else node.name if made else title(node)
        around = self.stretches.get(node.id, ())
        if around and around[-1].node is not None:  # an op that repeats, or a parameter of such
            label += f" ×{around[-1].repeated}"
        if node.kind == "module" and item is not None:
            label += f"\n{item.cls}, {ops_inside(node)}"
        if item is not None and item.varies:
            label += "\nsizes differ"
        else:
            label += "".join(f"\n{sizes(o)} {element_type(o)}" for o in node.outputs[:2])
            label += f"\n… {len(node.outputs)} outputs" if len(node.outputs) > 2 else ""
        return f"n{node.id} [label={quote(label)}{_STYLE['parameter' if made else node.kind]}];"

    # ---- edges -------------------------------------------------------------------------------------------------------
    def edges(self) -> dict[Drawn, list[Read]]:
        """Every read of the graph, by what is drawn for it."""
        found: dict[Drawn, list[Read]] = {}
        for edge in self.graph.edges:
            if edge.target in self.hidden:
                found.setdefault(Drawn(INIT, INIT, False), []).append(Read(edge.output, {}, {}))
                continue
            source, of = self.shown(edge.source)
            target, to = self.shown(edge.target)
            common = _common(self.stretches.get(source, ()), self.stretches.get(target, ()))
            crosses = any(of.get(stretch) != to.get(stretch) for stretch in common)
            found.setdefault(Drawn(source, target, crosses), []).append(Read(edge.output, of, to))
        return found

    def lines(self) -> Iterator[str]:
        for edge, reads in self.edges().items():
            if edge.target == INIT:
                continue
            outputs: dict[int, list[Read]] = {}
            for read in reads:
                outputs.setdefault(read.output, []).append(read)
            if len(outputs) > MOST_PARALLEL:
                yield _line(edge, [f"{len(outputs)} tensors", *self._words(edge, _distinct(reads))])
                continue
            for output, alike in outputs.items():
                distinct = _distinct(alike)
                words = [*([str(output)] if output else []), *self._words(edge, distinct)]
                for _ in range(max(1, len(alike) // len(distinct))):  # ``x + x`` reads it twice
                    yield _line(edge, words)

    def _words(self, edge: Drawn, reads: list[Read]) -> Iterator[str]:
        """Between which repetitions, where that is not the same one."""
        before, after = self.stretches.get(edge.source, ()), self.stretches.get(edge.target, ())
        common = _common(before, after)
        whole = _times(common)
        outer, inner = before[len(common) :], after[len(common) :]
        sides = [(outer, [read.source for read in reads], "from"), (inner, [read.target for read in reads], "to")]
        there = 1
        for stretches, numbers, word in sides:
            if not stretches:
                continue
            used = {tuple(n.get(stretch, 0) for stretch in stretches) for n in numbers}
            there = max(there, len(used))
            if len(used) == 1:
                (which,) = used
                yield f"{word} {' '.join(s.words[n] for s, n in zip(stretches, which))}"
            else:
                yield f"{word} each" if len(used) == _times(stretches) else f"{word} {len(used)} of {_times(stretches)}"
        if edge.crosses:
            steps = {tuple(to.get(s, 0) - of.get(s, 0) for s in common) for _, of, to in reads}
            near = all(sum(map(abs, step)) == 1 and sum(step) == 1 for step in steps)
            yield "to the next" if near else "to others of them"
        elif len(reads) < whole * there:
            yield f"{len(reads)} times of {whole * there}"


def unfolded(node: int, folded: Folded) -> tuple[int, Numbers]:
    """The node that is shown for this one, and in which repetitions this one is."""
    numbers: Numbers = {}
    while node in folded:
        twin = folded[node]
        node = twin.shown
        numbers[twin.stretch] = twin.number
    return node, numbers


def _distinct(reads: list[Read]) -> list[Read]:
    return list({(tuple(read.source.items()), tuple(read.target.items())): read for read in reads}.values())


def _line(edge: Drawn, words: list[str]) -> str:
    facts = [f"label={quote(', '.join(words))}"] if words else []
    facts += ["style=dashed", "constraint=false"] if edge.crosses else []
    return f"  n{edge.source} -> n{edge.target}{' [' + ', '.join(facts) + ']' if facts else ''};\n"


def _common(one: tuple[Item, ...], other: tuple[Item, ...]) -> tuple[Item, ...]:
    length = next((i for i, (a, b) in enumerate(zip(one, other)) if a is not b), min(len(one), len(other)))
    return one[:length]


def _times(stretches: tuple[Item, ...]) -> int:
    product = 1
    for stretch in stretches:
        product *= stretch.repeated
    return product


def _label(item: Item) -> str:
    times = f" ×{item.repeated}" if item.repeated > 1 else ""
    if not item.label:
        return f"these{times}" if times else ""
    cls = f": {item.cls}" if item.cls and item.cls not in (item.label, f"({item.label})") else ""
    return f"{item.label}{times}{cls}"
