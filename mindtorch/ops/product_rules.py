"""Product rules: what a call multiplies, as (products, rows, columns, contracted); None if an operand is missing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .call import Call, tensors
from .flop_rules import numel

Product = tuple[int, int, int, int]
Shape = tuple[int, ...]


class _Of:
    """By the shapes of two operands that follow each other; first: the position of the first of them."""

    def __init__(self, rule: Callable[[Shape, Shape], Product], first: int = 0) -> None:
        self.rule = rule
        self.first = first

    def __call__(self, call: Call) -> Product | None:
        given = list(tensors(call.args))[self.first :]
        return self.rule(tuple(given[0].shape), tuple(given[1].shape)) if len(given) > 1 else None


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


def conv(call: Call) -> Product:
    """By group."""
    return _by_group(call.results[0], call.args[1], call.args[8])


def conv_backward(call: Call) -> Product:
    return _by_group(call.args[0], call.args[2], call.args[9])


def _by_group(result: Any, weight: Any, groups: int) -> Product:
    count, channels = int(groups), weight.shape[0]
    return count, numel(result) // max(channels, 1), channels // count, math.prod(weight.shape[1:])
