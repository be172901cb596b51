"""Recurrent cells: LSTM, GRU and Elman's, a step written out or all steps in one call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from .cell_parts import MULTIPLIES, SUMS, Cell, Parts, Refusal, Value, moved, read
from .cell_proof import check_call, check_cell
from .flow import Flow
from .pattern import Found, Pattern, form_of
from .rerun import Source

__all__ = ["RecurrentCell"]

_TANHS = frozenset({"aten::tanh", "aten::tanh_"})
_RELUS = frozenset({"aten::relu", "aten::relu_"})
_SUBTRACTS = frozenset({"aten::sub", "aten::sub_", "aten::rsub"})
_MIXES = SUMS | _SUBTRACTS | {"aten::lerp", "aten::lerp_", "aten::addcmul", "aten::addcmul_"}
_MADE = frozenset(f"aten::{name}" for name in ("ones", "ones_like", "full", "full_like", "scalar_tensor"))
_FAR = 12  # nodes of a walk
_LAYER = "aten::mkldnn_rnn_layer"
_KINDS = {0: "RNN", 1: "RNN", 2: "LSTM", 3: "GRU"}  # by torch's number
_ON_GPU = {"aten::_thnn_fused_lstm_cell": "LSTM", "aten::_thnn_fused_gru_cell": "GRU"}


class RecurrentCell(Pattern):
    """``o · tanh(c)``, ``c ← f · c + i · g`` (LSTM), ``h ← (1 - z) · n + z · h`` (GRU), ``h ← tanh(W x + U h + b)``."""

    name = "recurrent cell"

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        parts = Parts(flow)
        candidates: list[Cell | tuple[int, str] | Found] = []
        elman: list[int] = []
        for node in flow.nodes:
            op = flow.ops[node]
            if op == _LAYER or op == "aten::_cudnn_rnn" or op in _ON_GPU:
                candidates.append(_call(flow, node))
            elif op in _TANHS or op in _RELUS:
                try:
                    cell = (_lstm(parts, node) or _gru(parts, node)) if op in _TANHS else None
                except Refusal as error:
                    candidates.append((error.node, str(error)))
                    continue
                if cell is not None:
                    candidates.append(cell)
                else:
                    elman.append(node)
        gates = {value.root[0] for each in candidates if isinstance(each, Cell) for value in each.gates.values()}
        candidates += _elman(parts, [node for node in elman if node not in gates])
        cells = [each for each in candidates if isinstance(each, Cell)]
        lost = _not_carried(flow, cells)
        for each in sorted(candidates, key=_anchor):
            if not isinstance(each, Cell):
                yield each
            elif each.end in lost:
                yield each.end, lost[each.end]
            else:
                yield _found(flow, each)


def _anchor(each: Cell | tuple[int, str] | Found) -> int:
    return each.end if isinstance(each, Cell) else each[0] if isinstance(each, tuple) else each.anchor


def _found(flow: Flow, cell: Cell) -> Found:
    """With the products that were made for all steps at once: the first has them."""
    products = {product.node for terms in cell.terms() for product in terms.every_product()}
    before = {root for terms in cell.terms() for root in terms.made_before()}
    weights = {
        flow.behind(sides[1] if (sides := flow.sides(n)) else flow.inputs(n)[0])[0][0] for n in products | before
    }
    moves = [n for at in products for source in flow.inputs(at) for n in flow.behind(source)[1]]
    return Found(cell.end, flow.own(moves, cell.nodes | before), sorted(weights),
                 partial(check_cell, flow, cell), form_of(flow, cell.nodes))  # fmt: skip


def _call(flow: Flow, node: int) -> Found:
    """All steps in one call, or a step as a GPU's kernel has it."""
    view = flow[node]
    if flow.ops[node] in _ON_GPU:
        kind, hidden = _ON_GPU[flow.ops[node]], flow.shape((node, 0))[-1]
    elif flow.ops[node] == _LAYER:
        kind, hidden = _KINDS[view.args[9]], view.args[10]
    else:
        numbers = [value for value in view.args if type(value) is int]
        kind, hidden = _KINDS[numbers[1]], numbers[2]
    weights = [root[0] for source in flow.inputs(node) if flow.is_weight((root := flow.behind(source)[0])[0])]
    return Found(node, {node}, weights, partial(check_call, flow, node, kind), form_of(flow, {node}),
                 attributes={"kind": kind, "hidden": hidden, "form": "fused"})  # fmt: skip


# ---- LSTM ------------------------------------------------------------------------------------------------------------
def _lstm(parts: Parts, last: int) -> Cell | None:
    """last: the tanh of the new cell state."""
    flow = parts.flow
    new, passed = moved(flow, read(flow, last, 0))
    pairs = _two_products(parts, new, passed)
    if pairs is None:
        return None
    gates = [next((v for v in pair if v.kind == "sigmoid"), None) for pair in pairs]
    others = [next((v for v in pair if v is not gate), None) for pair, gate in zip(pairs, gates, strict=True)]
    values = [value for pair in pairs for value in pair]
    if any(v.less for v in values) and any(gates) and any(v.kind == "tanh" for v in values):
        raise Refusal(
            new[0], "its gates are coupled: the input gate is 1 minus the forget gate, or the other way round"
        )
    if None in gates or None in others:
        return None
    places = [n for n, other in enumerate(others) if other is not None and other.kind == "tanh"]
    if len(places) != 1:
        if places or not any(other is not None and other.kind == "sigmoid" for other in others):
            return None
        raise Refusal(new[0], "what is added to its cell state is not a tanh")
    (at,) = places
    i, g, f, state = gates[at], others[at], gates[1 - at], others[1 - at]
    assert i is not None and g is not None and f is not None and state is not None
    if state.source == g.source or state.kind != "":
        raise Refusal(new[0], "its cell state is not that of the step before")
    if i.source == f.source:
        raise Refusal(new[0], "one gate is both input and forget gate")
    o, end = _output_gate(parts, last)
    if o is None:
        raise Refusal(new[0], "it has no output gate" if end < 0 else "its output gate is not a sigmoid")
    nodes = {last, end, *passed, *parts.values_nodes(i, f, g, o, state)}
    cell = Cell("LSTM", end, nodes, {"i": i, "f": f, "g": g, "o": o}, state.root, new)
    parts.complete(cell)
    return cell


def _two_products(parts: Parts, new: Source, passed: list[int]) -> list[list[Value]] | None:
    """What two products are of that add up to it; `passed` gets the nodes of that."""
    flow = parts.flow
    node = new[0]
    if not flow.is_op(node):
        return None
    op, found = flow.ops[node], []
    if op in ("aten::addcmul", "aten::addcmul_") and len(flow.inputs(node)) == 3:
        found.append([parts.value(read(flow, node, 1)), parts.value(read(flow, node, 2))])
        sources = [read(flow, node, 0)]
    elif (op in SUMS or op in _SUBTRACTS) and len(flow.inputs(node)) == 2:
        sources = [read(flow, node, 0), read(flow, node, 1)]
    else:
        return None
    within = [node]
    for source in sources:
        product, moves = moved(flow, source)
        if not flow.is_op(product[0]) or flow.ops[product[0]] not in MULTIPLIES or len(flow.inputs(product[0])) != 2:
            return None
        within += [product[0], *moves]
        found.append([parts.value(read(flow, product[0], place)) for place in (0, 1)])
    passed += within
    return found


def _output_gate(parts: Parts, last: int) -> tuple[Value | None, int]:
    """(what the tanh of the new cell state is multiplied by, the product); -1 for none."""
    flow, end = parts.flow, -1
    for reader, place in flow.readers[last]:
        if flow.ops[reader] in MULTIPLIES and len(flow.inputs(reader)) == 2:
            end = reader
            gate = parts.value(read(flow, reader, 1 - place))
            if gate.kind == "sigmoid" and not gate.less:
                return gate, reader
    return None, end


# ---- GRU -------------------------------------------------------------------------------------------------------------
def _gru(parts: Parts, new: int) -> Cell | None:
    """new: the tanh that is mixed with the state before."""
    flow = parts.flow
    n = parts.value((new, 0))
    terms = parts.terms(n)
    level, seen = [new], {new}
    for _ in range(4):
        after = {reader for at in level for reader, _ in flow.readers[at] if flow.ops[reader] in _MIXES | MULTIPLIES}
        level = sorted(after - seen)[:_FAR]
        seen.update(level)
        for top in level:
            mixed = _mix(parts, top, n) if flow.ops[top] in _MIXES else None
            if mixed is None:
                continue
            z, state, nodes = mixed
            if not parts.reads(terms, state.root):
                return None
            cell = Cell("GRU", top, nodes | parts.values_nodes(z, n, state), {"z": z, "n": n}, state.root, (top, 0))
            parts.complete(cell)
            return cell
    if terms.resets and terms.products and not terms.others:
        raise Refusal(new, "its new state is not a gated mix of the old one and a candidate")
    return None


def _mix(parts: Parts, top: int, new: Value) -> tuple[Value, Value, set[int]] | None:
    """(the gate, the state before, the nodes) where it is made of these and what is new alone."""
    flow = parts.flow
    gates: dict[Source, Value] = {}
    states: dict[Source, Value] = {}
    nodes: set[int] = {top}
    todo = [(read(flow, top, place), False) for place in range(len(flow.inputs(top)))]
    for source, under in todo:
        if len(todo) > 2 * _FAR:
            return None
        value = parts.value(source)
        node = value.root[0]
        nodes |= value.nodes
        if value.kind:
            gates[value.source] = value
        elif not flow.is_op(node):
            states[value.root] = value
        elif flow.ops[node] in _MADE:
            nodes.add(node)
        elif _enters(parts, node, under, new):
            nodes.add(node)
            below = under or flow.ops[node] in MULTIPLIES
            todo += [(read(flow, node, place), below) for place in range(len(flow.inputs(node)))]
        else:
            states[value.root] = value
    tanhs = [gate for gate in gates.values() if gate.kind == "tanh"]
    sigmoids = [gate for gate in gates.values() if gate.kind == "sigmoid"]
    if [gate.root for gate in tanhs] != [new.root] or len(sigmoids) != 1 or len(states) != 1:
        return None
    return sigmoids[0], next(iter(states.values())), nodes


def _enters(parts: Parts, node: int, under: bool, new: Value) -> bool:
    """Is it part of the mix, and not the state before?"""
    flow, op = parts.flow, parts.flow.ops[node]
    if op in MULTIPLIES:
        return not under
    if op not in SUMS and op not in _SUBTRACTS:
        return False
    roots = [parts.value(read(flow, node, place)) for place in range(len(flow.inputs(node)))]
    multiplied = any(flow.is_op(v.root[0]) and flow.ops[v.root[0]] in MULTIPLIES for v in roots)
    if under:
        return any(v.kind for v in roots) and not multiplied
    return any(v.root == new.root for v in roots) and (multiplied or len(roots) == 1)


# ---- Elman -----------------------------------------------------------------------------------------------------------
def _elman(parts: Parts, nodes: list[int]) -> Iterator[Cell | tuple[int, str]]:
    """Sums of products, one of which has what another step gave by the same weight."""
    flow = parts.flow
    cells: dict[int, Cell] = {}
    users: dict[Source, set[int]] = defaultdict(set)
    for node in nodes:
        value = parts.value((node, 0))
        terms = parts.terms(value)
        inputs = sum(len(product.parts) for product in terms.products) + len(terms.before)
        if not terms.products or inputs < 2 or _output_gate(parts, node)[0] is not None:
            continue
        cell = Cell("RNN", node, set(value.nodes), {"h": value}, (-1, 0), (node, 0))
        cells[node] = cell
        for product in terms.products:
            users[flow.behind(product.weight)[0]].add(node)
    for node, cell in cells.items():
        terms = parts.terms(cell.gates["h"])
        if all(len(users[flow.behind(product.weight)[0]]) < 2 for product in terms.products):
            continue  # a weight that one call has: nothing recurs
        try:
            parts.complete(cell)
        except Refusal as error:
            yield node, str(error)
            continue
        yield cell


def _not_carried(flow: Flow, cells: list[Cell]) -> dict[int, str]:
    """{the end of a step: why it is none} of those that no other step goes on from, though it has the same weights."""
    groups: dict[tuple[str, frozenset[Source]], list[Cell]] = defaultdict(list)
    for cell in cells:
        weights = {flow.behind(product.weight)[0] for term in cell.terms() for product in term.every_product()}
        groups[cell.kind, frozenset(weights)].append(cell)
    lost: dict[int, str] = {}
    for (kind, _), steps in groups.items():
        ends = {(step.end, 0): step for step in steps}
        linked: set[int] = set()
        for step in steps:
            for source in step.reads:
                gave = ends.get(source) or ends.get(moved(flow, source)[0])
                if gave is not None:
                    linked |= {step.end, gave.end}
        states: dict[Source, int] = defaultdict(int)
        for step in steps:
            states[step.state] += 1
        news = {step.new: step.end for step in steps}
        for step in steps:
            if step.end not in linked and (kind == "RNN" or states[step.state] > 1):
                lost[step.end] = "its hidden state is not carried to another step"
            elif kind == "LSTM" and states[step.state] > 1 and step.state not in news and step.new not in states:
                lost[step.end] = "its cell state is not carried to another step"
            elif kind == "LSTM" and step.end not in linked and step.state in news:
                before = news[step.state]
                if not _reaches(flow, before, step):
                    why = "its cell state is carried to another step, its hidden state is not"
                    lost |= {step.end: why, before: why}
    return lost


def _reaches(flow: Flow, before: int, step: Cell) -> bool:
    """Is what its gates read made of what the step before gave?"""

    def through(node: int) -> bool:
        return flow.moves(node) or flow.is_pointwise(node) or flow.is_linear(node) or flow.ops[node] == "aten::cat"

    passed, ends = flow.ahead(before, through, 4 * _FAR)
    passed |= {node for node, _ in ends}
    return any(source[0] in passed for source in step.reads)
