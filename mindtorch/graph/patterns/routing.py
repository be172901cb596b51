"""Routing of a mixture of experts: for each token, the experts with the highest scores, and how much each counts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from .flow import PRODUCTS, Flow
from .pattern import Check, Found, Pattern, Refused, Trial, agree, arguments, fewer, form_of
from .rerun import Source
from .routing_groups import divided, find_among
from .softmax import SOFTMAX, softmax_at

__all__ = ["Routing"]

_SIGMOID = frozenset({"aten::sigmoid", "aten::sigmoid_"})
_WEIGHED = frozenset({"aten::mul", "aten::mul_", "aten::bmm"})  # of all experts at once, in a sum over them
_PICKED = frozenset({"aten::gather", "aten::index_select"})  # of the weights, those of the tokens of one expert
_ADDED = frozenset({"aten::add", "aten::add_"})
_SCATTERED = frozenset({"aten::scatter", "aten::scatter_"})  # into what is minus infinite elsewhere
_FAR = 40  # nodes of a walk
_NOTHING = "its scores scale no output of other weights"


class _Parts(NamedTuple):
    """linear: the projection. logits: what it gives of each expert, or with noise that is added to that. before, after:
    what is made of them, and of the chosen ones. last: what each counts."""

    linear: int
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
                among = find_among(flow, node)
                if among is not None:
                    yield among if weighs(flow, among.anchor) else (node, _NOTHING)
                continue
            linear = parts.linear
            if arguments(flow[node], "input", "k", "dim")["dim"] not in (None, -1, len(flow.shape((node, 0))) - 1):
                yield node, "it does not choose along the axis of the experts"
                continue
            if not weighs(flow, parts.last):
                yield node, _NOTHING
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
    softmax = softmax_at(flow, source[0]) if flow.is_op(source[0]) else None
    if softmax is not None or (flow.is_op(source[0]) and flow.ops[source[0]] in _SIGMOID):
        before = "sigmoid" if softmax is None else "softmax"
        nodes |= {source[0]} if softmax is None else softmax.nodes
        source, moves = flow.behind(flow.inputs(source[0])[0] if softmax is None else softmax.source)
        nodes.update(moves)
    linear = _projection(flow, source[0])
    if linear is None:
        return None
    for reader, _ in flow.readers[topk]:
        if flow.inputs(reader)[0] == (topk, 0) and flow.ops[reader] in SOFTMAX:
            return _Parts(linear, source, before, "softmax", reader, nodes | {reader})
        if flow.ops[reader] in _SCATTERED and (topk, 0) == flow.inputs(reader)[-1]:
            for last, _ in flow.readers[reader]:
                if flow.ops[last] in SOFTMAX:
                    filled = {n for n, _ in flow.inputs(reader)[:1] if flow.is_op(n)}
                    return _Parts(linear, source, before, "softmax of all", last, nodes | filled | {reader, last})
    last, after = divided(flow, (topk, 0))
    return _Parts(linear, source, before, "quotient" if after else "none", last, nodes | after)


def _projection(flow: Flow, node: int) -> int | None:
    """The projection that gives the scores of the experts, or the one to which noise is added for that."""
    if not flow.is_op(node):
        return None
    if flow.ops[node] in _ADDED:
        summands = [n for source in flow.inputs(node) for n in [flow.behind(source)[0][0]] if flow.is_op(n)]
        return next(filter(flow.is_linear, summands), None)
    return node if flow.is_linear(node) else None


def weighs(flow: Flow, node: int) -> bool:
    """Is what it gives multiplied by what comes of a product with other weights?"""

    def weighed(n: int) -> bool:
        return flow.ops[n] in _WEIGHED and len(flow.inputs(n)) == 2

    def passes(n: int) -> bool:
        return flow.moves(n) or flow.ops[n] in _PICKED or (flow.is_pointwise(n) and not weighed(n))

    _, ends = flow.ahead(node, passes, _FAR)
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
    if parts.after.startswith("softmax"):
        expected = expected.exp()
    if parts.after != "none":
        expected = expected / expected.sum(-1, keepdim=True)
    if parts.after == "softmax of all":  # of those that are not chosen it is 0
        expected = torch.zeros(values.shape, dtype=values.dtype, device="cpu").scatter(-1, best, expected)
    if not torch.equal(chosen, best) or not agree(values, expected):
        raise Refused("it does not choose the experts with the highest scores")
    attributes = {"experts": shape[-1], "chosen": k, "scores": parts.before, "normalized": parts.after != "none"}
    return Check(True, attributes | ({"scores": "softmax of the chosen"} if "softmax" in parts.after else {}))
