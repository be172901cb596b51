"""Gradient scaling, and what moves between host and device without being staged: draws, and numbers that are read."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch

from .._ext import aclnn
from ..base.errors import UnsupportedOperationError
from .descriptions import DTYPES, FLOATS, Calls, Description, Kernel, is_number, make
from .kernel_rows import filled
from .random import drawing

__all__ = ["SCALING"]

_BOOL, _FLOAT32, _INT32 = (DTYPES[d] for d in (torch.bool, torch.float32, torch.int32))
_LARGEST = torch.finfo(torch.float32).max


def _unscale(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``_amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inv_scale)``."""
    if len(args) != 3 or kwargs or not args[0] or not aclnn.available("ForeachNonFiniteCheckAndUnscale"):
        return NotImplemented
    grads = [calls.describe(each) for each in args[0]]
    found, inverse = (calls.describe(each) for each in args[1:])
    if any(each is None or each[5] not in FLOATS or each[5] != grads[0][5] for each in grads):  # type: ignore[index]
        return NotImplemented
    if any(each is None or each[5] != _FLOAT32 or math.prod(each[1]) != 1 for each in (found, inverse)):
        return NotImplemented
    given = [each for each in grads if math.prod(each[1])]  # type: ignore[index]
    if given and not aclnn.call("ForeachNonFiniteCheckAndUnscale", calls.device, given, found, inverse):
        return NotImplemented
    torch.autograd.graph.increment_version(list(args[0]))
    return None


def _single(value: object) -> bool:
    """Whether float32 has the number: a product by it is then the same as torch's, which is by a double."""
    return is_number(value) and struct.unpack("f", struct.pack("f", value))[0] == value


def _update_scale(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``_amp_update_scale_(scale, growth_tracker, found_inf, growth, backoff, interval)``, without a read."""
    needed = "Muls", "Adds", "NeScalar", "EqScalar", "LeScalar", "LogicalAnd", "LogicalOr", "SWhere", "InplaceCopy"
    if len(args) != 6 or kwargs or not all(map(aclnn.available, needed)) or not all(map(_single, args[3:5])):
        return NotImplemented
    scale, tracker, found = (calls.describe(each) for each in args[:3])
    if scale is None or tracker is None or found is None or (scale[5], tracker[5]) != (_FLOAT32, _INT32):
        return NotImplemented
    if found[5] != _FLOAT32 or any(math.prod(each[1]) != 1 for each in (scale, tracker, found)):
        return NotImplemented
    held: list[Any] = []

    def run(name: str, like: Description, code: int, *operands: Any) -> Description | None:
        """A new tensor with the operator's result; None where it, or one before it, was refused."""
        if None in operands:
            return None
        held.append(make(calls, like[1], code))
        out = held[-1][1]
        return out if aclnn.call(name, calls.device, *operands, out) else None

    grown = run("Muls", scale, _FLOAT32, scale, args[3])
    less = run("Muls", scale, _FLOAT32, scale, args[4])
    counted = run("Adds", tracker, _INT32, tracker, 1, 1)
    infinite = run("NeScalar", found, _BOOL, found, 0)
    full = run("EqScalar", tracker, _BOOL, counted, args[5])
    fits = run("LeScalar", scale, _BOOL, grown, _LARGEST)
    grows = run("LogicalAnd", scale, _BOOL, full, fits)
    restarts = run("LogicalOr", tracker, _BOOL, full, infinite)
    zero = filled(calls, tracker[1], _INT32, 0)
    scaled = run("SWhere", scale, _FLOAT32, infinite, less, run("SWhere", scale, _FLOAT32, grows, grown, scale))
    tracked = run("SWhere", tracker, _INT32, restarts, zero and zero[1], counted)
    if scaled is None or tracked is None:
        return NotImplemented
    copies = (tracker, tracked), (scale, scaled)
    if not all(aclnn.call("InplaceCopy", calls.device, *each) for each in copies):
        raise UnsupportedOperationError("[_amp_update_scale_] the NPU refuses to copy float32 or int32")
    return args[0]


def _drawn(overload: Any) -> Kernel:
    """A random operation in place: the host draws, with the device's generator, and nothing is read from the device."""

    def kernel(calls: Calls, args: tuple, kwargs: dict) -> Any:
        one = calls.describe(args[0])
        if one is None or kwargs.get("generator") is not None or any(isinstance(a, torch.Tensor) for a in args[1:]):
            return NotImplemented
        dense = torch.empty_strided(one[1], one[2], dtype=args[0].dtype, device="cpu")
        if dense.untyped_storage().nbytes() != dense.numel() * dense.element_size():
            return NotImplemented  # what lies between its elements stays
        with drawing(calls.device):
            overload(dense, *args[1:], **kwargs)
        torch.ops.aten.copy_.default(args[0], dense)
        return args[0]

    return kernel


def _read(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``_local_scalar_dense``, one number: as a copy to the host."""
    one = calls.describe(args[0])
    if one is None or math.prod(one[1]) != 1:
        return NotImplemented
    here = torch.empty_strided(one[1], one[2], dtype=args[0].dtype, device="cpu")
    return torch.ops.aten.copy_.default(here, args[0]).item()


_aten = torch.ops.aten
_DRAWS = (
    _aten.bernoulli_.float, _aten.uniform_.default, _aten.normal_.default, _aten.random_.default,
    getattr(_aten.random_, "from"), _aten.random_.to, _aten.exponential_.default, _aten.geometric_.default,
    _aten.cauchy_.default, _aten.log_normal_.default,
)  # fmt: skip
SCALING: dict[str, Kernel] = {
    "aten::_amp_foreach_non_finite_check_and_unscale_": _unscale,
    "aten::_amp_update_scale_": _update_scale,
    "aten::_local_scalar_dense": _read,
    **{overload.name(): _drawn(overload) for overload in _DRAWS},
}
