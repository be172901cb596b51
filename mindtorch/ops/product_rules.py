"""Product rules: what a call multiplies, as (products, rows, columns, contracted); None if an operand is missing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .call import Call, tensors
from .flop_rules import is_sparse, numel

Product = tuple[int, int, int, int]
Shape = tuple[int, ...]


class _Of:
    """By the shapes of two operands that follow each other; first: the position of the first of them."""

    def __init__(self, rule: Callable[[Shape, Shape], Product], first: int = 0) -> None:
        self.rule = rule
        self.first = first

    def __call__(self, call: Call) -> Product | None:
        given = list(tensors(call.args))[self.first :]
        if len(given) < 2 or any(map(is_sparse, given[:2])):
            return None  # such a product streams what is stored, it has no tiles
        return self.rule(tuple(given[0].shape), tuple(given[1].shape))


def _matrices(a: Shape, b: Shape) -> Product:
    return 1, a[0], b[1], a[1]


def _batches(a: Shape, b: Shape) -> Product:
    return a[0], a[1], b[2], a[2]


def _vector(a: Shape, b: Shape) -> Product:
    return 1, a[0], 1, a[1]


def _layer(x: Shape, weight: Shape) -> Product:
    return 1, math.prod(x[:-1]), weight[0] if len(weight) > 1 else 1, weight[-1]


def _heads(query: Shape, key: Shape) -> Product:
    return math.prod(query[:-2]), query[-2], key[-2], query[-1]


def _grouped(a: Shape, b: Shape) -> Product:
    """Rows are shared out among as many groups as there are rows for: a mixture of experts reads no others."""
    if len(a) == 2 and len(b) == 3:
        groups = max(min(b[0], a[0]), 1)
        return groups, -(-a[0] // groups), b[2], a[1]
    if len(a) == 3 and len(b) == 2:
        return a[0], a[1], -(-b[1] // max(a[0], 1)), a[2]
    if len(a) == 3:
        return a[0], a[1], b[2], a[2]
    return 1, a[0], b[1], a[1]


grouped_mm = _Of(_grouped)
mm, addmm = _Of(_matrices), _Of(_matrices, first=1)
bmm, baddbmm = _Of(_batches), _Of(_batches, first=1)
mv, addmv = _Of(_vector), _Of(_vector, first=1)
linear = _Of(_layer)
#: Of queries and keys, by head.
scores, scores_backward = _Of(_heads), _Of(_heads, first=1)


def matmul(call: Call) -> Product | None:
    """Of any dimensions: what is not batched on both sides is one product of many rows."""
    given = list(tensors(call.args))
    if len(given) < 2 or any(map(is_sparse, given[:2])):
        return None
    a, b = (tuple(t.shape) for t in given[:2])
    if not a or not b:
        return None
    columns, inner = b[-1] if len(b) > 1 else 1, a[-1]
    if len(b) < 3:
        return 1, math.prod(a[:-1]), columns, inner
    if len(a) < 3:  # as torch does it: the other way round
        return 1, math.prod(b[:-2]) * columns, a[0] if len(a) > 1 else 1, inner
    rows = a[-2]
    return numel(call.results[0]) // max(rows * columns, 1), rows, columns, inner


def convolution(call: Call) -> Product:
    """By group. Each position of the input of a transposed one meets all the weights, else each one of the result."""
    transposed = bool(call.args[6]) if len(call.args) > 6 else False
    return _by_group(call.args[0] if transposed else call.results[0], call.args[1], _groups(call, 8))


def convolution_backward(call: Call) -> Product:
    transposed = bool(call.args[7]) if len(call.args) > 7 else False
    return _by_group(call.args[1 if transposed else 0], call.args[2], _groups(call, 9))


def conv(call: Call) -> Product:
    """conv2d and its like, which inference mode hands down whole."""
    return _by_group(call.results[0], call.args[1], _groups(call, 6))


def conv_transpose(call: Call) -> Product:
    return _by_group(call.args[0], call.args[1], _groups(call, 6))


def _groups(call: Call, at: int) -> int:
    return int(call.args[at] if len(call.args) > at else call.kwargs.get("groups", 1))


def _by_group(side: Any, weight: Any, groups: int) -> Product:
    channels = weight.shape[0]
    return groups, numel(side) // max(channels, 1), channels // groups, math.prod(weight.shape[1:])


def packed(call: Call) -> Product:
    """packed_linear(x, stored, columns, groups): rows are shared out among the groups, as in a grouped product."""
    x, columns, groups = tuple(call.args[0].shape), call.args[2], call.args[3]
    return _grouped((math.prod(x[:-1]), x[-1]), (groups, x[-1], columns))
