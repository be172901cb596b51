"""DLPack: NPU tensors shared with other libraries in this process, copies for those that read host memory (SPEC N4).

Torch makes and takes the capsules. To it the memory is the host's, at the device's address, which nobody reads; here
the capsule's device is exchanged. DLPack has no number of its own for NPUs: they are ``kDLExtDev``, as in torch_npu.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType

from .._ext import streams
from .._ext.guards import NoGrad
from .tensor import NpuTensor, block_of, empty, exposed, has_memory, of_block, view_bits

_CPU = (DLDeviceType.kDLCPU, 0)
_shared: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()  # device, address: Block
_api = ctypes.pythonapi
_is_valid, _pointer = _api.PyCapsule_IsValid, _api.PyCapsule_GetPointer
_is_valid.argtypes, _is_valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_pointer.argtypes, _pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


class _Tensor(ctypes.Structure):
    """The beginning of a DLTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Versioned(ctypes.Structure):
    """The beginning of a DLManagedTensorVersioned; a DLManagedTensor begins with its DLTensor."""

    _fields_ = [
        ("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    ]  # fmt: skip


def _described(capsule: object) -> _Tensor | None:
    """The DLTensor in a capsule; None for what is no capsule, or one that was taken."""
    if type(capsule).__name__ != "PyCapsule":
        return None
    if _is_valid(capsule, b"dltensor"):
        return _Tensor.from_address(_pointer(capsule, b"dltensor"))
    if _is_valid(capsule, b"dltensor_versioned"):
        return _Versioned.from_address(_pointer(capsule, b"dltensor_versioned")).tensor
    return None


def device_of(t: NpuTensor) -> tuple[Any, int]:
    """What ``t.__dlpack_device__()`` gives."""
    return DLDeviceType.kDLExtDev, t.get_device()


def export(
    t: NpuTensor, stream: int | None = -1, max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None, copy: bool | None = None,
) -> Any:  # fmt: skip
    """``t.__dlpack__(...)``: a capsule on the memory of ``t``, or of a copy.

    dl_device: ``t``'s own, or the CPU's, which always is a copy. stream: what the consumer will use; -1 and None: the
    thread's current one. BufferError for what a capsule cannot say, and for other devices.
    """
    if t.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if view_bits(t):
        raise BufferError("Can't export tensors with the conjugate or the negative bit set")
    if dl_device is not None and tuple(dl_device) == _CPU:
        if copy is False:
            raise BufferError(f"[dlpack] expected copy=None or True from {t.device} to the CPU, got False")
        return t.cpu().__dlpack__(max_version=max_version)
    if dl_device is not None and tuple(dl_device) != device_of(t):
        raise BufferError(f"[dlpack] expected {device_of(t)} or the CPU's {_CPU} for {t.device}, got {dl_device}")
    has_memory(t)
    t = t.clone() if copy else t
    if stream not in (None, -1):
        streams.current_stream(t.get_device()).synchronize()
    make = torch._C._to_dlpack if max_version is None or max_version[0] < 1 else torch._C._to_dlpack_versioned
    block = block_of(t)
    capsule = make(exposed(t))
    described = _described(capsule)
    assert described is not None
    described.type, described.index = device_of(t)
    if block.ptr:
        _shared[block.device, block.ptr] = block
    return capsule


def importing(take: Callable[[Any], torch.Tensor], capsule: Any) -> Any:
    """What ``torch._C._from_dlpack``, which is ``take``, gives for a capsule, which may be an NPU tensor's.

    Others' memory on NPUs is refused.
    """
    found = _described(capsule)
    if found is None or found.type != DLDeviceType.kDLExtDev:
        return take(capsule)
    index, address = found.index, found.data or 0
    blocks = [each for each in list(_shared.values()) if each.device == index]  # others may go meanwhile
    block = next((each for each in blocks if each.ptr <= address < each.ptr + each.nbytes), None)
    if address and block is None:
        raise BufferError(
            f"[from_dlpack] expected memory that mindtorch allocated, got another library's on npu:{index}"
        )
    found.type, found.index = _CPU
    with NoGrad(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        plain = take(capsule)
        size, stride, dtype = plain.shape, plain.stride(), plain.dtype
        if block is None or not plain.numel():
            return empty(size, stride, dtype, index)
        offset, rest = divmod(plain.data_ptr() - block.ptr, dtype.itemsize)
        if rest:
            raise BufferError(f"[from_dlpack] expected an address aligned to {dtype}, got one {rest} bytes off")
        return of_block(block, size, stride, offset, dtype)
