"""``import mindtorch.npu.compat``: programs that import torch_npu find ours where the real one is not installed.

For the rest of the process torch then knows ``npu`` by name: ``torch.device("npu:0")``, ``torch.accelerator``. What is
there, and what is not: docs/NPU.md. Where torch_npu itself is installed, nothing happens (SPEC N6).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..._ext import streams
from ...base.errors import UnsupportedOperationError
from ...base.patching import for_good
from ...patch import hooks, slot
from .. import finder, legacy
from ..library import device_index
from ..tensor import NpuStorage, TypedNpuStorage

__all__ = ["install"]

_torch_type: Any = torch.Tensor.type


def install() -> None:
    """Let ``torch_npu`` be importable, and torch know ``npu`` by name. Idempotent.

    UnsupportedOperationError where torch's one slot for a foreign device has another name already.
    """
    if finder.is_installed():
        return
    hooks.enable()
    if not slot.claim_npu():
        owner = torch._C._get_privateuse1_backend_name()
        raise UnsupportedOperationError(
            f"[mindtorch.npu.compat] expected that torch's slot for a foreign device is free, got {owner!r} in it: "
            "import mindtorch.npu.compat before that device is used"
        )
    from . import distributed

    distributed.install()
    storages = (torch.UntypedStorage, torch.TypedStorage, NpuStorage)
    for_good([(torch.Tensor, "type", _type), *((kind, "npu", _storage_on_npu) for kind in storages)])
    if not hasattr(torch.Tensor, "is_npu"):
        for_good([(torch.Tensor, "is_npu", hooks.IS_NPU)])
    streams.call_module("torch_npu.npu")
    finder.watch()


def _storage_on_npu(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
    """A copy of a storage on an NPU, by default the current one; itself where it is there."""
    untyped, index = getattr(self, "_untyped_storage", self), device_index(device)
    if untyped.device.type == "npu" and untyped.device.index == index:
        return self
    whole = torch.empty(0, dtype=torch.uint8, device=untyped.device).set_(untyped)
    moved = whole.to(f"npu:{index}", non_blocking=non_blocking).untyped_storage()
    return TypedNpuStorage(moved, self.dtype) if isinstance(self, torch.TypedStorage) else moved


@functools.wraps(_torch_type)
def _type(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    made = legacy.typed(self, dtype, non_blocking)
    return _torch_type(self, dtype, non_blocking, **kwargs) if made is NotImplemented else made


install()
