"""``copy_`` between the host and NPUs: as bytes, or converted on one side of the way (SPEC N4)."""

from __future__ import annotations

import torch

from .._ext import blocks as _blocks
from .._ext.strides import contiguous
from ..engine.record.predict import quiet
from .descriptions import DTYPES, Calls, Kernel
from .tensor import block_of, empty, has_memory, is_npu, span, view_bits, view_of

__all__ = ["as_bytes", "converted"]
_CPU = torch.device("cpu")


def as_bytes(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> bool:
    """Do ``target.copy_(source)`` by one copy of memory, if the two are laid out alike; else False."""
    length = target.numel() * target.element_size()
    alike = target.dtype is source.dtype and target.shape == source.shape and target.stride() == source.stride()
    if not (alike and length and span(target)[1] == length == span(source)[1] and not view_bits(target)):
        return False
    if view_bits(source) or any(t.device.type not in ("cpu", "npu") for t in (target, source)):
        return False
    for t in (target, source):
        if is_npu(t):
            has_memory(t)
    to, start = target.storage_offset() * target.element_size(), source.storage_offset() * source.element_size()
    if not is_npu(source):
        pinned = non_blocking and _blocks.is_pinned(source.data_ptr())
        _blocks.copy_in(block_of(target), to, source.data_ptr(), length, not pinned)
    elif not is_npu(target):
        pinned = non_blocking and _blocks.is_pinned(target.data_ptr())
        _blocks.copy_out(block_of(source), start, target.data_ptr(), length, not pinned)
    elif block_of(target).device != block_of(source).device:
        _blocks.copy_across(block_of(target), to, block_of(source), start, length)
    else:
        return False  # may overlap
    return True


def converted(
    kernel: Kernel | None, calls: Calls, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
) -> bool:
    """Do ``target.copy_(source)`` from or to the CPU, if dtype or layout differ, without a look at the target; else
    False.

    What comes is converted by torch, into pinned memory, what goes by the NPU, if ``kernel``, its ``copy_``, takes the
    dtypes. So a copy that need not wait does not.
    """
    there, other = (target, source) if is_npu(target) else (source, target)
    if other.device != _CPU or is_npu(other) or other.layout is not torch.strided or not target.numel():
        return False
    if view_bits(there) or other.requires_grad or other.is_quantized or other._is_zerotensor():
        return False
    if target.is_complex() and source.is_complex() and not view_bits(other):  # the NPU converts what they are made of
        target, source = _parts(target), _parts(source)
        there, other = (target, source) if is_npu(target) else (source, target)
    dense = span(target)[1] == target.numel() * target.element_size() and not view_bits(target)
    strides = target.stride() if dense else contiguous(target.shape)
    by_kernel = kernel is not None and target.dtype in DTYPES
    if there is target and (dense or by_kernel):
        memory = _blocks.Pinned(target.numel() * target.element_size())
        with quiet():
            flat = torch.frombuffer(memory, dtype=torch.uint8).view(target.dtype)
            host = flat.as_strided(target.shape, strides).copy_(source)
        if dense:
            return as_bytes(target, host, True)
        made = empty(target.shape, strides, target.dtype, calls.device)
        return as_bytes(made, host, True) and kernel(calls, (target, made), {}) is not NotImplemented  # type: ignore[misc]
    if there is source and dense and by_kernel:
        made = empty(target.shape, strides, target.dtype, calls.device)
        done = kernel(calls, (made, source), {}) is not NotImplemented  # type: ignore[misc]
        return done and as_bytes(target, made, non_blocking)
    return False


def _parts(t: torch.Tensor) -> torch.Tensor:
    """``torch.view_as_real(t)``."""
    if not is_npu(t):
        return torch.view_as_real(t)
    stride = [2 * each for each in t.stride()]
    return view_of(t, (*t.shape, 2), (*stride, 1), 2 * t.storage_offset(), t.dtype.to_real())
