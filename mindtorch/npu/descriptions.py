"""What kernels know of tensors: descriptions, and what the shapes and strides of results follow from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._ext.signals import by_signal_handler
from .._ext.strides import contiguous
from ..engine.record.arguments import TORCH_ERRORS, is_dense, quiet
from ..ops.cpu_layouts import REFUSED, laid_out

# AscendCL's codes.
DTYPES: dict[torch.dtype, int] = {
    torch.float32: 0, torch.float16: 1, torch.int8: 2, torch.int32: 3, torch.uint8: 4, torch.int16: 6, torch.int64: 9,
    torch.float64: 11, torch.bool: 12, torch.bfloat16: 27,
}  # fmt: skip
TORCH = {code: dtype for dtype, code in DTYPES.items()}
FLOATS = {DTYPES[torch.float32], DTYPES[torch.float16], DTYPES[torch.bfloat16]}
WHOLE = {DTYPES[d] for d in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)}
INDICES = {DTYPES[torch.int64], DTYPES[torch.int32]}
MAX_RANK = 8

# Address of the storage's first byte, sizes, strides, offset and size of the storage in elements, code of the dtype.
Description = tuple[int, tuple[int, ...], tuple[int, ...], int, int, int]


@dataclass(frozen=True)
class Calls:
    """What kernels need from the tensors' layer, for one device; they queue on the thread's current stream there.

    ``describe(x)`` is the description of a tensor on this device with a dtype of ``DTYPES``, and None for anything
    else; ``empty(sizes, dtype, strides)`` a new tensor here, contiguous where ``strides`` is None. That other streams
    may still use a tensor's memory, or this one will (``record_stream``), is the layer's to note.
    """

    describe: Callable[[object], Description | None]
    empty: Callable[[tuple[int, ...], torch.dtype, tuple[int, ...] | None], Any]
    device: int


Kernel = Callable[[Calls, tuple, dict], Any]

# Shapes and strides


def meta_results(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What an overload gives for meta tensors, laid out as torch's kernel does it. None: it refuses them, which is
    torch's own to tell.
    """
    try:
        with quiet():
            found = laid_out(func._schema.name, func(*args, **kwargs), args, kwargs)
    except TORCH_ERRORS as error:
        if by_signal_handler(error):
            raise
        return None
    return None if found is REFUSED else found


def result_strides(sizes: tuple[int, ...], inputs: Sequence[Description]) -> tuple[int, ...] | None:
    """The strides that torch gives the result of an elementwise operation; None: contiguous."""
    first = inputs[0][2]
    if all(each[1] == sizes and each[2] == first for each in inputs) and is_dense(sizes, first):
        return first
    if all(each[2] == contiguous(each[1]) for each in inputs):
        return None
    like = [torch.empty_strided(each[1], each[2], device="meta").expand(sizes) for each in inputs]
    return tuple(torch._prims_common.compute_elementwise_output_strides(*like))


def broadcast(inputs: Sequence[Description]) -> tuple[int, ...] | None:
    """The common shape; None where there is none."""
    sizes = inputs[0][1]
    if all(each[1] == sizes for each in inputs):
        return sizes
    try:
        return tuple(torch.broadcast_shapes(*(each[1] for each in inputs)))
    except RuntimeError:
        return None


def overlap(out: Description, source: Description) -> bool:
    """Whether writing ``out`` may change what is still to be read of ``source``, or ``out`` overlaps itself."""
    if any(stride == 0 and size > 1 for size, stride in zip(out[1], out[2])):
        return True
    return out[0] == source[0] and out[1:4] != source[1:4]


def dimension(dim: Any, rank: int) -> int | None:
    if not isinstance(dim, int) or not -rank <= dim < rank:
        return None
    return dim % rank


def fits(value: float, dtype: torch.dtype) -> bool:
    """Whether torch would put the number into such a tensor without complaint, and a library's scalar keeps it."""
    if isinstance(value, int) and abs(value) > 1 << 53:
        return False  # a library may keep scalars as doubles
    if dtype.is_floating_point:
        return not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    if dtype is torch.bool or isinstance(value, bool):
        return not isinstance(value, float)
    return isinstance(value, int) and torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max


def converts(code: int, to: int) -> bool:
    """Whether every chip gives torch's values there. How a float becomes an integer differs where it does not fit."""
    if code == to or {code, to} <= FLOATS | {DTYPES[torch.float64]} or code == DTYPES[torch.bool]:
        return True
    return code in WHOLE and (to in FLOATS or to in (DTYPES[torch.bool], DTYPES[torch.int64]))


def dimensions(given: Any, rank: int) -> tuple[int, ...] | None:
    """Of a reduction over one dimension, several, or (None, none) all of them; None where torch takes no such."""
    named = list(range(rank)) if given is None or given == [] or given == () else given
    named = [named] if isinstance(named, int) else named
    dims = tuple(at for at in (dimension(each, rank) for each in named) if at is not None)
    return None if len(dims) < len(named) or len(set(dims)) < len(dims) else dims


def reduced(sizes: tuple[int, ...], dims: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    if keepdim:
        return tuple(1 if i in dims else size for i, size in enumerate(sizes))
    return tuple(size for i, size in enumerate(sizes) if i not in dims)


def is_number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**63)


def describe(calls: Calls, *values: object, floats: bool = True) -> list[Description] | None:
    """The descriptions, all of one dtype that is computed with; else None."""
    found: list[Description] = []
    for value in values:
        each = calls.describe(value)
        if each is None or len(each[1]) > MAX_RANK or (floats and each[5] not in FLOATS):
            return None
        if found and each[5] != found[0][5]:
            return None
        found.append(each)
    return found


def make(calls: Calls, sizes: tuple[int, ...], code: int, strides: tuple[int, ...] | None = None) -> Any:
    """A new tensor and its description."""
    made = calls.empty(sizes, TORCH[code], strides)
    return made, calls.describe(made)
