"""L7, L13: a call without Python that was proven with one number gives eager's bits with all others, in every type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mindtorch.engine.passes import native
from tests.native import CAN, made, soon

pytestmark = [CAN, pytest.mark.usefixtures(soon.__name__)]

LAZY = "remote_accelerator:0"
TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64)
NAMES = sorted(name.removeprefix("aten::") for name in native.ELEMENT_WISE)

#: How functions take numbers, by what they are called with.
FORMS: dict[str, Callable[[Callable[..., Any], torch.Tensor, torch.Tensor, float], Any]] = {
    "number": lambda f, x, y, a: f(x, a),
    "two numbers": lambda f, x, y, a: f(x, a, 2 * a),
    "alpha": lambda f, x, y, a: f(x, y, alpha=a),
    "number, alpha": lambda f, x, y, a: f(x, a, alpha=a),
    "value": lambda f, x, y, a: f(x, y, y, value=a),
    "weight": lambda f, x, y, a: f(x, y, a),
    "masked": lambda f, x, y, a: f(x, y > 0.3, a),
    "threshold": lambda f, x, y, a: f(x, y, a, 2 * a),
}


def called(name: str) -> Callable[..., Any] | None:
    if name.endswith("_"):
        method = getattr(torch.Tensor, name, None)
        return method and (lambda x, *args, **kwargs: method(x.clone(), *args, **kwargs))
    for owner in (torch, torch.nn.functional, torch._C._nn, torch.Tensor):
        if callable(found := getattr(owner, name, None)):
            return found  # type: ignore[no-any-return]
    return None


def values(short: bool, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Numbers that are the same however they are rounded, or those that are not."""
    if short:
        return torch.zeros(4, 3).to(dtype), torch.full((4, 3), 0.5).to(dtype), 0.5
    x, y = torch.linspace(-2.9, 3.1, 12).view(4, 3), torch.linspace(0.13, 1.9, 12).view(4, 3)
    return x.to(dtype), y.to(dtype), 0.3470123


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_L13_calls_without_python_round_numbers_as_eager(
    form: str, dtype: torch.dtype, same_bits: Callable[..., None]
) -> None:
    before, tried = made(), 0
    for name in NAMES:
        if (function := called(name)) is None:
            continue
        try:
            for short in (True, False):
                FORMS[form](function, *values(short, dtype))
        except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError):
            continue  # it takes no such arguments
        tried += 1
        for k in range(8):
            x, y, a = values(k < 4, dtype)
            a *= 1 + (k - 4) * (k >= 4) / 7
            expected = FORMS[form](function, x.clone(), y, a)
            got = FORMS[form](function, x.to(LAZY), y.to(LAZY), a)
            if isinstance(expected, torch.Tensor):
                same_bits(got, expected, f"{name} {k}")
    if tried and dtype.is_floating_point:
        assert made() > before
