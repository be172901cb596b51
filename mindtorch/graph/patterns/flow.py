"""A graph made ready for matching: who reads what, and what a value is behind views, casts and dropout."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch

from ..._ext import context
from ..graph import ComputationGraph, Node
from .adapted import CONVOLUTIONS, Adapted, adapted
from .rerun import DROPOUT, Source, function

__all__ = ["FORWARD", "Flow"]

#: What gives the same numbers at other places, or in another precision.
MOVES = frozenset(f"aten::{name}" for name in (
    "view", "_unsafe_view", "reshape", "_reshape_alias", "transpose", "t", "permute", "expand", "unsqueeze", "squeeze",
    "slice", "select", "split", "split_with_sizes", "chunk", "unbind", "clone", "contiguous", "_to_copy", "to", "alias",
    "detach", "unflatten", "flatten", "lift_fresh", "as_strided", "movedim", "swapaxes", "numpy_T", "mT", "unfold",
    "expand_as", "view_as", "type_as", "copy", "narrow", "repeat_interleave", "index", "unsafe_split",
    "unsafe_split_with_sizes",
)) | DROPOUT  # fmt: skip

#: Products of a matrix, by where its two sides stand among the arguments.
PRODUCTS = {
    "aten::addmm": (1, 2), "aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::baddbmm": (1, 2), "aten::matmul": (0, 1),
    "aten::linear": (0, 1), "aten::mkldnn_linear": (0, 1), "aten::_grouped_mm": (0, 1),
    **dict.fromkeys(CONVOLUTIONS, (0, 1)),
}  # fmt: skip

_DRAWN = frozenset(f"aten::{name}" for name in ("bernoulli_", "bernoulli", "div_", "div", "empty_like"))
_SHAPES_ONLY = frozenset(f"aten::{name}_like" for name in ("empty", "zeros", "ones", "full", "rand", "randn")) | {
    "aten::new_zeros", "aten::new_ones", "aten::new_empty", "aten::new_full",
}  # fmt: skip
FORWARD = ("forward", "prefill", "decode", "other")
#: Without torch's own mark.
_FURTHER = frozenset(f"aten::{name}" for name in ("masked_fill_", "hardswish", "hardswish_"))


class Flow:
    """Of one graph: its forward part, backward and optimizer left out; or what is of other phases."""

    def __init__(self, graph: ComputationGraph, phases: tuple[str, ...] = FORWARD) -> None:
        self.graph, self.phases = graph, phases
        self.ops = [graph._calls[call].op for call in graph._call]
        forward = {number for number in set(graph._phase) if context.phase_name(number) in phases}
        self.nodes = [n for n, kind in enumerate(graph._kind) if not kind and graph._phase[n] in forward]
        self._forward = frozenset(self.nodes)
        self.readers: list[list[tuple[int, int]]] = [[] for _ in range(len(graph))]
        self._inputs: dict[int, tuple[Source, ...]] = {}
        for n in self.nodes:
            if self.ops[n] in _SHAPES_ONLY:
                continue
            for place, (source, _) in enumerate(self.inputs(n)):
                self.readers[source].append((n, place))
        self._leaves: dict[int, bool] = {}
        self.noise = {n: made for n in self.nodes if (made := self._noise(n))}
        self.adapted: dict[int, Adapted] = {}  # by its sum
        self._within: dict[int, int] = {}
        for total, parts in adapted(self):  # which may be of those that it gave before
            self.adapted[total] = parts
            self._within.update(dict.fromkeys((*parts.nodes, parts.products[0]), total))

    def __getitem__(self, node: int) -> Node:
        return Node(self.graph, node)

    def inputs(self, node: int) -> tuple[Source, ...]:
        found = self._inputs.get(node)
        if found is None:
            found = self._inputs[node] = self.graph._inputs_of(node)
        return found

    def shape(self, source: Source) -> tuple[int, ...]:
        return self[source[0]].outputs[source[1]].shape

    def read_shapes(self, node: int) -> tuple[tuple[int, ...], ...]:
        """Of each input as the node reads it: of what was written in parts, the last part is its source."""
        view = self[node]
        pairs = zip(self.inputs(node), view.readings, strict=True)
        return tuple(self.shape(source) if reading is None else reading.shape for source, reading in pairs)

    def is_op(self, node: int) -> bool:
        """Is it an operation of the forward part? To that, what an optimizer makes is data from outside."""
        return node in self._forward

    def _noise(self, node: int) -> list[int]:
        """The nodes that draw what a written-out dropout multiplies by; empty for all else."""
        if self.ops[node] not in ("aten::mul", "aten::mul_") or len(self.inputs(node)) != 2:
            return []
        at, found = self.inputs(node)[1][0], []
        while self.is_op(at) and self.ops[at] in _DRAWN:
            found.append(at)
            if not self.inputs(at):
                break
            at = self.inputs(at)[0][0]
        return found if any(self.ops[n].startswith("aten::bernoulli") for n in found) else []

    # ---- what kind of node it is

    def moves(self, node: int) -> bool:
        """Does it only move, copy or cast its first input?"""
        return self.ops[node] in MOVES or node in self.noise

    def drops(self, node: int) -> bool:
        """Is it a dropout?"""
        return self.ops[node] in DROPOUT or node in self.noise

    def is_pointwise(self, node: int) -> bool:
        """Is each number of the result made from those at the same place?"""
        return self.is_op(node) and (_pointwise(self.ops[node], self[node].call.overload) or self.ops[node] in _FURTHER)

    def is_leaf(self, node: int) -> bool:
        """Is it a weight, or data from outside (a mask, a table), as it is, moved or cast?"""
        trail = []
        while node not in self._leaves:
            trail.append(node)
            if not self.is_op(node) or self.is_weight(node):
                self._leaves[node] = True
            elif self.moves(node) and self.inputs(node):
                node = self.inputs(node)[0][0]
            else:
                self._leaves[node] = False
        found = self._leaves[node]
        for each in trail:
            self._leaves[each] = found
        return found

    def is_weight(self, node: int) -> bool:
        """Is it a parameter or a buffer of a module's, or what gave it its first values?"""
        return self[node].kind == "parameter" or node in self.graph._names

    def whole(self, node: int) -> int:
        """The sum of an adapted product that it is part of, else itself."""
        while (within := self._within.get(node, node)) != node:
            node = within
        return node

    def base(self, node: int) -> int:
        """Of the sum of an adapted product, that product, else itself."""
        while node in self.adapted:
            node = self.adapted[node].products[0]
        return node

    def is_linear(self, node: int) -> bool:
        """Is it a product with a weight: a matrix, or a kernel of one place; adapted or not?"""
        node = self.base(node)
        sides = self.sides(node)
        if sides is None or not self.is_leaf(sides[1][0]):
            return False
        if self.is_leaf(sides[0][0]) and not self.is_weight(self.behind(sides[1])[0][0]):
            return False  # two tensors from outside: who knows which is the weight
        if self.ops[node] in CONVOLUTIONS:
            return all(n == 1 for n in self.shape(sides[1])[2:])
        return True

    def sides(self, node: int) -> tuple[Source, Source] | None:
        """The two sides of a product."""
        node = self.base(node)
        places = PRODUCTS.get(self.ops[node])
        if places is None:
            return None
        inputs = self.inputs(node)
        return (inputs[places[0]], inputs[places[1]]) if len(inputs) > places[1] else None

    # ---- walks

    def behind(self, source: Source, further: Callable[[int], bool] = lambda node: False) -> tuple[Source, list[int]]:
        """(the value that was moved or cast, the nodes that did it, the last first)."""
        passed: list[int] = []
        while self.is_op(source[0]) and self.inputs(source[0]) and (self.moves(source[0]) or further(source[0])):
            if self.is_weight(source[0]):
                break
            passed.append(source[0])
            source = self.inputs(source[0])[0]
        return source, passed

    def back(self, start: Iterable[int], stop: Callable[[int], bool], most: int) -> tuple[list[int], list[int]]:
        """(nodes from `start` backwards for which `stop` is false, those for which it is true); `most` of the first."""
        seen: set[int] = set()
        passed: list[int] = []
        ends, todo = [], list(start)
        for node in todo:
            if node in seen:
                continue
            seen.add(node)
            if stop(node):
                ends.append(node)
            elif len(passed) < most:
                passed.append(node)
                inputs = self.inputs(node)
                todo.extend(source for source, _ in (inputs[:1] if self.moves(node) else inputs))
            else:
                break
        return passed, ends

    def ahead(self, node: int, through: Callable[[int], bool], most: int) -> tuple[set[int], list[tuple[int, int]]]:
        """(nodes after `node` for which `through` holds, each next one for which it does not, with which input)."""
        passed: set[int] = set()
        ends, todo = [], [node]
        for at in todo:
            for reader, place in self.readers[at]:
                if through(reader):
                    if reader not in passed and len(passed) < most:
                        passed.add(reader)
                        todo.append(reader)
                else:
                    ends.append((reader, place))
        return passed, ends

    def own(self, nodes: Iterable[int], core: Iterable[int]) -> set[int]:
        """`core`, and those of `nodes` of which only it and others of them read anything in this phase.

        What prefill puts into a cache is read by the steps of decode, too.
        """
        kept, phases = set(core), self.graph._phase
        for node in sorted(set(nodes) - kept, reverse=True):
            readers = [reader for reader, _ in self.readers[node] if phases[reader] == phases[node]]
            if readers and all(reader in kept for reader in readers):
                kept.add(node)
        return kept


@functools.cache
def _pointwise(op: str, overload: str) -> bool:
    if overload:
        return torch.Tag.pointwise in getattr(function(overload), "tags", ())
    packet = getattr(torch.ops.aten, op.removeprefix("aten::"), None)
    names = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ()
    return any(torch.Tag.pointwise in getattr(packet, name).tags for name in names)
