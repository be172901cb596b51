"""Convolution blocks: a convolution, a batch norm of what it gives and an activation, as far as they are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from ..graph import Node
from .adapted import TRANSPOSED
from .flow import CONVOLUTIONS, Flow
from .pattern import Check, Found, Pattern, Refused, Trial, agree, arguments, fewer, form_of
from .rerun import Source

__all__ = ["Convolution"]

_MOST = 64  # operations that a kernel is computed by
_SMALL = 6  # how many numbers a side of a trial's picture has beyond the kernel
_WITH_TRAINING = ("input", "weight", "bias", "mean", "variance", "training", "momentum", "eps")
_NORMS = {
    "aten::native_batch_norm": _WITH_TRAINING,
    "aten::_native_batch_norm_legit": _WITH_TRAINING,
    "aten::cudnn_batch_norm": _WITH_TRAINING,
    "aten::batch_norm": _WITH_TRAINING,
    "aten::_native_batch_norm_legit_no_training": tuple(name for name in _WITH_TRAINING if name != "training"),
}
_ACTIVATIONS = frozenset(f"aten::{name}" for name in (
    "relu", "relu_", "gelu", "silu", "silu_", "hardswish", "hardswish_", "hardtanh", "hardtanh_", "leaky_relu",
    "leaky_relu_", "elu", "elu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "mish", "mish_", "softplus", "relu6",
))  # fmt: skip
_FORWARD = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


class Convolution(Pattern):
    """``f(norm(w * x + b))``, without the norm or f where the program has none."""

    name = "convolution"

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        for node in flow.nodes:
            if flow.ops[node] not in CONVOLUTIONS or not (weights := _weights(flow, node)):
                continue
            norm = _only_reader(flow, node, lambda n: flow.ops[n] in _NORMS)
            last = node if norm is None else norm
            activation = _only_reader(flow, last, lambda n: flow.ops[n] in _ACTIVATIONS)
            nodes = {n for n in (node, norm, activation) if n is not None}
            check = partial(_check, flow, node, norm, activation)
            yield Found(node, nodes, weights, check, form_of(flow, nodes))


def _weights(flow: Flow, node: int) -> list[int]:
    """Its kernel, or what that is computed of, if of weights alone (spectral norm); empty where it is of data."""
    kernel = flow.inputs(node)[1]
    if flow.is_leaf(kernel[0]):
        return [flow.behind(kernel)[0][0]]
    passed, ends = flow.back([kernel[0]], flow.is_weight, _MOST)
    made = all(flow.inputs(n) for n in passed if flow.is_op(n)) and len(passed) < _MOST
    return sorted(ends) if made and all(map(flow.is_op, passed)) else []


def _only_reader(flow: Flow, node: int, wanted: Any) -> int | None:
    """The one node that reads what another gives, as its first input, if it is such."""
    readers = flow.readers[node]
    return readers[0][0] if len(readers) == 1 and readers[0][1] == 0 and wanted(readers[0][0]) else None


def _check(flow: Flow, node: int, norm: int | None, activation: int | None) -> Check:
    """On a small picture: what is computed of each place is the same at all sizes."""
    inputs = flow.inputs(node)
    names = ["input", "weight", "bias", "stride", "padding", "dilation"]
    if flow.ops[node] in TRANSPOSED:  # one call of torch, where nothing needs gradients
        given = {**arguments(flow[node], *names[:-1], "output_padding", "groups", "dilation"), "transposed": True}
    else:
        names += ["transposed", "output_padding", "groups"] if flow.ops[node] == "aten::convolution" else ["groups"]
        given = arguments(flow[node], *names)
    whole, kernel = flow.read_shapes(node)[0], flow.read_shapes(node)[1][2:]
    sides = len(kernel)
    if not 1 <= sides <= 3:
        raise Refused(f"it has {sides} dimensions")
    dilation = _each(given["dilation"], sides)
    small = [min(n, (k - 1) * d + _SMALL) for n, k, d in zip(whole[-sides:], kernel, dilation, strict=True)]
    shapes = {inputs[0]: (*fewer(whole, sides + 1)[:-sides], *small)}
    variance = _norms(flow, norm)[1]
    trial = Trial(flow, {n for n in (node, norm, activation) if n is not None}, _AllBut(variance), shapes)
    bias = trial.given(inputs[2]) if len(inputs) > 2 else None
    x, weight = trial.given(inputs[0]), trial.given(inputs[1])
    how = {name: given[name] for name in ("stride", "padding", "dilation", "groups") if given[name] is not None}
    if given.get("transposed"):
        expected = _TRANSPOSED[sides - 1](x, weight, bias, output_padding=given["output_padding"] or 0, **how)
    else:
        expected = _FORWARD[sides - 1](x, weight, bias, **how)
    groups, channels = given["groups"] or 1, whole[-sides - 1]
    attributes: dict[str, Any] = {
        "kind": f"{sides}d" + (" transposed" if given.get("transposed") else ""),
        "kernel": "×".join(map(str, kernel)),
        "groups": "none" if groups == 1 else "depthwise" if groups == channels else groups,
        "normalization": "none" if norm is None else "batch",
    }
    if norm is not None:
        expected = _normalized(flow, norm, trial, expected)
    last = next(n for n in (activation, norm, node) if n is not None)
    (found,) = trial.run((last, 0))
    if activation is None:
        if not agree(found, expected):
            raise Refused("it is not a convolution")
        return Check(True, {**attributes, "activation": "none"})
    name = _name(flow[activation])
    if not agree(found, _called(flow[activation], expected)):
        raise Refused(f"what follows the convolution is not {name}")
    return Check(True, {**attributes, "activation": name})


def _name(node: Node) -> str:
    own = node.op.removeprefix("aten::").rstrip("_")
    if own == "hardtanh" and [*node.args[1:]] == [0, 6]:
        return "relu6"
    if own == "gelu" and node.kwargs.get("approximate") == "tanh":
        return "gelu (tanh)"
    return own.replace("_", " ")


def _called(node: Node, x: torch.Tensor) -> torch.Tensor:
    """With the numbers that the program gives it: of leaky relu, the slope."""
    function: Callable[..., torch.Tensor] = getattr(F, node.op.removeprefix("aten::").rstrip("_"))
    return function(x, *node.args[1:], **node.kwargs)


class _AllBut:
    """Of sources: all but one."""

    def __init__(self, source: Source | None) -> None:
        self._source = source

    def __contains__(self, source: object) -> bool:
        return source != self._source


def _each(value: Any, sides: int) -> tuple[int, ...]:
    found = (1,) if value is None else (value,) if isinstance(value, int) else tuple(value)
    return found * sides if len(found) == 1 else found


def _norms(flow: Flow, norm: int | None) -> tuple[dict[str, Any], Source | None]:
    """(its arguments by name, where the variance comes from)"""
    if norm is None:
        return {}, None
    given = arguments(flow[norm], *_NORMS[flow.ops[norm]])
    return given, None if given["variance"] is None else flow.inputs(norm)[given["variance"].index]


def _normalized(flow: Flow, norm: int, trial: Trial, x: torch.Tensor) -> torch.Tensor:
    given, _ = _norms(flow, norm)
    inputs = flow.inputs(norm)
    shape = (x.shape[1], *[1] * (x.dim() - 2))
    weight, bias, mean, variance = (
        None if (hole := given[name]) is None else trial.given(inputs[hole.index]).reshape(shape)
        for name in ("weight", "bias", "mean", "variance")
    )
    if given.get("training") or mean is None or variance is None:
        variance, mean = torch.var_mean(x, (0, *range(2, x.dim())), correction=0, keepdim=True)
    found = (x - mean) * (variance + given["eps"]).rsqrt()
    found = found if weight is None else found * weight
    return found if bias is None else found + bias
