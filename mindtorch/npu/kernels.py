"""Which ATen operations run natively on an NPU, and how: one row per overload in ``NATIVE``.

A kernel is called with a :class:`Calls`, which is all it knows of tensors and streams, and the arguments of the
overload. It returns the result, or ``NotImplemented`` for arguments that it does not take: other dtypes, tensors
elsewhere, mistakes (their errors are torch's to tell). Nothing was queued then, and the caller stages the operation
through the CPU. ``float32``, ``float16`` and ``bfloat16`` are computed with; what only moves takes every dtype of
``DTYPES``. The library may refuse a dtype that the chip does not have: that, too, is ``NotImplemented``.

One file: its kernels are the table's rows, told apart by nothing but their operation; those of several operators are in
`layers.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .._ext import aclnn
from ..devices.places import BY_TYPE, NPU
from . import cube
from .descriptions import (
    DTYPES,
    FLOATS,
    INDICES,
    MAX_RANK,
    TORCH,
    WHOLE,
    Calls,
    Description,
    Kernel,
    broadcast,
    converts,
    describe,
    dimension,
    dimensions,
    fits,
    is_number,
    make,
    overlap,
    reduced,
    result_strides,
)
from .kernel_rows import ROWS
from .layers import LAYERS
from .library import device_index
from .operators import VARYING
from .scaling import SCALING

__all__ = ["DTYPES", "NATIVE", "Calls"]

aclnn.determine(torch.are_deterministic_algorithms_enabled, VARYING)


# Elementwise


def _unary(name: str, in_place: bool = False) -> Kernel:
    def kernel(calls: Calls, args: tuple, kwargs: dict) -> Any:
        if len(args) != 1 or kwargs or not aclnn.available(name):
            return NotImplemented
        return _run_unary(calls, args[0], in_place, lambda one, out: aclnn.call(name, calls.device, one, out))

    return kernel


def _reciprocal(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """Also of float64, in which gradient scalers compute it."""
    if len(args) != 1 or kwargs or not aclnn.available("Reciprocal"):
        return NotImplemented
    wide = describe(calls, args[0], floats=False)
    if wide is None or wide[0][5] != DTYPES[torch.float64]:
        return _unary("Reciprocal")(calls, args, kwargs)
    result, out = make(calls, wide[0][1], wide[0][5], result_strides(wide[0][1], wide))
    done = not math.prod(wide[0][1]) or aclnn.call("Reciprocal", calls.device, wide[0], out)
    return result if done else NotImplemented


def _run_unary(calls: Calls, value: Any, in_place: bool, run: Callable[[Description, Description], bool]) -> Any:
    described = describe(calls, value)
    if described is None or (in_place and overlap(described[0], described[0])):
        return NotImplemented
    one = described[0]
    result, out = (value, one) if in_place else make(calls, one[1], one[5], result_strides(one[1], described))
    return result if not math.prod(one[1]) or run(one, out) else NotImplemented


def _gelu(calls: Calls, args: tuple, kwargs: dict) -> Any:
    approximate = kwargs.get("approximate", "none")
    if len(args) != 1 or kwargs.keys() - {"approximate"} or approximate not in ("none", "tanh"):
        return NotImplemented
    mode = int(approximate == "tanh")
    if aclnn.available("GeluV2"):
        return _run_unary(calls, args[0], False, lambda one, out: aclnn.call("GeluV2", calls.device, one, mode, out))
    # The first version is the approximation by tanh.
    return _unary("Gelu")(calls, args, {}) if mode else NotImplemented


def _number(value: Any, beside: Description | None) -> Any:
    """A CPU tensor without dimensions as a number, if it is no more to torch beside the other operand; else as it is.

    Beside another one without dimensions its dtype counts as much as that one's.
    """
    if isinstance(value, torch.Tensor) and value.is_cpu and not value.dim() and not value.requires_grad:
        if beside is None or (not beside[1] and torch.promote_types(TORCH[beside[5]], value.dtype) != TORCH[beside[5]]):
            return value
        return value.item()
    return value


def _whole(value: Any, dtype: torch.dtype) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and fits(value, dtype)


def _promoted(calls: Calls, one: object, other: object) -> tuple[list[Description], list[Any], int] | None:
    """Both operands, tensors to be kept until the call, and the code of the dtype that torch computes in.

    The operators promote floats of different dtypes as torch does, but for what has no dimensions: to torch that counts
    less beside what has some. It is converted first.
    """
    described = [calls.describe(each) for each in (one, other)]
    if any(each is None or len(each[1]) > MAX_RANK for each in described):
        return None
    operands: list[Description] = described  # type: ignore[assignment]
    codes = [each[5] for each in operands]
    if codes[0] == codes[1]:
        return operands, [], codes[0]
    if not {*codes} <= FLOATS:
        return None
    ranked = [each[5] for each in operands if each[1]]
    if len(ranked) != 1:
        return operands, [], DTYPES[torch.promote_types(TORCH[codes[0]], TORCH[codes[1]])]
    at = 1 if operands[0][1] else 0
    made, out = make(calls, (), ranked[0])
    if not (aclnn.available("Cast") and aclnn.call("Cast", calls.device, operands[at], ranked[0], out)):
        return None
    operands[at] = out
    return operands, [made], ranked[0]


def _binary(name: str, alpha: bool = False, in_place: bool = False) -> Kernel:
    def kernel(calls: Calls, args: tuple, kwargs: dict) -> Any:
        if not 2 <= len(args) <= 2 + alpha or kwargs.keys() - ({"alpha"} if alpha else set()):
            return NotImplemented
        scale = (args[2] if len(args) > 2 else kwargs.get("alpha", 1)) if alpha else None
        other = _number(args[1], calls.describe(args[0]) if isinstance(args[1], torch.Tensor) else None)
        number = is_number(other)
        if isinstance(scale, bool) or (name == "Sub" and isinstance(other, bool)) or (alpha and not is_number(scale)):
            return NotImplemented
        if not aclnn.available(name + "s" * number):
            return NotImplemented
        if number:
            described = describe(calls, args[0], floats=False)
            code = -1 if described is None else described[0][5]
        else:
            described, _held, code = _promoted(calls, *args[:2]) or (None, None, -1)
        if described is None or (scale is not None and not fits(scale, TORCH[code])):
            return NotImplemented
        one = described[0]
        if code not in FLOATS:
            numbers = [each for each in (other if number else None, scale) if each is not None]
            if name == "Div" or code not in WHOLE or any(not _whole(each, TORCH[code]) for each in numbers):
                return NotImplemented
        sizes = broadcast(described)
        if sizes is None or len(sizes) > MAX_RANK:
            return NotImplemented
        if in_place and (sizes != one[1] or any(overlap(one, each) for each in described)):
            return NotImplemented
        result, out = (args[0], one) if in_place else make(calls, sizes, code, result_strides(sizes, described))
        if not number:
            other = described[1]
        operands = (one, other, scale, out) if alpha else (one, other, out)
        done = not math.prod(sizes) or aclnn.call(name + "s" * number, calls.device, *operands)
        return result if done else NotImplemented

    return kernel


# Matrix products


def _product(name: str, rank: int | None) -> Kernel:
    def kernel(calls: Calls, args: tuple, kwargs: dict) -> Any:
        described = describe(calls, *args) if len(args) == 2 and not kwargs and aclnn.available(name) else None
        if described is None:
            return NotImplemented
        one, other = described[0][1], described[1][1]
        if not one or not other or (rank is not None and (len(one) != rank or len(other) != rank)):
            return NotImplemented
        try:
            batch = tuple(torch.broadcast_shapes(one[:-2], other[:-2]))
        except RuntimeError:
            return NotImplemented
        if rank == 3 and one[0] != other[0]:
            return NotImplemented
        mode = cube.math_type(described[0][5])
        if one[-1] != other[-2 if len(other) > 1 else 0] or not one[-1] or mode is None:
            return NotImplemented
        sizes = batch + one[-2:-1] + (other[-1:] if len(other) > 1 else ())
        result, out = make(calls, sizes, described[0][5])
        done = not math.prod(sizes) or aclnn.call(name, calls.device, *described, out, mode)
        return result if done else NotImplemented

    return kernel


def _addmm(calls: Calls, args: tuple, kwargs: dict) -> Any:
    if len(args) != 3 or kwargs.keys() - {"beta", "alpha"} or not aclnn.available("Addmm"):
        return NotImplemented
    described = describe(calls, *args)
    beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
    if described is None or any(not is_number(each) or not fits(each, torch.float32) for each in (beta, alpha)):
        return NotImplemented
    added, left, right = (each[1] for each in described)
    if len(left) != 2 or len(right) != 2 or left[1] != right[0] or not left[1] or len(added) > 2:
        return NotImplemented
    sizes, mode = (left[0], right[1]), cube.math_type(described[0][5])
    if mode is None or any(size not in (1, wanted) for size, wanted in zip(reversed(added), reversed(sizes))):
        return NotImplemented
    result, out = make(calls, sizes, described[0][5])
    one, mat1, mat2 = described
    done = not math.prod(sizes) or aclnn.call("Addmm", calls.device, one, mat1, mat2, beta, alpha, out, mode)
    return result if done else NotImplemented


# Reductions and what goes along a dimension


def _reduction(name: str) -> Kernel:
    def kernel(calls: Calls, args: tuple, kwargs: dict) -> Any:
        named = dict(zip(("self", "dim", "keepdim"), args), **kwargs)
        if len(args) > 3 or named.keys() - {"self", "dim", "keepdim", "dtype"} or not aclnn.available(name):
            return NotImplemented
        described = describe(calls, named["self"])
        if described is None or not described[0][1] or not math.prod(described[0][1]):
            return NotImplemented
        one = described[0]
        if named.get("dtype") not in (None, TORCH[one[5]]):
            return NotImplemented
        dims = dimensions(named.get("dim"), len(one[1]))
        if dims is None:
            return NotImplemented
        keepdim = bool(named.get("keepdim", False))
        result, out = make(calls, reduced(one[1], dims, keepdim), one[5])
        return result if aclnn.call(name, calls.device, one, dims, keepdim, out[5], out) else NotImplemented

    return kernel


def _max(calls: Calls, args: tuple, kwargs: dict) -> Any:
    described = describe(calls, *args) if len(args) == 1 and not kwargs and aclnn.available("Max") else None
    if described is None or not described[0][1] or not math.prod(described[0][1]):
        return NotImplemented
    result, out = make(calls, (), described[0][5])
    return result if aclnn.call("Max", calls.device, described[0], out) else NotImplemented


def _max_dim(calls: Calls, args: tuple, kwargs: dict) -> Any:
    named = dict(zip(("self", "dim", "keepdim"), args), **kwargs)
    if len(args) > 3 or named.keys() - {"self", "dim", "keepdim"} or not aclnn.available("MaxDim"):
        return NotImplemented
    described = describe(calls, named["self"])
    if described is None or not math.prod(described[0][1]):
        return NotImplemented
    one = described[0]
    dim, keepdim = dimension(named["dim"], len(one[1])), bool(named.get("keepdim", False))
    if dim is None:
        return NotImplemented
    sizes = reduced(one[1], (dim,), keepdim)
    values, out = make(calls, sizes, one[5])
    indices, places = make(calls, sizes, DTYPES[torch.int64])
    done = aclnn.call("MaxDim", calls.device, one, dim, keepdim, out, places)
    return (values, indices) if done else NotImplemented


def _softmax(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``_softmax(self, dim, half_to_float)`` and ``softmax.int(self, dim, dtype)``."""
    described = describe(calls, args[0]) if len(args) > 1 and aclnn.available("Softmax") else None
    if described is None or any(args[2:]) or any(value is not None for value in kwargs.values()):
        return NotImplemented
    one = described[0]
    dim = dimension(args[1], len(one[1]))
    if dim is None:
        return NotImplemented
    result, out = make(calls, one[1], one[5])
    done = not math.prod(one[1]) or aclnn.call("Softmax", calls.device, one, dim, out)
    return result if done else NotImplemented


def _layer_norm(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``native_layer_norm(input, normalized_shape, weight, bias, eps)``, in one dtype or with float32 parameters.

    Mean and 1/std are in float32 whatever the input is, as on CUDA: the backward takes them so, and CANN's wants them
    no shorter than the input.
    """
    if len(args) != 5 or kwargs or not aclnn.available("LayerNorm"):
        return NotImplemented
    described, shape = describe(calls, args[0]), tuple(args[1])
    params = [None if each is None else describe(calls, each) for each in args[2:4]]
    if described is None or not shape or not math.prod(described[0][1]):
        return NotImplemented
    one = described[0]
    given = [each[0] for each in params if each is not None]
    if len(given) < sum(each is not None for each in args[2:4]) or len({each[5] for each in given}) > 1:
        return NotImplemented
    outer = len(one[1]) - len(shape)
    if outer < 0 or one[1][outer:] != shape or any(each[1] != shape for each in given):
        return NotImplemented
    if given and given[0][5] not in (one[5], DTYPES[torch.float32]):
        return NotImplemented
    rows = one[1][:outer] + (1,) * len(shape)
    result, out = make(calls, one[1], one[5])
    (mean, means), (rstd, scales) = (make(calls, rows, DTYPES[torch.float32]) for _ in range(2))
    weight, bias = (None if each is None else each[0] for each in params)
    done = aclnn.call("LayerNorm", calls.device, one, shape, weight, bias, args[4], out, means, scales)
    return (result, mean, rstd) if done else NotImplemented


# Moving and converting


def _is_nan(calls: Calls, args: tuple, kwargs: dict) -> Any:
    return args[0].ne(args[0]) if args[0].dtype.is_floating_point else NotImplemented


def _is_infinite(calls: Calls, args: tuple, kwargs: dict) -> Any:
    return args[0].abs().eq(math.inf) if args[0].dtype.is_floating_point else NotImplemented


def _fill(calls: Calls, args: tuple, kwargs: dict) -> Any:
    described = describe(calls, args[0], floats=False)
    value = args[1] if len(args) > 1 else 0  # zero_
    if described is None or kwargs or not is_number(value) or not aclnn.available("InplaceFillScalar"):
        return NotImplemented
    if not fits(value, TORCH[described[0][5]]) or overlap(described[0], described[0]):
        return NotImplemented
    done = not math.prod(described[0][1]) or aclnn.call("InplaceFillScalar", calls.device, described[0], value)
    return args[0] if done else NotImplemented


def _copy_into(calls: Calls, out: Description, source: Description) -> bool:
    if not math.prod(out[1]):
        return True
    # InplaceCopy's first tensor is the one that is written.
    return aclnn.available("InplaceCopy") and aclnn.call("InplaceCopy", calls.device, out, source)


def _copy(calls: Calls, args: tuple, kwargs: dict) -> Any:
    if len(args) < 2 or kwargs.keys() - {"non_blocking"}:
        return NotImplemented
    out, source = calls.describe(args[0]), calls.describe(args[1])
    if out is None or source is None or max(len(out[1]), len(source[1])) > MAX_RANK:
        return NotImplemented
    if out == source:
        return args[0]
    if broadcast((out, source)) != out[1] or overlap(out, source):
        return NotImplemented
    if not converts(source[5], out[5]):
        return NotImplemented
    return args[0] if _copy_into(calls, out, source) else NotImplemented


def _is_here(calls: Calls, device: Any) -> bool:
    """Also ``cpu``, which is where C++ takes the tensor to be. Moves to the CPU do not come here."""
    return device.type == "cpu" or (BY_TYPE.get(device.type) is NPU and device_index(device) == calls.device)


def _clone(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``clone`` and ``_to_copy``, on the same device."""
    named = {name: value for name, value in kwargs.items() if value is not None}
    layout = named.pop("memory_format", torch.preserve_format)
    dtype = named.pop("dtype", None)
    if named.get("layout") is torch.strided:
        del named["layout"]
    if "device" in named and _is_here(calls, named["device"]):  # as gradients are converted
        del named["device"]
    described = describe(calls, *args, floats=False) if len(args) == 1 else None
    if described is None or any(named.values()) or layout not in (torch.preserve_format, torch.contiguous_format):
        return NotImplemented
    one = described[0]
    code = one[5] if dtype is None else DTYPES.get(dtype)
    if code is None or not converts(one[5], code):
        return NotImplemented
    strides = result_strides(one[1], described) if layout is torch.preserve_format else None
    result, out = make(calls, one[1], code, strides)
    if code == one[5]:
        return result if _copy_into(calls, out, one) else NotImplemented
    done = not math.prod(one[1]) or (aclnn.available("Cast") and aclnn.call("Cast", calls.device, one, code, out))
    return result if done else NotImplemented


def _index_select(calls: Calls, args: tuple, kwargs: dict) -> Any:
    if len(args) != 3 or kwargs or not aclnn.available("IndexSelect"):
        return NotImplemented
    one, index = calls.describe(args[0]), calls.describe(args[2])
    if one is None or index is None or len(index[1]) != 1 or index[5] not in INDICES or len(one[1]) > MAX_RANK:
        return NotImplemented
    dim = dimension(args[1], len(one[1]))
    if dim is None or not math.prod(one[1]):
        return NotImplemented
    sizes = one[1][:dim] + index[1] + one[1][dim + 1 :]
    result, out = make(calls, sizes, one[5])
    done = not math.prod(sizes) or aclnn.call("IndexSelect", calls.device, one, dim, index, out)
    return result if done else NotImplemented


def _embedding(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``embedding(weight, indices, …)``; what follows is about gradients only."""
    if len(args) < 2 or not aclnn.available("Embedding"):
        return NotImplemented
    weight, indices = calls.describe(args[0]), calls.describe(args[1])
    if weight is None or indices is None or indices[5] not in INDICES:
        return NotImplemented
    if len(weight[1]) != 2 or not math.prod(weight[1]) or len(indices[1]) >= MAX_RANK:
        return NotImplemented
    sizes = indices[1] + weight[1][1:]
    result, out = make(calls, sizes, weight[5])
    done = not math.prod(sizes) or aclnn.call("Embedding", calls.device, weight, indices, out)
    return result if done else NotImplemented


def _elementwise() -> dict[str, Kernel]:
    """Operations with one operand or two, and the same in place."""
    found: dict[str, Kernel] = {}
    for operator in (
        "Cos",
        "Exp",
        "Log",
        "Neg",
        "Reciprocal",
        "Relu",
        "Rsqrt",
        "Sigmoid",
        "Silu",
        "Sin",
        "Sqrt",
        "Tanh",
    ):
        for end in ("", "_"):
            found[f"aten::{operator.lower()}{end}"] = _unary(operator, in_place=bool(end))
    for operator in ("Add", "Sub", "Mul", "Div"):
        for end in ("", "_"):
            kernel = _binary(operator, alpha=operator in ("Add", "Sub"), in_place=bool(end))
            found.update({f"aten::{operator.lower()}{end}.{kind}": kernel for kind in ("Tensor", "Scalar")})
    return found


NATIVE: dict[str, Kernel] = {
    **ROWS,
    **LAYERS,
    **SCALING,
    **_elementwise(),
    "aten::reciprocal": _reciprocal,
    "aten::gelu": _gelu,
    "aten::mm": _product("Mm", 2),
    "aten::bmm": _product("BatchMatMul", 3),
    "aten::matmul": _product("Matmul", None),
    "aten::addmm": _addmm,
    "aten::sum": _reduction("ReduceSum"),
    "aten::sum.dim_IntList": _reduction("ReduceSum"),
    "aten::mean": _reduction("Mean"),
    "aten::mean.dim": _reduction("Mean"),
    "aten::max": _max,
    "aten::max.dim": _max_dim,
    "aten::isinf": _is_infinite,
    "aten::isnan": _is_nan,
    "aten::_softmax": _softmax,
    "aten::softmax.int": _softmax,
    "aten::native_layer_norm": _layer_norm,
    "aten::fill_.Scalar": _fill,
    "aten::zero_": _fill,
    "aten::copy_": _copy,
    "aten::clone": _clone,
    "aten::_to_copy": _clone,
    "aten::index_select": _index_select,
    "aten::embedding": _embedding,
}
