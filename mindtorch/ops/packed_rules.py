"""Rules of ``genie::packed_linear(x, stored, columns, groups, dtype)``: rows of ``x`` times weights that are packed.

groups: experts of a mixture, whose weights lie one after another; the rows are shared out among as many as there are
rows for, and of the others nothing is read.
"""

from __future__ import annotations

import math

from .call import Call, size, sizes
from .flop_rules import Args, Kwargs, numel
from .product_rules import Product


def _used(x: object, groups: int) -> int:
    return max(min(groups, math.prod(x.shape[:-1])), 1)  # type: ignore[attr-defined]


def flops(args: Args, kwargs: Kwargs, out: object) -> int:
    """2 x rows x contracted x columns, whatever the weights are packed in."""
    return 2 * numel(args[0]) * int(args[2])


def product(call: Call) -> Product:
    x, columns, groups = call.args[0], call.args[2], call.args[3]
    used = _used(x, groups)
    return used, -(-math.prod(x.shape[:-1]) // used), columns, x.shape[-1]


def moved(call: Call) -> tuple[int, int]:
    """The activations' own scales, which are a number for each row, are counted as if they were the weights'."""
    x, stored, _, groups = call.args[:4]
    return size(x) + sizes(stored) * _used(x, groups) // groups, sizes(call.results)
