"""ATen operations for which a row is not enough: several operators of the NPU's one after the other, other shapes, or
results that it gives in another way.

One file: kernels of a few lines each, which share their first and last steps.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .._ext import acl, aclnn
from ..base.errors import UnsupportedOperationError
from ..engine.record.predict import quiet
from . import chips
from .descriptions import (
    DTYPES,
    FLOATS,
    INDICES,
    MAX_RANK,
    TORCH,
    Calls,
    Description,
    Kernel,
    broadcast,
    contiguous,
    describe,
    dimension,
    dimensions,
    fits,
    is_number,
    make,
    meta_results,
    reduced,
    result_strides,
)
from .kernel_rows import ROWS, filled

__all__ = ["LAYERS"]

_BOOL, _INT32, _INT64, _FLOAT32 = (DTYPES[d] for d in (torch.bool, torch.int32, torch.int64, torch.float32))


def _meta(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")


# New tensors


def _made(name: str, value: float | str | None) -> Kernel:
    """``empty_like`` and its like: ``value`` is what they are full of, or the name of that argument."""

    def kernel(calls: Calls, args: tuple, kwargs: dict) -> Any:
        own = calls.describe(args[0])
        if own is None or kwargs.get("layout") not in (None, torch.strided):
            return NotImplemented
        func = getattr(torch.ops.aten, name).default
        options = {**kwargs, "device": torch.device("meta"), "pin_memory": None}
        like = meta_results(func, (_meta(own[1], own[2], TORCH[own[5]]), *args[1:]), options)
        if like is None or like.dtype not in DTYPES:
            return NotImplemented
        made, out = make(calls, tuple(like.shape), DTYPES[like.dtype], like.stride())
        if value is None or not like.numel():
            return made
        full: Any = value
        if value == "fill_value":
            full = [*args, kwargs.get(value)][2 if name == "new_full" else 1]
        if not is_number(full) or not fits(full, like.dtype) or not aclnn.available("InplaceFillScalar"):
            return NotImplemented
        return made if aclnn.call("InplaceFillScalar", calls.device, out, full) else NotImplemented

    return kernel


def _back_into_view(view: Any) -> Kernel:
    """``slice_backward`` and ``select_backward``: zeros of the sizes asked for, and the gradient in a view of them."""

    def kernel(calls: Calls, args: tuple, kwargs: dict) -> Any:
        grad = calls.describe(args[0])
        if grad is None or kwargs or len(args[1]) > MAX_RANK or not aclnn.available("InplaceCopy"):
            return NotImplemented
        sizes = tuple(args[1])
        seen = view(_meta(sizes, contiguous(sizes)), *args[2:])
        made = filled(calls, sizes, grad[5], 0) if math.prod(sizes) else make(calls, sizes, grad[5])
        if made is None or tuple(seen.shape) != grad[1]:
            return NotImplemented
        result, out = made
        target = (out[0], grad[1], seen.stride(), seen.storage_offset(), *out[4:])
        done = not math.prod(grad[1]) or aclnn.call("InplaceCopy", calls.device, target, grad)
        return result if done else NotImplemented

    return kernel


def _masked_fill(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``masked_fill.Scalar(self, mask, value)``: a copy, filled."""
    described = calls.describe(args[0]), calls.describe(args[1])
    if None in described or kwargs or not is_number(args[2]) or not aclnn.available("InplaceMaskedFillScalar"):
        return NotImplemented
    one, mask = described
    sizes = broadcast((one, mask))  # type: ignore[arg-type]
    if mask[5] != _BOOL or sizes is None or len(sizes) > MAX_RANK or not fits(args[2], TORCH[one[5]]):  # type: ignore[index]
        return NotImplemented
    result, out = make(calls, sizes, one[5], result_strides(sizes, (one,)) if sizes == one[1] else None)  # type: ignore
    if not math.prod(sizes):
        return result
    copied = aclnn.available("InplaceCopy") and aclnn.call("InplaceCopy", calls.device, out, one)
    done = copied and aclnn.call("InplaceMaskedFillScalar", calls.device, out, mask, args[2])
    return result if done else NotImplemented


# Joining and looking up


def _join(calls: Calls, parts: list[Description], dim: int, like: list[torch.Tensor]) -> Any:
    with quiet():
        joined = torch.ops.aten.cat.default(like, dim)
    result, out = make(calls, tuple(joined.shape), parts[0][5], joined.stride())
    parts = [each for each in parts if math.prod(each[1])]
    return result if not parts or aclnn.call("Cat", calls.device, parts, dim, out) else NotImplemented


def _cat(calls: Calls, args: tuple, kwargs: dict) -> Any:
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if kwargs.keys() - {"dim"} or not args[0] or not aclnn.available("Cat"):
        return NotImplemented
    described = describe(calls, *args[0], floats=False)
    if described is None:
        return NotImplemented
    parts = [each for each in described if each[1] != (0,)]  # torch passes these over, whatever the others' rank is
    if not parts or (at := dimension(dim, len(parts[0][1]))) is None:
        return NotImplemented
    first = parts[0][1]
    if any(len(each[1]) != len(first) or reduced(each[1], (at,), False) != reduced(first, (at,), False)
           for each in parts):  # fmt: skip
        return NotImplemented
    return _join(calls, parts, at, [_meta(each[1], each[2]) for each in described])


def _stack(calls: Calls, args: tuple, kwargs: dict) -> Any:
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    described = describe(calls, *args[0], floats=False) if args[0] and aclnn.available("Cat") else None
    if described is None or len(described[0][1]) == MAX_RANK or any(each[1] != described[0][1] for each in described):
        return NotImplemented
    at = dimension(dim, len(described[0][1]) + 1)
    if at is None:
        return NotImplemented
    parts = [
        (each[0], each[1][:at] + (1,) + each[1][at:], each[2][:at] + (1,) + each[2][at:], *each[3:])
        for each in described
    ]
    return _join(calls, parts, at, [_meta(each[1], contiguous(each[1])) for each in parts])


def _index(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``index.Tensor(self, indices)`` where integers index the first dimensions."""
    one, indices = calls.describe(args[0]), list(args[1])
    while indices and indices[-1] is None:
        indices.pop()
    places = [calls.describe(each) for each in indices]
    if one is None or not places or kwargs or not aclnn.available("Index") or not math.prod(one[1]):
        return NotImplemented
    if any(each is None or each[5] not in INDICES or not each[1] for each in places) or len(places) > len(one[1]):
        return NotImplemented
    front = broadcast(places)  # type: ignore[arg-type]
    if front is None or len(front) + len(one[1]) - len(places) > MAX_RANK:
        return NotImplemented
    with quiet():
        like = [_meta(each[1], each[2], TORCH[each[5]]) for each in places]  # type: ignore[index]
        found = torch.ops.aten.index.Tensor(_meta(one[1], one[2]), like)
    sizes = front + one[1][len(places) :]
    if tuple(found.shape) != sizes:
        return NotImplemented
    result, out = make(calls, sizes, one[5], found.stride())
    return result if not math.prod(sizes) or aclnn.call("Index", calls.device, one, places, out) else NotImplemented


# Reductions


def _truths(name: str) -> Kernel:
    """``all`` and ``any``, of one dimension, several, or all."""

    def kernel(calls: Calls, args: tuple, kwargs: dict) -> Any:
        named = dict(zip(("self", "dim", "keepdim"), args), **kwargs)
        one, dim = calls.describe(named["self"]), named.get("dim")
        none = not isinstance(dim, int) and dim is not None and not len(dim)  # not all, as of sums: elementwise
        dims = None if one is None or none else dimensions(dim, len(one[1]))
        if one is None or dims is None or one[5] != _BOOL or not math.prod(one[1]) or not aclnn.available(name):
            return NotImplemented
        keepdim = bool(named.get("keepdim", False))
        result, out = make(calls, reduced(one[1], dims, keepdim), _BOOL)
        return result if aclnn.call(name, calls.device, one, dims, keepdim, out) else NotImplemented

    return kernel


def _argmax(calls: Calls, args: tuple, kwargs: dict) -> Any:
    named = dict(zip(("self", "dim", "keepdim"), args), **kwargs)
    described = describe(calls, named["self"]) if aclnn.available("ArgMax") else None
    if described is None or not described[0][1] or not math.prod(described[0][1]):
        return NotImplemented
    one, dim, keepdim = described[0], named.get("dim"), bool(named.get("keepdim", False))
    if dim is None:
        if one[2] != contiguous(one[1]) or keepdim:
            return NotImplemented
        one, dim = (one[0], (math.prod(one[1]),), (1,), *one[3:]), 0
    at = dimension(dim, len(one[1]))
    if at is None:
        return NotImplemented
    result, out = make(calls, reduced(one[1], (at,), keepdim), _INT64)
    return result if aclnn.call("ArgMax", calls.device, one, at, keepdim, out) else NotImplemented


def _norm(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``linalg_vector_norm(self, ord=2, dim=None, keepdim=False, *, dtype=None)``."""
    named = {"ord": 2, **dict(zip(("self", "ord", "dim", "keepdim"), args), **kwargs)}
    described = describe(calls, named["self"]) if aclnn.available("LinalgVectorNorm") else None
    if described is None or not math.prod(described[0][1]) or not is_number(named["ord"]):
        return NotImplemented
    one, keepdim = described[0], bool(named.get("keepdim", False))
    dims = dimensions(named.get("dim"), len(one[1]))
    if dims is None or named.get("dtype") not in (None, TORCH[one[5]]) or not named["ord"] >= 0:
        return NotImplemented  # what the operator makes of NaN and orders below 0 is documented nowhere
    result, out = make(calls, reduced(one[1], dims, keepdim), one[5])
    done = aclnn.call("LinalgVectorNorm", calls.device, one, named["ord"], dims, keepdim, one[5], out)
    return result if done else NotImplemented


# Layers


def _safe_softmax(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``_safe_softmax(self, dim, dtype=None)``: zeros where a whole row is -inf."""
    described = describe(calls, args[0]) if all(map(aclnn.available, ("Softmax", "EqScalar", "All"))) else None
    if described is None or (args[2:] or (kwargs.get("dtype"),))[0] is not None:
        return NotImplemented
    one = described[0]
    dim = dimension(args[1], len(one[1]))
    if dim is None or not math.prod(one[1]) or not aclnn.available("InplaceMaskedFillScalar"):
        return NotImplemented
    result, out = make(calls, one[1], one[5])
    (_ends, ends), (_rows, rows) = make(calls, one[1], _BOOL), make(calls, reduced(one[1], (dim,), True), _BOOL)
    done = (
        aclnn.call("Softmax", calls.device, one, dim, out)
        and aclnn.call("EqScalar", calls.device, one, -math.inf, ends)
        and aclnn.call("All", calls.device, ends, (dim,), True, rows)
        and aclnn.call("InplaceMaskedFillScalar", calls.device, out, rows, 0)
    )
    return result if done else NotImplemented


def _batch_norm(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)``.

    In one dtype, or with parameters of float32.

    Where torch saves 1/std for its backward, the operator saves the variance: what is given out is torch's, which the
    derivative of the backward takes too.
    """
    given = [None if each is None else calls.describe(each) for each in args[:5]]
    if kwargs or any(each is None and args[i] is not None for i, each in enumerate(given)):
        return NotImplemented
    one, training = given[0], args[5]
    if one is None or len(one[1]) < 2 or len(one[1]) > MAX_RANK or not math.prod(one[1]) or one[5] not in FLOATS:
        return NotImplemented
    own = {each[5] for each in given[1:] if each is not None} or {one[5]}
    if len(own) > 1 or not own <= {one[5], _FLOAT32} or not aclnn.available("BatchNorm"):
        return NotImplemented
    (kept,) = own  # the dtype of what is saved
    if any(each is not None and each[1] != one[1][1:2] for each in given[1:]) or (not training and None in given[3:]):
        return NotImplemented
    if math.prod(one[1]) == one[1][1] and training:
        return NotImplemented  # one value each channel has no variance: torch's to tell
    if training and not _knows_saved(_TO_INVSTD):
        return NotImplemented
    with quiet():
        like = torch.empty_like(_meta(one[1], one[2]))
    result, out = make(calls, one[1], one[5], like.stride())
    (mean, means), (saved, variances) = make(calls, one[1][1:2], kept), make(calls, one[1][1:2], kept)
    done = aclnn.call(
        "BatchNorm", calls.device, one, *given[1:], bool(training), args[6], args[7], out, means, variances
    )
    if not done:
        return NotImplemented
    if not training:
        mean, saved = (calls.empty((0,), TORCH[kept], None) for _ in range(2))
    elif not (
        aclnn.call("Adds", calls.device, variances, args[7], 1, variances)
        and aclnn.call("Rsqrt", calls.device, variances, variances)
    ):  # too late for the CPU: the running statistics are updated
        raise UnsupportedOperationError(
            f"[native_batch_norm] the NPU computes batch norm in {TORCH[one[5]]}, but refuses to compute its 1/std"
        )
    return result, mean, saved


_TO_INVSTD, _TO_VARIANCE = ("Adds", "Rsqrt"), ("Reciprocal", "Mul", "Subs", "Cast")


def _knows_saved(operators: tuple[str, ...]) -> bool:
    """Whether this chip's batch norm is known to save the variance, and there is what makes the one of the other."""
    return chips.saves_variance(acl.soc_name() or "") and all(map(aclnn.available, operators))


def _variance(calls: Calls, invstd: Description, eps: float) -> Any:
    """1/invstd² - eps, computed in float32; None where the NPU does not."""
    if not math.prod(invstd[1]):
        return None
    wide, out = make(calls, invstd[1], _FLOAT32)
    short = invstd[5] != _FLOAT32
    if short and not aclnn.call("Cast", calls.device, invstd, _FLOAT32, out):
        return None
    done = (
        aclnn.call("Reciprocal", calls.device, out if short else invstd, out)
        and aclnn.call("Mul", calls.device, out, out, out)
        and aclnn.call("Subs", calls.device, out, eps, 1, out)
    )
    if not done or not short:
        return wide if done else None
    variance, narrow = make(calls, invstd[1], invstd[5])
    return variance if aclnn.call("Cast", calls.device, out, invstd[5], narrow) else None


def _batch_norm_backward(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``native_batch_norm_backward(grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, …)``."""
    if not args[7]:
        args = (*args[:5], None, None, *args[7:])  # nothing was saved
    elif not _knows_saved(_TO_VARIANCE):
        return NotImplemented
    else:
        invstd = calls.describe(args[6])
        variance = None if invstd is None or invstd[5] not in FLOATS else _variance(calls, invstd, args[8])
        if variance is None:
            return NotImplemented
        args = (*args[:6], variance, *args[7:])
    return ROWS["aten::native_batch_norm_backward"](calls, args, kwargs)


def _windows(kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> tuple:
    """A pool's arguments as its operator has them: two numbers each."""
    two = [(each, each) if isinstance(each, int) else tuple(each) * (2 if len(each) == 1 else 1)
           for each in (kernel, stride if stride else kernel, padding, dilation)]  # fmt: skip
    return (*two, bool(ceil_mode))


def _widened(calls: Calls, one: Description) -> tuple[Any, Description] | None:
    """A tensor in float32, itself where it is: pools of shorter floats are not on all chips, and these are exact."""
    if one[5] == _FLOAT32:
        return None, one
    made, out = make(calls, one[1], _FLOAT32)
    return (made, out) if aclnn.call("Cast", calls.device, one, _FLOAT32, out) else None


def _max_pool(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``max_pool2d_with_indices(self, kernel_size, …)``; the operator's indices are int32."""
    described = describe(calls, args[0]) if aclnn.available("MaxPool2dWithIndices") and not kwargs else None
    if described is None or not aclnn.available("Cast") or not math.prod(described[0][1]):
        return NotImplemented
    one = described[0]
    found = meta_results(torch.ops.aten.max_pool2d_with_indices.default, (_meta(one[1], one[2]), *args[1:]), {})
    if found is None:
        return NotImplemented
    like = found[0]
    sizes = tuple(like.shape)
    (result, out), (indices, wide) = (make(calls, sizes, code, like.stride()) for code in (one[5], _INT64))
    if not math.prod(sizes):
        return result, indices
    _places, places = make(calls, sizes, _INT32)
    source = _widened(calls, one)
    _pooled, pooled = (None, out) if one[5] == _FLOAT32 else make(calls, sizes, _FLOAT32)
    done = (
        source is not None
        and aclnn.call("MaxPool2dWithIndices", calls.device, source[1], *_windows(*args[1:]), pooled, places)
        and aclnn.call("Cast", calls.device, places, _INT64, wide)
        and (pooled is out or aclnn.call("Cast", calls.device, pooled, one[5], out))
    )
    return (result, indices) if done else NotImplemented


def _max_pool_backward(calls: Calls, args: tuple, kwargs: dict) -> Any:
    """``max_pool2d_with_indices_backward(grad_output, self, kernel_size, …, indices)``."""
    described = describe(calls, *args[:2]) if aclnn.available("MaxPool2dWithIndicesBackward") and not kwargs else None
    wide = calls.describe(args[7])
    if described is None or wide is None or not aclnn.available("Cast"):
        return NotImplemented
    grad, one = described
    if not math.prod(grad[1]) or wide[1] != grad[1]:
        return NotImplemented
    with quiet():
        like = torch.empty_like(_meta(one[1], one[2]))
    result, out = make(calls, one[1], one[5], like.stride())
    _places, places = make(calls, wide[1], _INT32)
    sources = [_widened(calls, each) for each in described]
    _slope, slope = (None, out) if one[5] == _FLOAT32 else make(calls, one[1], _FLOAT32)
    done = (
        None not in sources
        and aclnn.call("Cast", calls.device, wide, _INT32, places)
        and aclnn.call(
            "MaxPool2dWithIndicesBackward", calls.device, *(each[1] for each in sources if each), places,
            *_windows(*args[2:7]), slope,
        )
        and (slope is out or aclnn.call("Cast", calls.device, slope, one[5], out))
    )  # fmt: skip
    return result if done else NotImplemented


LAYERS: dict[str, Kernel] = {
    "aten::empty_like": _made("empty_like", None),
    "aten::zeros_like": _made("zeros_like", 0),
    "aten::ones_like": _made("ones_like", 1),
    "aten::full_like": _made("full_like", "fill_value"),
    "aten::new_empty": _made("new_empty", None),
    "aten::new_empty_strided": _made("new_empty_strided", None),
    "aten::new_zeros": _made("new_zeros", 0),
    "aten::new_ones": _made("new_ones", 1),
    "aten::new_full": _made("new_full", "fill_value"),
    "aten::slice_backward": _back_into_view(torch.ops.aten.slice.Tensor),
    "aten::select_backward": _back_into_view(torch.ops.aten.select.int),
    "aten::masked_fill.Scalar": _masked_fill,
    "aten::cat": _cat,
    "aten::stack": _stack,
    "aten::index.Tensor": _index,
    "aten::all": _truths("All"),
    "aten::all.dim": _truths("All"),
    "aten::all.dims": _truths("All"),
    "aten::any": _truths("Any"),
    "aten::any.dim": _truths("Any"),
    "aten::any.dims": _truths("Any"),
    "aten::argmax": _argmax,
    "aten::linalg_vector_norm": _norm,
    "aten::_safe_softmax": _safe_softmax,
    "aten::native_batch_norm": _batch_norm,
    "aten::native_batch_norm_backward": _batch_norm_backward,
    "aten::max_pool2d_with_indices": _max_pool,
    "aten::max_pool2d_with_indices_backward": _max_pool_backward,
}
