"""Routing of a mixture of experts: for each token, the experts with the highest scores, and how much each counts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from .flow import PRODUCTS, Flow
from .pattern import Check, Found, Pattern, Refused, Trial, agree, arguments, fewer, form_of
from .rerun import Source

__all__ = ["Routing"]

_SOFTMAX = frozenset({"aten::_softmax", "aten::softmax"})
_SIGMOID = frozenset({"aten::sigmoid", "aten::sigmoid_"})
_QUOTIENTS = frozenset({"aten::div", "aten::div_"})
_WEIGHED = frozenset({"aten::mul", "aten::mul_"})
_FAR = 40  # nodes of a walk


class _Parts(NamedTuple):
    """logits: of each expert. before, after: what is made of them, and of the chosen ones. last: what each counts."""

    logits: Source
    before: str
    after: str
    last: int
    nodes: set[int]


class Routing(Pattern):
    """``topk(scores(W x))``, its values, divided by their sum where they are, weights of what other weights compute."""

    name = "routing"

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        for node in flow.nodes:
            if flow.ops[node] != "aten::topk":
                continue
            parts = _parts(flow, node)
            if parts is None:
                continue
            linear = parts.logits[0]
            if arguments(flow[node], "input", "k", "dim")["dim"] not in (None, -1, len(flow.shape((node, 0))) - 1):
                yield node, "it chooses along another axis than that of the experts"
                continue
            if not _weigh(flow, parts.last):
                yield node, "what it chose weighs nothing that other weights compute"
                continue
            sides = flow.sides(linear)
            assert sides is not None
            nodes = flow.own([*parts.nodes, linear], parts.nodes)
            yield Found(node, nodes, [flow.behind(sides[1])[0][0]], partial(_check, flow, node, parts),
                        form_of(flow, parts.nodes))  # fmt: skip


def _parts(flow: Flow, topk: int) -> _Parts | None:
    """None where it is not of scores that a projection gives."""
    source, moves = flow.behind(flow.inputs(topk)[0])
    nodes, before = {topk, *moves}, "none"
    op = flow.ops[source[0]]
    if flow.is_op(source[0]) and op in _SOFTMAX | _SIGMOID:
        nodes.add(source[0])
        before = "softmax" if op in _SOFTMAX else "sigmoid"
        source, moves = flow.behind(flow.inputs(source[0])[0])
        nodes.update(moves)
    if not flow.is_op(source[0]) or not flow.is_linear(source[0]):
        return None
    values = (topk, 0)
    for reader, _ in flow.readers[topk]:
        inputs = flow.inputs(reader)
        if inputs[0] == values and flow.ops[reader] in _SOFTMAX:
            return _Parts(source, before, "softmax", reader, nodes | {reader})
        if inputs[0] == values and flow.ops[reader] in _QUOTIENTS and len(inputs) == 2:
            total, passed = flow.behind(inputs[1], lambda n: flow.ops[n] == "aten::add" and len(flow.inputs(n)) == 1)
            if flow.ops[total[0]] == "aten::sum" and flow.inputs(total[0])[0] == values:
                return _Parts(source, before, "quotient", reader, nodes | {reader, *passed, total[0]})
    return _Parts(source, before, "none", topk, nodes)


def _weigh(flow: Flow, node: int) -> bool:
    """Is what it gives multiplied by what comes of a product with other weights?"""

    def weighed(n: int) -> bool:
        return flow.ops[n] in _WEIGHED and len(flow.inputs(n)) == 2

    _, ends = flow.ahead(node, lambda n: flow.moves(n) or (flow.is_pointwise(n) and not weighed(n)), _FAR)
    for reader, place in ends:
        if weighed(reader):
            other = flow.inputs(reader)[1 - place][0]
            _, sources = flow.back([other], lambda n: flow.ops[n] in PRODUCTS or not flow.is_op(n), _FAR)
            if any(flow.ops[n] in PRODUCTS for n in sources):
                return True
    return False


def _check(flow: Flow, topk: int, parts: _Parts) -> Check:
    shape = flow.shape(parts.logits)
    views = any(flow.moves(n) for n in parts.nodes)  # which name sizes
    trial = Trial(flow, parts.nodes, shapes={} if views else {parts.logits: fewer(shape, 1)})
    values, chosen = trial.run((parts.last, 0), (topk, 1))
    scores = trial.given(parts.logits)
    if parts.before != "none":
        scores = scores.exp() / (1 + scores.exp() if parts.before == "sigmoid" else scores.exp().sum(-1, keepdim=True))
    k = arguments(flow[topk], "input", "k")["k"]
    best = scores.sort(-1, descending=True).indices[..., :k].reshape(chosen.shape)
    expected = scores.reshape(*chosen.shape[:-1], -1).gather(-1, best)
    if parts.after == "softmax":
        expected = expected.exp()
    if parts.after != "none":
        expected = expected / expected.sum(-1, keepdim=True)
    if not torch.equal(chosen, best) or not agree(values, expected):
        raise Refused("it does not choose the experts with the highest scores")
    attributes = {"experts": shape[-1], "chosen": k, "scores": parts.before, "normalized": parts.after != "none"}
    return Check(True, attributes if parts.after != "softmax" else {**attributes, "scores": "softmax of the chosen"})
