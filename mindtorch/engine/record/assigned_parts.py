"""Assignment to a part of a recorded tensor, ``x[1:3] = y``: as a view that is written to, where that is the same."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..._ext import lazy as _core
from ..._ext.strides import overlapping

_NUMBERS = frozenset({bool, int, float})
_WIDE = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64})
_MOST = (1 << 63) - 1  # of larger indices torch has other words for each way


def set_part(target: torch.Tensor, index: Any, value: Any) -> Any:
    """What C++ does where nothing is differentiated and the index makes a view, without its way through dispatch."""
    if _core.get_handle(target) is None or torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return NotImplemented  # modes see what C++ calls
    if target.dtype.is_complex:
        return NotImplemented  # its memory may hold conjugates
    number = type(value) in _NUMBERS and _fits(value, target.dtype)
    if not number and _core.get_handle(value) is None:
        return NotImplemented
    if not all(map(_makes_view, index) if type(index) is tuple else (_makes_view(index),)):
        return NotImplemented
    if torch.is_grad_enabled() and (target.requires_grad or (not number and value.requires_grad)):
        return NotImplemented
    part = target[index]
    _dtype, size, stride, *_ = _core.meta_of(_core.get_handle(part))
    if overlapping(size, stride):
        return NotImplemented  # filling it is allowed, this is not
    if number:
        part.fill_(value)
    elif part.shape == value.shape and part.device == value.device:
        part.copy_(value)
    else:
        return NotImplemented
    return None


def _fits(number: float, dtype: torch.dtype) -> bool:
    """Does the number surely fit the dtype? Of others torch says what it thinks, or rounds, in another way for each."""
    if type(number) is float and not math.isfinite(number):
        return dtype.is_floating_point
    return abs(number) <= (0x7FFFFFFF if dtype in _WIDE else 100)


def _makes_view(index: Any) -> bool:
    if type(index) is slice:
        return all(n is None or type(n) is int for n in (index.start, index.stop, index.step))
    return index is None or index is Ellipsis or (type(index) is int and -_MOST <= index <= _MOST)
