"""The blocks that a model repeats: what is found in one of them is in all.

A model of 126 layers makes the same calls 126 times. Patterns are looked for in a graph with four of those blocks: the
first, two from the middle, and the last. What is found in the third must be what is found in the second, one block
later; then it is in all between the first and the last, too, and else the whole graph is searched.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..graph import ComputationGraph
from .flow import FORWARD, Flow
from .pattern import Found, Pattern

__all__ = ["Blocks"]

Candidate = Found | tuple[int, str]

LEAST = 6  # of fewer blocks, too little is left out
_DISTANCES = 4  # that are tried, the most frequent first


class Blocks:
    """``count`` equal blocks of ``size`` nodes each, from node ``start`` of a graph on; `flow`: with four of them.

    Nodes before the third block's end have the same numbers there; all others have smaller ones, by `left_out`.
    """

    def __init__(self, whole: Flow, start: int, size: int, count: int) -> None:
        self.start, self.size, self.count = start, size, count
        self.left_out = (count - 4) * size
        self._whole = whole
        self.flow = Flow(_shortened(whole.graph, start + 3 * size, self.left_out, start), whole.phases)

    @classmethod
    def of(cls, flow: Flow) -> Blocks | None:
        """The longest run of equal blocks; None where there is none of so many blocks that a search gets shorter."""
        found = _repeated(flow.graph) if flow.phases == FORWARD else None
        if found is None or _is_read_later(flow.graph, *found):
            return None
        return cls(flow, *found)

    def candidates(self, pattern: Pattern) -> Iterator[Candidate]:
        """What ``pattern.find`` gives for the whole graph."""
        by_block: tuple[list[Candidate], ...] = ([], [], [], [])
        for candidate in pattern.find(self.flow):
            blocks = {self._block(node) for node in _nodes(candidate)} - {-1}
            first, last = min(blocks, default=0), max(blocks, default=0)
            if last > first + 1 or (first == 2 and self._is_behind(candidate)):
                return pattern.find(self._whole)  # it is of more than two blocks
            by_block[first].append(candidate)
        one_later = [self._moved(each, self.size) for each in by_block[1]]
        if list(map(_apart_from_check, one_later)) != list(map(_apart_from_check, by_block[2])):
            return pattern.find(self._whole)
        return self._everywhere(by_block)

    def _everywhere(self, by_block: Sequence[list[Candidate]]) -> Iterator[Candidate]:
        yield from by_block[0]
        for block in range(self.count - 3):
            for candidate in by_block[1]:
                yield self._moved(candidate, block * self.size)
        for candidate in (*by_block[2], *by_block[3]):
            yield self._moved(candidate, self.left_out)

    def _block(self, node: int) -> int:
        """In which of the four a node is, or in the last if it comes later; -1: before the first."""
        return min((node - self.start) // self.size, 3) if node >= self.start else -1

    def _is_behind(self, candidate: Candidate) -> bool:
        return max(_nodes(candidate)) >= self.start + 4 * self.size

    def _moved(self, candidate: Candidate, by: int) -> Candidate:
        """The same, with other numbers for what is not before the blocks."""

        def moved(node: int) -> int:
            return node + by if node >= self.start else node

        if isinstance(candidate, tuple):
            return moved(candidate[0]), candidate[1]
        return replace(
            candidate,
            anchor=moved(candidate.anchor),
            nodes=set(map(moved, candidate.nodes)),
            weights=[moved(node) for node in candidate.weights],
            joins=moved(candidate.joins),
            core=set(map(moved, candidate.core)),
        )


def _apart_from_check(candidate: Candidate) -> Any:
    return candidate if isinstance(candidate, tuple) else {**vars(candidate), "check": None}


def _nodes(candidate: Candidate) -> set[int]:
    if isinstance(candidate, tuple):
        return {candidate[0]}
    joins = {candidate.joins} - {-1}
    return {candidate.anchor, *candidate.nodes, *candidate.weights, *candidate.core, *joins}


def _repeated(graph: ComputationGraph) -> tuple[int, int, int] | None:
    """(first node, nodes of a block, blocks) of the longest run; None if it is of fewer than `LEAST`."""
    alike = _numbered(graph)
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for node, number in enumerate(alike):
        if number in last:
            distances[node - last[number]] += 1
        last[number] = node
    best: tuple[int, int, int] | None = None
    for size, times in distances.most_common(_DISTANCES):
        if times < (LEAST - 1) * size / 2:
            continue
        for begin, end in _runs(graph, alike, size):
            start, count = begin - size, (end - begin) // size + 1
            if count >= LEAST and (best is None or count * size > best[1] * best[2]):
                best = start, size, count
    return best


def _numbered(graph: ComputationGraph) -> list[int]:
    """By node, a number that is equal for nodes that do the same, whatever they read."""
    numbers: dict[Any, int] = {}
    found = []
    classes = [numbers.setdefault(module.classes, len(numbers)) for module in graph._modules]
    reads, readings = graph._first, _by_node(graph)
    for node, call in enumerate(graph._call):
        key = (
            call, graph._kind[node], graph._phase[node], graph._place[node], classes[graph._module[node]],
            reads[node + 1] - reads[node], readings.get(node), graph._writes.get(node), graph._numbers.get(node),
            node in graph._names, graph._said_phases.get(node),
        )  # fmt: skip
        found.append(numbers.setdefault(key, len(numbers)))
    return found


def _by_node(graph: ComputationGraph) -> dict[int, tuple[Any, ...]]:
    if not graph._readings:
        return {}
    return {node.id: node.readings for node in graph.nodes if any(each is not None for each in node.readings)}


def _runs(graph: ComputationGraph, alike: list[int], size: int) -> Iterator[tuple[int, int]]:
    """From where until where each node does what the one `size` before it does, with what the one before reads: the
    same from before the first block, else what lies `size` later, at most in the block before.
    """
    first, source, output = graph._first, graph._source, graph._output
    begin = size
    for node in range(size, len(alike) + 1):
        if node < len(alike) and alike[node] == alike[node - size]:
            start = begin - size
            block = start + (node - start) // size * size
            here, there = first[node], first[node - size]
            for i in range(first[node + 1] - here):
                now, before = source[here + i], source[there + i]
                if output[here + i] != output[there + i] or not (
                    now == before < start or (now - before == size and now >= block - size)
                ):
                    break
            else:
                continue
        if node > begin:
            yield begin, node
        begin = node + 1


def _is_read_later(graph: ComputationGraph, start: int, size: int, count: int) -> bool:
    """Does anything after the blocks read one that is not the last?"""
    end = start + count * size
    later = graph._source[graph._first[end] :]
    return any(start <= source < end - size for source in later)


def _shortened(graph: ComputationGraph, at: int, left_out: int, start: int) -> ComputationGraph:
    """Without `left_out` nodes from `at` on; what reads one of those reads the one that is so many before it."""
    made, end = ComputationGraph(), at + left_out

    def without(column: Any, at: int = at, end: int = end) -> Any:
        return column[:at] + column[end:]

    def renumbered(by_node: dict[int, Any], at: int = at, end: int = end) -> dict[int, Any]:
        return {n if n < at else n - (end - at): value for n, value in by_node.items() if n < at or n >= end}

    made._calls, made._modules, made._places = graph._calls, graph._modules, graph._places
    made._known_modules = graph._known_modules
    for name in ("_call", "_module", "_place", "_phase", "_kind"):
        setattr(made, name, without(getattr(graph, name)))
    for name in ("_names", "_numbers", "_writes", "_draws", "_said_phases"):
        setattr(made, name, renumbered(getattr(graph, name)))
    inputs = graph._first[at], graph._first[end]
    made._first = graph._first[:at] + array("Q", [i - (inputs[1] - inputs[0]) for i in graph._first[end:]])
    made._source = graph._source[: inputs[0]] + array(
        "I", [source if source < start else source - left_out for source in graph._source[inputs[1] :]]
    )
    made._output = without(graph._output, *inputs)
    made._readings = renumbered(graph._readings, *inputs)
    return made
