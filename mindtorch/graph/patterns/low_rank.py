"""LoRA: a product with a weight, to which that of two narrow ones is added: ``W x + s · B (A x)``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from .adapted import Adapted, adds_bias, is_lookup
from .flow import CONVOLUTIONS, Flow
from .pattern import Check, Found, Pattern, Refused, Trial, agree, arguments, fewer, form_of
from .rerun import CannotRun, Source

__all__ = ["LowRank"]

_CONVOLVED = (F.conv1d, F.conv2d, F.conv3d)


class LowRank(Pattern):
    """What is added to the product belongs to it, the product itself to the block that it is a projection of."""

    name = "LoRA"

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        for node, parts in flow.adapted.items():
            _, narrow, wide = parts.products
            weights = [_weight(flow, n)[0] for n in (narrow, wide)]
            low, most = _rank(flow, narrow), min(_rank(flow, wide), _got(flow, narrow))
            if low >= most:
                yield node, f"its rank of {low} is as high as that of a product of {most} numbers"
                continue
            nodes = parts.nodes - {parts.products[0]}
            yield Found(node, nodes, weights, partial(_check, flow, node, parts), form_of(flow, parts.nodes),
                        attributes={"rank": low, "of": _of(flow, parts.products[0])})  # fmt: skip


def _weight(flow: Flow, node: int) -> Source:
    if is_lookup(flow, node):
        return flow.behind(flow.inputs(node)[0])[0]
    sides = flow.sides(node)
    assert sides is not None
    return flow.behind(sides[1])[0]


def _rank(flow: Flow, node: int) -> int:
    """How many numbers it gives for each place."""
    shape = flow.shape((node, 0))
    return shape[-_sides(flow, node) - 1]


def _got(flow: Flow, node: int) -> int:
    """How many numbers it is made of."""
    if is_lookup(flow, node):
        return flow.shape(flow.inputs(node)[0])[0]
    weight = flow.shape(flow.sides(node)[1])  # type: ignore[index]
    return math.prod(weight) // _rank(flow, node)


def _sides(flow: Flow, node: int) -> int:
    return len(flow.shape(flow.inputs(node)[1])) - 2 if flow.ops[node] in CONVOLUTIONS else 0


def _of(flow: Flow, base: int) -> str:
    if is_lookup(flow, base):
        return "an embedding"
    return "a convolution" if _sides(flow, base) else "a projection"


def _check(flow: Flow, node: int, parts: Adapted) -> Check:
    """On fewer rows where it has many, unless the calls name their sizes."""
    x = parts.x
    try:
        trial = Trial(flow, parts.nodes)
    except CannotRun:
        trial = Trial(flow, parts.nodes, shapes={x: fewer(flow.shape(x), 1 + _sides(flow, parts.products[0]))})
    base, narrow, wide = parts.products
    try:
        (found,) = trial.run((node, 0))
        whole = _called(flow, trial, base, trial.given(x)) if base in parts.nodes else trial.given((base, 0))
        whole = whole.reshape(-1, found.shape[-1])
        for n in parts.nodes:
            if n != node and adds_bias(flow, n):
                whole = whole + trial.given(flow.inputs(n)[1])
        added = _called(flow, trial, wide, _called(flow, trial, narrow, trial.given(x)))
    except KeyError:
        raise CannotRun("it reads a view of memory that was written since") from None
    if whole.numel() != found.numel() or added.numel() != found.numel():
        raise Refused("its products do not have one size")
    off, added = found.reshape(-1) - whole.reshape(-1), added.reshape(-1)
    scale = float((off @ added) / (added @ added))
    if not agree(found.reshape(-1), whole.reshape(-1) + scale * added):
        raise Refused("it is not W x + s · B (A x)")
    return Check(True, {"scale": round(scale, 4)})


def _called(flow: Flow, trial: Trial, node: int, x: torch.Tensor) -> torch.Tensor:
    """The product of that weight and x."""
    if is_lookup(flow, node):
        return trial.given(flow.inputs(node)[0])[x]
    sides, inputs = flow.sides(node), flow.inputs(node)
    assert sides is not None
    weight = trial.given(sides[1])
    if flow.ops[node] in CONVOLUTIONS:
        names = ["input", "weight", "bias", "stride", "padding", "dilation"]
        names += ["transposed", "output_padding", "groups"] if flow.ops[node] == "aten::convolution" else ["groups"]
        given: dict[str, Any] = arguments(flow[node], *names)
        if given.get("transposed"):
            raise Refused("its convolution is transposed")
        bias = trial.argument(flow[node], given["bias"])
        how = {name: given[name] for name in ("stride", "padding", "dilation", "groups") if given[name] is not None}
        return _CONVOLVED[_sides(flow, node) - 1](x, weight, bias, **how)
    if weight.dim() != 2:
        raise Refused("its weight is not a matrix")
    if flow.ops[node] in ("aten::linear", "aten::mkldnn_linear"):
        weight = weight.mT
    found = x.reshape(-1, x.shape[-1]) @ weight
    other = [source for source in inputs if source not in sides]
    return found + trial.given(other[0]) if other else found
