"""Ops that compare, sum up what comparisons gave, or choose: what an estimate asks about unknown values (SPEC C4)."""

from __future__ import annotations

from typing import Any

import torch

__all__ = [
    "ARITHMETIC",
    "DRAWN",
    "ELEMENT_WISE",
    "NAMES",
    "NUMBERS",
    "PADDING",
    "REDUCING",
    "ROUTING",
    "UNSCALE",
    "asked",
]

ELEMENT_WISE = frozenset(f"aten::{name}" for name in (
    "isfinite isnan isinf isneginf isposinf eq ne lt le gt ge logical_and logical_or logical_xor logical_not "
    "bitwise_and bitwise_or bitwise_xor bitwise_not __and__ __or__ __xor__ isclose mul isin _to_copy"
).split())  # fmt: skip
REDUCING = frozenset(f"aten::{name}" for name in "all any sum mean count_nonzero max min amax amin".split())
#: Ops whose second result, or only one, says which element is chosen.
ROUTING = frozenset({"aten::topk", "aten::argmax", "aten::max", "aten::multinomial", "aten::sort"})  # max: along a dim
#: Writes whether there were values that are not finite: there are none.
UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"
#: Of integers: lengths and positions that follow from what was compared.
ARITHMETIC = frozenset(f"aten::{name}{where}" for where in ("", "_") for name in (
    "add sub rsub mul neg abs cumsum clamp clamp_min clamp_max minimum maximum"
).split())  # fmt: skip
#: Of single numbers that are no integers, beside those: times and steps of solvers, ratios of norms.
NUMBERS = ARITHMETIC - {"aten::cumsum", "aten::cumsum_"} | frozenset(f"aten::{name}{where}" for where in ("", "_") for
    name in "div reciprocal pow sqrt rsqrt square exp".split()) | {"aten::min", "aten::max"}  # fmt: skip
#: Floating-point numbers between bounds, or one of two, drawn at random.
DRAWN = frozenset(f"aten::{name}" for name in "rand rand_like uniform uniform_ bernoulli bernoulli_".split())
#: Ops that put known integers beside unknown ones.
PADDING = frozenset({"aten::constant_pad_nd", "aten::cat"})
NAMES = DRAWN | ELEMENT_WISE | REDUCING | ROUTING | ARITHMETIC | NUMBERS | {UNSCALE}


def asked(name: str, made: list[Any]) -> bool:
    """Is this call one of them? made: (dtype, size, …) of each tensor that it makes or writes."""
    if name not in NAMES or not made:
        return name == UNSCALE
    dtype = made[0][0]
    if name == "aten::mul" and dtype is torch.bool:
        return True
    if name not in ARITHMETIC and name not in NUMBERS:
        return True
    if dtype.is_floating_point:
        return name in REDUCING or (name in NUMBERS and made[0][1].numel() == 1)
    return name in REDUCING or (name in ARITHMETIC and dtype is not torch.bool and not dtype.is_complex)
