"""Normalizations, written out or as one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from .flow import Flow
from .moments import nearby, written_out
from .pattern import Check, Found, Pattern, Refused, Trial, agree, arguments, fewer, form_of

__all__ = ["Normalization"]

_PRODUCTS = frozenset({"aten::mul", "aten::mul_"})
_AT_LEAST = frozenset({"aten::clamp_min", "aten::clamp_min_", "aten::clamp"})
_QUOTIENTS = frozenset({"aten::div", "aten::div_"})


class Normalization(Pattern):
    """``(x - mean) / sqrt(variance + ε)``, or ``x / sqrt(mean of squares + ε)``, times weights, plus a bias."""

    name = "normalization"

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        for node in flow.nodes:
            op = flow.ops[node]
            if op in _FUSED:
                kind, reference = _FUSED[op]
                weights = [source for source, _ in flow.inputs(node)[1:] if flow.is_leaf(source)]
                weights = weights or nearby(flow, node, flow.inputs(node)[0])
                check = partial(_check, flow, {node}, node, reference, {"kind": kind})
                yield Found(node, {node}, weights, check, form_of(flow, {node}))
            elif (found := written_out(flow, node)) is not None:
                yield found
            elif op == "aten::linalg_vector_norm":
                found = _unit_length(flow, node)
                if found is not None:
                    yield found


def _check(
    flow: Flow, nodes: set[int], last: int, reference: Callable[[Trial, Any], torch.Tensor], about: dict[str, Any]
) -> Check:
    x, whole = flow.inputs(last)[0], arguments(flow[last], "input", "normalized_shape")["normalized_shape"]
    trial = Trial(flow, nodes, shapes={x: fewer(flow.shape(x), len(whole))} if isinstance(whole, (list, tuple)) else {})
    (found,) = trial.run((last, 0))
    if not agree(found, reference(trial, flow[last])):
        raise Refused(f"it does not compute {about['kind']}")
    return Check(True, about)


def _scaled(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _standard(x: torch.Tensor, axes: tuple[int, ...], eps: float) -> torch.Tensor:
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return (x - mean) * (variance + eps).rsqrt()


def _layer_norm(trial: Trial, node: Any) -> torch.Tensor:
    given = arguments(node, "input", "normalized_shape", "weight", "bias", "eps")
    axes = tuple(range(-len(given["normalized_shape"]), 0))
    found = _standard(trial.given(node.inputs[given["input"].index]), axes, given["eps"] or 1e-5)
    return _scaled(found, trial.argument(node, given["weight"]), trial.argument(node, given["bias"]))


def _rms_norm(trial: Trial, node: Any) -> torch.Tensor:
    given = arguments(node, "input", "normalized_shape", "weight", "eps")
    x = trial.given(node.inputs[given["input"].index])
    eps = torch.finfo(x.dtype).eps if given["eps"] is None else given["eps"]
    axes = tuple(range(-len(given["normalized_shape"]), 0))
    found = x * (x.square().mean(axes, keepdim=True) + eps).rsqrt()
    return _scaled(found, trial.argument(node, given["weight"]), None)


def _group_norm(trial: Trial, node: Any) -> torch.Tensor:
    if node.op == "aten::group_norm":
        given = arguments(node, "input", "num_groups", "weight", "bias", "eps")
    else:
        given = arguments(node, "input", "weight", "bias", "n", "channels", "area", "num_groups", "eps")
    x = trial.given(node.inputs[given["input"].index])
    found = _standard(x.reshape(x.shape[0], given["num_groups"], -1), (-1,), given["eps"] or 1e-5).reshape(x.shape)
    shape = (x.shape[1], *[1] * (x.dim() - 2))
    weight, bias = (trial.argument(node, given[name]) for name in ("weight", "bias"))
    return _scaled(found, *(None if t is None else t.reshape(shape) for t in (weight, bias)))


_Reference = Callable[[Trial, Any], torch.Tensor]
_FUSED: dict[str, tuple[str, _Reference]] = {
    f"aten::{name}": (kind, reference)
    for kind, reference, names in (
        ("layer norm", _layer_norm, ("native_layer_norm", "layer_norm")),
        ("RMS norm", _rms_norm, ("_fused_rms_norm", "rms_norm")),
        ("group norm", _group_norm, ("native_group_norm", "group_norm")),
    )
    for name in names
}


def _unit_length(flow: Flow, norm: int) -> Found | None:
    """Around a vector's length: the quotient by it, times the root of how many numbers the vector has."""
    given = arguments(flow[norm], "self", "ord", "dim", "keepdim")
    axes = given["dim"] if isinstance(given["dim"], (list, tuple)) else [given["dim"]]
    if given["ord"] not in (None, 2) or len(axes) != 1 or axes[0] is None or not given["keepdim"]:
        return None
    x = flow.inputs(norm)[0]
    after, ends = flow.ahead(norm, lambda n: flow.moves(n) or flow.ops[n] in _AT_LEAST, 4)
    if [place for _, place in ends] != [1] or flow.ops[ends[0][0]] not in _QUOTIENTS:
        return None
    last = ends[0][0]
    if flow.behind(x)[0] != flow.behind(flow.inputs(last)[0])[0]:
        return None
    return _scaled_after(flow, {norm, *after, last}, last, axes[0])


def _scaled_after(flow: Flow, core: set[int], last: int, axis: int) -> Found:
    """With the products by weights and by numbers that `last` alone leads to."""
    weights: list[int] = []
    for _ in range(3):
        after, ends = flow.ahead(last, lambda n: flow.moves(n), 4)
        if len(ends) != 1 or flow.ops[ends[0][0]] not in _PRODUCTS:
            break
        inputs = flow.inputs(ends[0][0])
        if len(inputs) == 2 and not weights:
            other = inputs[1 - ends[0][1]]
            root = flow.behind(other)[0][0]
            if not (
                flow.is_leaf(other[0]) or (flow.ops[root] == "aten::add" and flow.is_leaf(flow.inputs(root)[0][0]))
            ):
                break
            weights = [root]
        elif len(inputs) != 1:
            break
        last = ends[0][0]
        core |= after | {last}
    reads = {source for n in core for source in flow.inputs(n) if source[0] not in core}

    def reference(trial: Trial, node: Any) -> torch.Tensor:
        values = [trial.given(source) for source in sorted(reads)]
        whole = max(values, key=lambda t: t.numel())
        found = whole * whole.square().mean(axis, keepdim=True).rsqrt()
        scales = [t for t in values if t is not whole]
        return math.prod(scales, start=found)

    weights = weights or nearby(flow, last, flow.inputs(min(core))[0])
    return Found(last, core, weights, partial(_check, flow, core, last, reference, {"kind": "RMS norm"}),
                 form_of(flow, core))  # fmt: skip
