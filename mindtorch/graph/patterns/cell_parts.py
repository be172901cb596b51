"""What a recurrent cell is made of: gates, each a function of sums of products, and the state before."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..parts import Reading
from .flow import Flow
from .rerun import Source

__all__ = ["MULTIPLIES", "SUMS", "Cell", "Parts", "Product", "Refusal", "Terms", "Value", "moved", "read"]

SUMS = frozenset({"aten::add", "aten::add_"})
MULTIPLIES = frozenset({"aten::mul", "aten::mul_"})
_LESS = frozenset({"aten::rsub", "aten::sub"})
_FUNCTIONS = {
    f"aten::{name}{end}": name for name in ("sigmoid", "tanh", "relu") for end in ("", "_")
}  # fmt: skip
_SPLITS = frozenset({"aten::split", "aten::unsafe_split"})
_PLAIN = frozenset({"aten::addmm", "aten::mm", "aten::linear", "aten::mkldnn_linear", "aten::matmul"})
_TABLES = frozenset({"aten::embedding"})
_FAR = 40  # nodes of a walk
_WRITES = 16  # to one storage, that are looked through


class Refusal(Exception):
    """Of a candidate: at which node, and why it is none."""

    def __init__(self, node: int, why: str) -> None:
        super().__init__(why)
        self.node = node


# ---- parts of one storage that are written one after the other -------------------------------------------------------
def read(flow: Flow, node: int, place: int) -> Source:
    """What gave an input its numbers, where it lies in a storage of which other parts were written since."""
    view = flow[node]
    source, reading = view.inputs[place], view.readings[place]
    if reading is None:
        return source
    wanted = _part(flow, source, reading)
    if wanted is None:
        return source
    at = source
    for _ in range(_WRITES):
        if at[0] == wanted[0] or _part(flow, at, None) == wanted:
            break
        writer = flow[at[0]]
        at = writer.inputs[writer.writes[0]]
    return wanted if at[0] == wanted[0] else at


def _part(flow: Flow, source: Source, reading: Reading | None) -> Source | None:
    """Which part of a split lies where it does."""
    for _ in range(_WRITES):
        view = flow[source[0]]
        if view.op in _SPLITS:
            if reading is None:
                return source
            axis = view.args[2] if len(view.args) > 2 else view.kwargs.get("dim", 0)
            size = view.args[1]
            if len(reading.shape) != len(flow.shape(source)) or not isinstance(size, int):
                return None
            place = reading.offset // (size * reading.strides[axis])
            return (source[0], place) if place < len(view.outputs) else None
        if not view.writes:
            return None
        first = view.writes[0]
        reading = view.readings[first] if reading is None else reading
        source = view.inputs[first]
    return None


def moved(flow: Flow, source: Source, whole: bool = False) -> tuple[Source, list[int]]:
    """As `flow.behind`, through parts that were written one after the other.

    whole: up to what took it out of more numbers.
    """
    passed: list[int] = []
    while flow.is_op(source[0]) and flow.inputs(source[0]) and flow.moves(source[0]):
        if flow.is_weight(source[0]):
            break
        before = read(flow, source[0], 0)
        if whole and math.prod(flow.shape(before)) != math.prod(flow.shape(source)):
            break
        passed.append(source[0])
        source = before
    return source, passed


# ---- gates -----------------------------------------------------------------------------------------------------------
class Value(NamedTuple):
    """source: as it is read. root: what that was moved from. kind: of the function that gave it, empty for none.

    less: it is a number less a sigmoid. nodes: what moves it.
    """

    source: Source
    root: Source
    kind: str
    less: bool
    nodes: frozenset[int]


class Reset(NamedTuple):
    """What a product is of, where that is a gate times what may be the state."""

    part: Source
    gate: Value
    state: Source
    nodes: frozenset[int]


class Product(NamedTuple):
    """With a weight. parts: what it is of, joined. nodes: the product, and what joins them."""

    node: int
    weight: Source
    parts: tuple[Source, ...]
    reset: Reset | None
    nodes: frozenset[int]

    def resets(self, state: Source) -> bool:
        """Is a part of it that state, times a gate?"""
        return self.reset is not None and self.reset.state == state


@dataclass
class Terms:
    """What adds up to what a gate is a function of.

    before: (value, root) of products that were made for more steps than one. resets: (gate, what it multiplies).
    others: what is none of these.
    """

    products: list[Product] = field(default_factory=list)
    biases: list[Source] = field(default_factory=list)
    before: list[tuple[Source, int]] = field(default_factory=list)
    resets: list[tuple[Value, Terms]] = field(default_factory=list)
    others: list[Source] = field(default_factory=list)
    nodes: set[int] = field(default_factory=set)

    def every_product(self) -> Iterator[Product]:
        yield from self.products
        for _, terms in self.resets:
            yield from terms.every_product()

    def made_before(self) -> Iterator[int]:
        for terms in (self, *(inner for _, inner in self.resets)):
            yield from (root for _, root in terms.before)


@dataclass
class Cell:
    """A step. end: gives the new hidden state. state: the one before, that it mixes. new: what it carries of that.

    reads: what its gates read, behind views. sums: of each gate.
    """

    kind: str
    end: int
    nodes: set[int]
    gates: dict[str, Value]
    state: Source
    new: Source
    reads: set[Source] = field(default_factory=set)
    sums: dict[str, Terms] = field(default_factory=dict)

    def terms(self) -> Iterator[Terms]:
        yield from self.sums.values()


class Parts:
    """Of one graph: gates and their sums, each looked at once."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._terms: dict[Source, Terms] = {}

    def value(self, source: Source) -> Value:
        """What is read there."""
        root, passed = moved(self.flow, source)
        node = root[0]
        if not self.flow.is_op(node):
            return self._plain(source)
        if self.flow.ops[node] in _LESS and len(self.flow.inputs(node)) == 1:
            inner, more = moved(self.flow, read(self.flow, node, 0))
            if self.flow.is_op(inner[0]) and _FUNCTIONS.get(self.flow.ops[inner[0]]) == "sigmoid":
                return Value(source, root, "", True, frozenset([*passed, node, *more]))
        kind = _FUNCTIONS.get(self.flow.ops[node], "")
        return Value(source, root, kind, False, frozenset([*passed, node])) if kind else self._plain(source)

    def _plain(self, source: Source) -> Value:
        root, passed = moved(self.flow, source, True)
        return Value(source, root, "", False, frozenset(passed))

    def values_nodes(self, *values: Value) -> set[int]:
        return {n for value in values for n in value.nodes}

    def terms(self, gate: Value) -> Terms:
        """Of what a gate is a function of."""
        if gate.root not in self._terms:
            shape = self.flow.shape(gate.root)
            self._terms[gate.root] = self._sum(read(self.flow, gate.root[0], 0), _rows(shape))
        return self._terms[gate.root]

    def _sum(self, source: Source, rows: int, nested: bool = False) -> Terms:
        flow, found = self.flow, Terms()
        todo = [source]
        for at in todo:
            node = at[0]
            if len(todo) > _FAR:
                found.others.append(at)
                break
            if flow.is_leaf(node):
                weight = flow.is_weight(flow.behind(at)[0][0])
                (found.biases if weight else found.others).append(at)
                continue
            root, _ = moved(flow, at)
            if root[0] != node and self._made_before(root[0], rows):
                found.before.append((at, root[0]))
            elif flow.ops[node] in _TABLES:
                found.before.append((at, node))
            elif (product := self._product(node)) is not None:
                if _rows(flow.shape(at)) != rows:
                    found.others.append(at)
                    continue
                found.products.append(product)
                found.nodes |= product.nodes
            elif flow.ops[node] in SUMS and len(flow.inputs(node)) == 2:
                found.nodes.add(node)
                todo += [read(flow, node, 0), read(flow, node, 1)]
            elif flow.moves(node):
                found.nodes.add(node)
                todo.append(read(flow, node, 0))
            elif not nested and (reset := self._reset(node)) is not None:
                gate, other = reset
                inner = self._sum(other, rows, True)
                found.resets.append((gate, inner))
                found.nodes |= {node, *gate.nodes, *inner.nodes}
                found.others += inner.others
            else:
                found.others.append(at)
        return found

    def _made_before(self, node: int, rows: int) -> bool:
        """Is it the product, or the row of a table, for another number of rows?"""
        if not self.flow.is_op(node):
            return False
        if self.flow.ops[node] in _TABLES:
            return True
        return self._is_product(node) and _rows(self.flow.shape((node, 0))) != rows

    def _is_product(self, node: int) -> bool:
        flow = self.flow
        if not flow.is_op(node) or flow.ops[node] not in _PLAIN or node in flow.adapted:
            return False
        sides = flow.sides(node)
        return sides is not None and flow.is_leaf(sides[1][0]) and len(flow.shape(sides[1])) == 2

    def _product(self, node: int) -> Product | None:
        flow = self.flow
        if not self._is_product(node):
            return None
        sides = flow.sides(node)
        assert sides is not None
        root, moves = moved(flow, sides[0])
        inputs = flow.inputs(root[0]) if flow.is_op(root[0]) and flow.ops[root[0]] == "aten::cat" else ()
        joined = bool(inputs) and sum(flow.shape(each)[-1] for each in inputs) == flow.shape(root)[-1]  # else rows are
        parts = inputs if joined else (sides[0],)
        reset = None
        for part in parts:
            at, passed = moved(flow, part)
            found = self._reset(at[0])
            if found is None or reset is not None:
                continue
            gate, other = found
            value = self.value(other)
            if not value.kind:
                reset = Reset(part, gate, value.root, frozenset([at[0], *passed, *value.nodes, *gate.nodes]))
        nodes = {node, *moves, root[0]} if joined else {node}
        return Product(node, sides[1], parts, reset, frozenset(nodes))

    def _reset(self, node: int) -> tuple[Value, Source] | None:
        """(gate, the other side) of a product of two tensors, one of which is a sigmoid."""
        flow = self.flow
        if not flow.is_op(node) or flow.ops[node] not in MULTIPLIES or len(flow.inputs(node)) != 2:
            return None
        for place in (0, 1):
            gate = self.value(read(flow, node, place))
            if gate.kind == "sigmoid":
                return gate, read(flow, node, 1 - place)
        return None

    def complete(self, cell: Cell) -> None:
        """Its sums, and all that is run of them. Raises `Refusal` where a gate is a function of anything else."""
        if cell.kind == "GRU":
            terms = self.terms(cell.gates["n"])
            resets = [gate for gate, _ in terms.resets]
            resets += [p.reset.gate for p in terms.products if p.reset is not None and p.resets(cell.state)]
            if len({gate.source for gate in resets}) != 1:
                raise Refusal(cell.end, "it has no reset gate" if not resets else "it has more than one reset gate")
            cell.gates = {"r": resets[0], **cell.gates}
        for name, gate in cell.gates.items():
            terms = cell.sums[name] = self.terms(gate)
            if terms.resets and (cell.kind, name) != ("GRU", "n"):
                raise Refusal(cell.end, "a gate is multiplied with the input of another")
            if terms.others:
                raise Refusal(cell.end, f"a gate is not a sum of products with weights: it adds {self._said(terms)}")
            cell.nodes |= gate.nodes | terms.nodes
            for product in terms.every_product():
                self._read(cell, product)
        if cell.kind == "GRU" and not all(self.reads(terms, cell.state) for terms in cell.sums.values()):
            raise Refusal(cell.end, "a gate does not read the state that it mixes")
        if any(not terms.products and not terms.resets for terms in cell.sums.values()):
            raise Refusal(cell.end, "a gate reads no state: it has no product of its own step")
        if any(self._sizes(terms) < 2 for terms in cell.sums.values()):
            raise Refusal(cell.end, "a gate reads one tensor: no hidden state, or no input")

    def _read(self, cell: Cell, product: Product) -> None:
        for part in product.parts:
            root, passed = moved(self.flow, part, True)
            if product.resets(cell.state) and product.reset is not None and product.reset.part == part:
                cell.nodes |= product.reset.nodes
                root = cell.state
            elif root == cell.state:
                cell.nodes |= set(passed)
            cell.reads.add(root)

    def _sizes(self, terms: Terms) -> int:
        """How many tensors it reads."""
        roots = {moved(self.flow, part, True)[0] for product in terms.every_product() for part in product.parts}
        return len(roots) + len([*terms.made_before()])

    def _said(self, terms: Terms) -> str:
        node = terms.others[0][0]
        return self.flow.ops[node] if self.flow.is_op(node) else "a tensor without a weight"

    def reads(self, terms: Terms, state: Source) -> bool:
        """Is that state, or it times a gate, what one of its products is of?"""
        return any(
            product.resets(state) or any(moved(self.flow, part, True)[0] == state for part in product.parts)
            for product in terms.every_product()
        )


def _rows(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-1])
