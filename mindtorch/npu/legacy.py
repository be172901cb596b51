"""``torch.npu.FloatTensor``, ``FloatStorage`` and their like: a dtype on an NPU as a type, after torch.cuda's."""

from __future__ import annotations

from typing import Any

import torch

__all__ = [
    "BFloat16Storage", "BFloat16Tensor", "BoolStorage", "BoolTensor", "ByteStorage", "ByteTensor", "CharStorage",
    "CharTensor", "DoubleStorage", "DoubleTensor", "FloatStorage", "FloatTensor", "HalfStorage", "HalfTensor",
    "IntStorage", "IntTensor", "LongStorage", "LongTensor", "ShortStorage", "ShortTensor",
]  # fmt: skip


class _TensorType(type):
    """Makes NPU tensors as torch's type of this name makes CPU tensors; has those of its dtype as instances."""

    _plain: Any

    def __call__(cls, *args: Any, device: Any = "npu") -> Any:
        return cls._plain(*args).to(device)

    def __instancecheck__(cls, t: object) -> bool:
        return isinstance(t, torch.Tensor) and t.device.type == "npu" and t.dtype is cls._plain.dtype


class _StorageType(type):
    """The same of storages of elements."""

    _plain: Any

    def __call__(cls, *args: Any) -> Any:
        held = cls._plain(*args)
        return torch.empty(0, dtype=cls._plain.dtype, device="cpu").set_(held).to("npu")._typed_storage()

    def __instancecheck__(cls, s: object) -> bool:
        return isinstance(s, torch.TypedStorage) and s.device.type == "npu" and s.dtype is cls._plain.dtype


def _type(name: str) -> type:
    kind = _StorageType if name.endswith("Storage") else _TensorType
    return kind(name, (), {"__module__": "torch.npu", "_plain": getattr(torch, name)})


BFloat16Storage, BFloat16Tensor, BoolStorage, BoolTensor, ByteStorage, ByteTensor, CharStorage, CharTensor, \
    DoubleStorage, DoubleTensor, FloatStorage, FloatTensor, HalfStorage, HalfTensor, IntStorage, IntTensor, \
    LongStorage, LongTensor, ShortStorage, ShortTensor = map(_type, __all__)  # fmt: skip


def typed(t: torch.Tensor, kind: Any = None, non_blocking: bool = False) -> Any:
    """``t.type(kind)`` where an NPU is on either side: a name, or a copy there. NotImplemented: torch knows."""
    on_npu = t.device.type == "npu"
    if kind is None:
        return type_name(t.dtype) if on_npu else NotImplemented
    if isinstance(kind, str):
        name = kind.rpartition(".")[2]
        kind = globals().get(name) if kind.startswith("torch.npu.") else getattr(torch, name, None)
    if isinstance(kind, _TensorType):
        return t.to(t.device if on_npu else "npu", kind._plain.dtype, non_blocking=non_blocking)
    if on_npu and isinstance(kind, type(torch.FloatTensor)):
        return t.to("cpu", kind.dtype, non_blocking=non_blocking)
    return NotImplemented


def type_name(dtype: torch.dtype) -> str:
    """What ``tensor.type()`` is of a tensor on an NPU."""
    return torch.empty(0, dtype=dtype, device="cpu").type().replace("torch.", "torch.npu.", 1)
