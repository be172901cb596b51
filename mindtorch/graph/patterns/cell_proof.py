"""Whether a recurrent cell computes what its name says: its nodes, run beside the cell written anew."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .cell_parts import Cell, Product, Terms, moved
from .flow import Flow
from .pattern import Check, Refused, Trial, agree
from .rerun import CannotRun, Source

__all__ = ["check_call", "check_cell"]

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu}
_BY_ROWS = frozenset({"aten::linear", "aten::mkldnn_linear"})  # whose weight has a row for each number it gives
_STEPS = 3  # of a trial of a call


def check_cell(flow: Flow, cell: Cell) -> Check:
    """Each gate beside its own sum of products, then the new state beside what the gates give."""
    try:
        own = _Own(flow, cell)
        gates = {name: own.gate(name) for name in cell.gates}
        (after,) = own.run(cell.end, (cell.end, 0))
        rows = after.reshape(-1, own.hidden)
        state = own.given[cell.state].reshape(-1, own.hidden) if cell.state in own.given else None
        new = None if cell.kind != "LSTM" else own.run(cell.new[0], cell.new)[0].reshape(-1, own.hidden)
    except KeyError:
        raise CannotRun("it reads a view of memory that was written since") from None
    said: dict[str, Any] = {"kind": cell.kind, "hidden": own.hidden, "form": "one cell per step"}
    if cell.kind == "RNN":
        return Check(True, said | {"activation": cell.gates["h"].kind})
    assert state is not None
    if cell.kind == "LSTM":
        i, f, g, o = (gates[name] for name in "ifgo")
        expected = f * state + i * g
        assert new is not None
        if not agree(new, expected) or not agree(rows, o * torch.tanh(expected)):
            raise Refused("it is not o · tanh(f · c + i · g)")
        return Check(True, said)
    z, n = gates["z"], gates["n"]
    if not agree(rows, (1 - z) * n + z * state) and not agree(rows, z * n + (1 - z) * state):
        raise Refused("it is not (1 - z) · n + z · h")
    return Check(True, said | {"reset": "after" if cell.sums["n"].resets else "before"})


class _Own:
    """What a step's sums give on numbers that are made up, and what its nodes give on the same."""

    def __init__(self, flow: Flow, cell: Cell) -> None:
        self.flow, self.cell = flow, cell
        self.trial = Trial(flow, cell.nodes)
        self.hidden = flow.shape((cell.end, 0))[-1]
        self.given: dict[Source, Tensor] = {}
        self.gates: dict[str, Tensor] = {}
        generator = torch.Generator("cpu").manual_seed(1)

        def put(source: Source, factor: float = 1.0) -> None:
            if source not in self.given:
                shape = self.trial.given(source).shape
                self.given[source] = torch.randn(shape, generator=generator, device="cpu") * factor

        if cell.kind != "RNN":
            put(cell.state)
        for terms in self._every(cell.sums.values()):
            for source, _ in terms.before:
                put(source)
            for source in terms.biases:
                put(source)
            for product in terms.products:
                by_rows = flow.ops[product.node] in _BY_ROWS
                put(product.weight, self.trial.given(product.weight).shape[1 if by_rows else 0] ** -0.5)
                for part in product.parts:
                    put(self._of(product, part)[0])
                bias = self._bias(product)
                if bias is not None:
                    put(bias)

    def _every(self, sums: Any) -> Iterator[Terms]:
        for terms in sums:
            yield terms
            yield from self._every(inner for _, inner in terms.resets)

    def _of(self, product: Product, part: Source) -> tuple[Source, bool]:
        """(where its numbers are given, whether the reset gate multiplies them)"""
        if product.resets(self.cell.state) and product.reset is not None and product.reset.part == part:
            return self.cell.state, True
        root = moved(self.flow, part, True)[0]
        return (root if root == self.cell.state else part), False

    def _bias(self, product: Product) -> Source | None:
        op, inputs = self.flow.ops[product.node], self.flow.inputs(product.node)
        if op == "aten::addmm":
            return inputs[0]
        return inputs[2] if op in _BY_ROWS and len(inputs) > 2 else None

    def run(self, until: int, *wanted: Source) -> list[Tensor]:
        """What the nodes give there, before those after it write over that."""
        return Trial(self.flow, {n for n in self.cell.nodes if n <= until}).run(*wanted, given=self.given)

    def gate(self, name: str) -> Tensor:
        gate = self.cell.gates[name]
        (found,) = self.run(max(gate.source[0], gate.root[0]), gate.source)
        if not found.dim() or found.shape[-1] != self.hidden:
            raise Refused("a gate does not have one value per element of the state")
        found = found.reshape(-1, self.hidden)
        for total in self._totals(self.cell.sums[name]):
            expected = _FUNCTIONS[gate.kind](total)
            if agree(found, expected):
                self.gates[name] = expected
                return expected
        raise Refused("a gate is not the expected function of W x + U h + b")

    def _totals(self, terms: Terms) -> Iterator[Tensor]:
        """What the terms add up to: each is as wide as the state, or has that of several gates beside each other."""
        summed = [self._product(product) for product in terms.products]
        summed += [self.given[source].reshape(-1, self.given[source].shape[-1]) for source, _ in terms.before]
        summed += [self.given[source].reshape(1, -1) for source in terms.biases]
        for parts in _picked(summed, self.hidden):
            total = sum(parts, torch.zeros(1, self.hidden, device="cpu"))
            if not terms.resets:
                yield total
                continue
            ((_, inner),) = terms.resets
            for inside in self._totals(inner):
                yield total + self.gates["r"] * inside

    def _product(self, product: Product) -> Tensor:
        parts = []
        for part in product.parts:
            source, reset = self._of(product, part)
            x = self.given[source]
            x = x.reshape(-1, x.shape[-1])
            parts.append(self.gates["r"] * x if reset else x)
        weight = self.given[product.weight]
        found = torch.cat(parts, -1) @ (weight.mT if self.flow.ops[product.node] in _BY_ROWS else weight)
        bias = self._bias(product)
        return found if bias is None else found + self.given[bias]


def _picked(summed: list[Tensor], hidden: int) -> Iterator[list[Tensor]]:
    """The part of one gate of each: the same of all first, then any of each."""
    counts = [t.shape[-1] // hidden for t in summed]
    rows = {len(t) for t in summed} - {1}
    if len(rows) > 1 or any(not n or t.shape[-1] % hidden for n, t in zip(counts, summed, strict=True)):
        return
    most = max(counts, default=1)
    same = [[k if n == most else 0 for n in counts] for k in range(most) if all(n in (1, most) for n in counts)]
    wide = [n for n in counts if n > 1]
    mixed = itertools.product(*(range(n) for n in counts)) if 1 < len(wide) <= 3 or len(set(wide)) == 1 else ()
    for places in (*same, *mixed):
        yield [t[:, k * hidden : (k + 1) * hidden] for t, k in zip(summed, places, strict=True)]
    if most > 1 and same:
        for k in range(most):
            yield [t[:, k::n] if n > 1 else t for t, n in zip(summed, counts, strict=True)]


# ---- all steps in one call -------------------------------------------------------------------------------------------
def check_call(flow: Flow, node: int, kind: str) -> Check:
    """oneDNN's layer of an LSTM, on a few steps."""
    if flow.ops[node] != "aten::mkldnn_rnn_layer":
        raise CannotRun("torch computes it only on a GPU")
    if kind != "LSTM":
        raise CannotRun(f"torch has no {kind} in that call")
    x, w_in, w_state, b_in, b_state, hidden, cell = flow.inputs(node)
    reverse, biased = flow[node].args[7], flow[node].args[12]
    steps, batch, width = flow.shape(x)
    shapes = {x: (min(steps, _STEPS), batch, width)}
    trial = Trial(flow, {node}, shapes=shapes)
    generator = torch.Generator("cpu").manual_seed(1)
    given = {s: torch.randn(trial.given(s).shape, generator=generator, device="cpu") for s in flow.inputs(node)}
    for source in (w_in, w_state):
        given[source] = given[source] * given[source].shape[1] ** -0.5
    found = trial.run((node, 0), (node, 1), (node, 2), given=given)
    h, c = given[hidden], given[cell]
    outputs: list[Tensor] = []
    for at in given[x].flip(0) if reverse else given[x]:
        gates = at @ given[w_in].mT + h @ given[w_state].mT
        gates = gates + given[b_in] + given[b_state] if biased else gates
        i, f, g, o = gates.chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    expected = torch.stack(outputs[::-1] if reverse else outputs)
    if not all(agree(a.reshape(b.shape), b) for a, b in zip(found, (expected, h, c), strict=True)):
        raise Refused("it is not an LSTM")
    return Check(True, {})
