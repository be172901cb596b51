"""Routing whose choice is not by the scores alone: of the best groups of experts, or with a bias added to choose by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch.nn import functional as F

from .flow import Flow
from .pattern import Check, Found, Refused, Trial, agree, arguments, form_of
from .rerun import Source

__all__ = ["divided", "find_among"]

_QUOTIENTS = frozenset({"aten::div", "aten::div_"})
_ON_THE_WAY = frozenset(f"aten::{name}" for name in (
    "topk", "sum", "amax", "max", "scatter", "scatter_", "zeros_like", "_softmax", "softmax", "gather", "cat",
    "new_zeros",
))  # fmt: skip
_FAR = 60  # nodes of a walk
_SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "sigmoid": torch.sigmoid,
    "root of softplus": lambda x: F.softplus(x).sqrt(),
    "none": lambda x: x,
}
_OF_GROUPS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda scores: scores.topk(2).values.sum(-1),
    lambda scores: scores.amax(-1),
)


class _Parts(NamedTuple):
    """groups: how many there are, and are chosen. bias: what is added to choose by. last: what each one counts."""

    logits: Source
    topk: int
    groups: tuple[int, int]
    bias: Source | None
    last: int
    nodes: set[int]


def divided(flow: Flow, values: Source) -> tuple[int, set[int]]:
    """(the node that divides them by their sum, with those that make the sum); their own and none where none does."""
    for reader, _ in flow.readers[values[0]]:
        inputs = flow.inputs(reader)
        if inputs[0] == values and flow.ops[reader] in _QUOTIENTS and len(inputs) == 2:
            total, passed = flow.behind(inputs[1], lambda n: flow.ops[n] == "aten::add" and len(flow.inputs(n)) == 1)
            if flow.ops[total[0]] == "aten::sum" and flow.inputs(total[0])[0] == values:
                return reader, {reader, *passed, total[0]}
    return values[0], set()


def find_among(flow: Flow, topk: int) -> Found | None:
    """The routing that ends in this choice, if it looks like one that is not by the scores alone."""
    parts = _parts(flow, topk)
    if parts is None:
        return None
    linear = parts.logits[0]
    sides = flow.sides(linear)
    assert sides is not None
    nodes = flow.own([*parts.nodes, linear], parts.nodes)
    weights, form = [flow.behind(sides[1])[0][0]], form_of(flow, parts.nodes)
    return Found(parts.last, nodes, weights, partial(_check, flow, parts), form)


def _parts(flow: Flow, topk: int) -> _Parts | None:
    def stops(node: int) -> bool:
        return (
            not flow.is_op(node)
            or flow.is_linear(node)
            or not (flow.is_pointwise(node) or flow.moves(node) or flow.ops[node] in _ON_THE_WAY)
        )

    before, ends = flow.back([flow.inputs(topk)[0][0]], stops, _FAR)
    linears = [n for n in ends if flow.is_op(n) and flow.is_linear(n)]
    if len(linears) != 1 or any(flow.is_op(n) and flow.inputs(n) and n not in linears for n in ends):
        return None
    experts = flow.shape(flow.inputs(topk)[0])[-1]
    bias = next((s for n in before if flow.ops[n] == "aten::add" for s in flow.inputs(n)[1:]
                 if flow.is_leaf(s[0]) and flow.shape(s)[-1:] == (experts,)), None)  # fmt: skip
    among = [n for n in before if flow.ops[n] == "aten::topk" and len(flow[n].outputs) == 2
             and any(flow.ops[reader].startswith("aten::scatter") for reader, _ in flow.readers[n])]  # fmt: skip
    if len(among) > 1 or (not among and bias is None):
        return None
    groups = (1, 1)
    if among:
        groups = flow.shape(flow.inputs(among[0])[0])[-1], int(arguments(flow[among[0]], "input", "k")["k"])
    picked = next((n for n, place in _readers(flow, topk) if flow.ops[n] == "aten::gather" and place == 1), None)
    last, after = divided(flow, (topk if picked is None else picked, 0))
    nodes = {topk, *(n for n in before if not flow.is_leaf(n)), *after} | (set() if picked is None else {picked})
    if picked is not None:
        way, _ = flow.back([flow.inputs(picked)[0][0]], stops, _FAR)
        nodes |= {n for n in way if not flow.is_leaf(n)}
    return _Parts((linears[0], 0), topk, groups, bias, last, nodes)


def _readers(flow: Flow, node: int) -> Iterator[tuple[int, int]]:
    """Those that read it as it is, moved or cast."""
    return iter(flow.ahead(node, flow.moves, 6)[1])


def _check(flow: Flow, parts: _Parts) -> Check:
    """Tried on all rows: the calls name how many there are."""
    trial = Trial(flow, parts.nodes)
    try:
        logits = trial.given(parts.logits)
        bias = None if parts.bias is None else trial.given(parts.bias)
    except KeyError:
        raise Refused("its scores are read through a view") from None
    weights, chosen = trial.run((parts.last, 0), (parts.topk, 1))
    rows, k = logits.reshape(-1, logits.shape[-1]), chosen.shape[-1]
    if weights.numel() != chosen.numel() or rows.shape[-1] % parts.groups[0]:
        raise Refused("its result is not the weight of each chosen expert")
    order = chosen.reshape(-1, k).sort(-1)
    found = weights.reshape(-1, k).gather(-1, order.indices)
    for scores, function in _SCORES.items():
        plain = function(rows)
        choice = plain if bias is None else plain + bias
        for of_group in _OF_GROUPS if parts.groups[0] > 1 else _OF_GROUPS[:1]:
            best = _among(choice, parts.groups, of_group).topk(k).indices.sort(-1).values
            if not torch.equal(best, order.values):
                continue
            expected = plain.gather(-1, best)
            for normalized in (False, True):
                if agree(found, expected / expected.sum(-1, keepdim=True) if normalized else expected):
                    attributes = {"experts": rows.shape[-1], "chosen": k, "scores": scores, "normalized": normalized}
                    several = parts.groups[0] > 1
                    return Check(True, attributes | ({"groups": "{1} of {0}".format(*parts.groups)} if several else {}))
    raise Refused("it does not choose the experts with the highest scores in the best groups")


def _among(
    choice: torch.Tensor, groups: tuple[int, int], of_group: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """The scores to choose by, where the group is one of the best, else below all."""
    if groups[0] == 1:
        return choice
    apart = choice.reshape(len(choice), groups[0], -1)
    if apart.shape[-1] < 2:
        return choice
    best = of_group(apart).topk(groups[1]).indices
    kept = torch.zeros(apart.shape[:2], dtype=torch.bool, device="cpu").scatter(1, best, True)
    return torch.where(kept.unsqueeze(-1), apart, -torch.inf).reshape(choice.shape)
