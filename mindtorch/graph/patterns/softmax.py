"""Softmax, as one call or written out with exponentials and their sum."""

from __future__ import annotations

from typing import NamedTuple

from .flow import Flow
from .pattern import arguments
from .rerun import Source

__all__ = ["SOFTMAX", "Softmax", "softmax_at"]

SOFTMAX = frozenset({"aten::_softmax", "aten::_safe_softmax", "aten::softmax"})
_QUOTIENTS = frozenset({"aten::div", "aten::div_"})
_DIFFERENCES = frozenset({"aten::sub", "aten::sub_"})
_EXPONENTIALS = frozenset({"aten::exp", "aten::exp_"})
_LARGEST = frozenset({"aten::amax", "aten::max"})
_AT_LEAST = frozenset({"aten::add", "aten::add_", "aten::clamp_min", "aten::clamp"})


class Softmax(NamedTuple):
    """source: what it is of. axis: as the call says it. nodes: all that compute it."""

    source: Source
    axis: object
    nodes: set[int]


def softmax_at(flow: Flow, node: int) -> Softmax | None:
    """What ends there, if its calls look like one; whether they compute it is for who asks to check."""
    op = flow.ops[node]
    if op in SOFTMAX:
        given = flow[node]
        axis = given.args[1] if len(given.args) > 1 else given.kwargs.get("dim")
        return Softmax(flow.inputs(node)[0], axis, {node})
    if op not in _QUOTIENTS or len(flow.inputs(node)) != 2:
        return None
    over, under = flow.inputs(node)
    power, moved = flow.behind(over)
    total, passed = flow.behind(under, lambda n: flow.ops[n] in _AT_LEAST and len(flow.inputs(n)) == 1)
    if not flow.is_op(total[0]) or flow.ops[total[0]] != "aten::sum" or not flow.is_op(power[0]):
        return None
    summed, between = flow.behind(flow.inputs(total[0])[0])
    if flow.ops[power[0]] not in _EXPONENTIALS or summed != power:
        return None
    axes = arguments(flow[total[0]], "self", "dim")["dim"]
    axis = axes[0] if isinstance(axes, (list, tuple)) and len(axes) == 1 else axes
    nodes = {node, *moved, *passed, total[0], *between, power[0]}
    source = flow.inputs(power[0])[0]
    less, cast = flow.behind(source)
    inputs = flow.inputs(less[0])
    if flow.is_op(less[0]) and flow.ops[less[0]] in _DIFFERENCES and len(inputs) == 2:
        largest, ways = flow.behind(inputs[1])
        if flow.ops[largest[0]] in _LARGEST and flow.is_op(largest[0]):
            of, more = flow.behind(flow.inputs(largest[0])[0])
            if of == flow.behind(inputs[0])[0]:
                nodes |= {less[0], *cast, *ways, largest[0], *more, *flow.behind(inputs[0])[1]}
                source = of
    return Softmax(source, axis, nodes)
