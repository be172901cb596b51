"""M3: numbers at the borders of what a dtype holds: a rule answers where torch converts them, and nowhere else."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mindtorch._ext import shapes

sys.path.append(str(Path(__file__).parent))  # a module that the tests share; importlib mode leaves the path alone

from test_shapes_of_each import as_meta, eager

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64,
]  # fmt: skip
#: Calls of a tensor, a mask and a number.
CALLS: dict[str, Any] = {
    "add": lambda x, _mask, number: (x, number),
    "mul": lambda x, _mask, number: (x, number),
    "eq": lambda x, _mask, number: (x, number),
    "lt": lambda x, _mask, number: (x, number),
    "bitwise_and": lambda x, _mask, number: (x, number),
    "clamp": lambda x, _mask, number: (x, number),
    "clamp_min": lambda x, _mask, number: (x, number),
    "clamp_max": lambda x, _mask, number: (x, number),
    "where": lambda x, mask, number: (mask, x, number),
    "pow": lambda x, _mask, number: (x, number),
    "masked_fill": lambda x, mask, number: (x, mask, number),
}

KEEP = ("masked_fill",)  # the dtype of the tensor, whatever the number is


def near(number: float) -> list[float]:
    return (
        [number - 1, number, number + 1]
        if isinstance(number, int)
        else [math.nextafter(number, 0), number, math.nextafter(number, math.inf)]
    )


NUMBERS: list[Any] = [each for bits in (0, 1, 7, 8, 15, 16, 31, 32, 63) for s in (1, -1) for each in near(s << bits)]
NUMBERS += [each for v in (65504.0, 3e38) for s in (v, -v) for each in near(s)]
NUMBERS += [65503, 65504, 65505, -65503, -65504, -65505, 0.0, 0.5, math.inf, -math.inf, math.nan, True, False, 1j]


def holds(dtype: torch.dtype, number: Any) -> bool:
    """Whether the dtype has this number, in its range at least."""
    if isinstance(number, bool):
        return True
    if isinstance(number, complex):
        return dtype.is_complex
    if dtype.is_floating_point or dtype.is_complex:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    if isinstance(number, float):
        return False
    return number in (0, 1) if dtype is torch.bool else torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max


def answer(name: str, args: tuple) -> Any:
    return shapes.infer(f"aten::{name}", tuple(as_meta(each) for each in args), {})


@pytest.mark.parametrize("name", CALLS)
def test_M3_numbers_that_the_dtype_holds_are_answered_and_others_are_left_to_torch(name: str) -> None:
    call, told = CALLS[name], set()
    for dtype in DTYPES:
        x, mask = torch.ones(2, 3, dtype=dtype), torch.ones(2, 3, dtype=torch.bool)
        ordinary = {kind: answer(name, call(x, mask, kind(1))) for kind in (int, float, bool, complex)}
        for number in NUMBERS:
            if ordinary[type(number)] is None or (type(number) is int and not -(1 << 63) <= number < 1 << 63):
                assert answer(name, call(x, mask, number)) is None
                continue
            common = dtype if name in KEEP else torch.result_type(x, number)
            args = call(x, mask, number)
            ours = answer(name, args)
            assert (ours is not None) == holds(common, number), (dtype, number)
            told.add(ours is not None)
            if ours is not None:
                out = eager(name, args, {})
                assert ours == [(tuple(out.shape), tuple(out.stride()), out.dtype)], (dtype, number)
    assert told == {True, False}
