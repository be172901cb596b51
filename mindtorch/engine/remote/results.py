"""Values as a worker keeps and tells them: their memory, and of sparse ones the parts (SPEC R1, R3)."""

from __future__ import annotations

import ctypes

import torch

from ..._ext.strides import extent
from ...base.hardware import available_memory
from .host_fallback import bytes_of
from .wire import WireError

__all__ = ["as_bytes", "check_memory", "filled", "on_device", "reserved", "taken_apart", "whole_bytes"]


def on_device(data: bytes, device: torch.device) -> torch.Tensor:
    """A storage with these contents, as bytes."""
    return filled(torch.empty(len(data), dtype=torch.uint8), 0, data).to(device)


def filled(held: torch.Tensor, begin: int, data: bytes) -> torch.Tensor:
    """A storage, of which a part is this now."""
    if held.is_cpu:
        ctypes.memmove(held.data_ptr() + begin, data, len(data))
    else:
        held[begin : begin + len(data)] = on_device(data, held.device)
    return held


def reserved(nbytes: int, device: torch.device) -> torch.Tensor:
    """A storage of so many bytes. MemoryError where the machine has fewer free ones: an operating system may lend what
    it has not, and end the process that uses it.
    """
    free = available_memory() if device.type == "cpu" else None
    if free is not None and free < nbytes:
        raise MemoryError(f"{free:,} bytes are free")
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def check_memory(t: torch.Tensor) -> None:
    """RuntimeError unless it is dense, and reaches no further than its storage."""
    if t.layout is not torch.strided:
        raise RuntimeError(f"expected a dense tensor, the kernel gave one of {t.layout}")
    there = t.untyped_storage().nbytes()
    if t.is_contiguous():
        wanted = t.storage_offset() * t.itemsize + t.nbytes
    else:
        wanted = extent(tuple(t.shape), t.stride(), t.storage_offset()) * t.itemsize
    if wanted > there and t.numel():
        raise RuntimeError(
            f"expected a tensor within the {there} bytes of its storage, the kernel gave one of {wanted}"
        )


def as_bytes(t: torch.Tensor) -> torch.Tensor:
    """A tensor's whole storage as bytes, not a copy."""
    return torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())


def whole_bytes(t: torch.Tensor) -> bytes:
    """What is in a tensor that has all of its storage."""
    return bytes_of(t.cpu().untyped_storage())


def taken_apart(t: torch.Tensor, known: dict[int, int]) -> tuple:
    """A sparse tensor as its layout, sizes, whether it is coalesced, and parts."""
    if t.layout is torch.sparse_coo:
        parts: tuple[torch.Tensor, ...] = (t._indices(), t._values())
        return t.layout, tuple(t.shape), t.is_coalesced(), [_sent(part, known) for part in parts]
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (t.crow_indices(), t.col_indices(), t.values())
    elif t.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = (t.ccol_indices(), t.row_indices(), t.values())
    else:
        raise WireError("expected dense or sparse results, got a nested or quantized tensor")
    return t.layout, tuple(t.shape), None, [_sent(part, known) for part in parts]


def _sent(t: torch.Tensor, known: dict[int, int]) -> tuple:
    """Dtype, sizes, strides, offset, number of the storage if it is one of ``known``, and what is in the storage."""
    t = t.detach()
    number = known.get(t.untyped_storage()._cdata, 0)
    if not number:
        t = t.contiguous().clone()
    return t.dtype, tuple(t.shape), tuple(t.stride()), t.storage_offset(), number, whole_bytes(as_bytes(t))
