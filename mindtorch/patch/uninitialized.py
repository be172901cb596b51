"""Parameters without a shape yet (``nn.LazyLinear`` and its like), bound for a device of ours (SPEC L7).

Torch makes them of an empty tensor on their device, and assigns ``.data`` when the shape is known. Ours stay on the CPU
until then, and know where they belong; so do all of them in an estimate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import (  # type: ignore[attr-defined]
    UninitializedBuffer,
    UninitializedParameter,
    UninitializedTensorMixin,
    is_lazy,
)

from ..base.patching import Patch
from ..devices.places import where
from .module_moves import apply_to_module, assign_data, is_opaque

__all__ = ["apply", "patches"]
_PLACE = "_mindtorch_device"  # in the tensor's dictionary: the device of ours that it belongs to
_torch_materialize = UninitializedTensorMixin.materialize
_torch_deepcopy = UninitializedParameter.__deepcopy__


def _maker(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def make(cls: Any, requires_grad: bool | None = None, device: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
        if requires_grad is not None:
            kwargs["requires_grad"] = requires_grad
        default = torch.empty(0, device=device)  # on the device that `with torch.device(...)` chose, without an own one
        if not is_opaque(default):
            return original(cls, device=device, dtype=dtype, **kwargs)
        with torch._C.DisableTorchFunction():  # plain in an estimate, too
            made = original(cls, device="cpu", dtype=dtype, **kwargs)
        made.__dict__[_PLACE] = default.device
        return made

    return staticmethod(make)


@functools.wraps(_torch_materialize)
def _materialize(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    place = self.__dict__.pop(_PLACE, None)
    target = place if device is None else device
    if target is None or not where(target).ours:
        _torch_materialize(self, shape, device, dtype)
        return
    with torch._C.DisableTorchFunction():
        _torch_materialize(self, (0,), "cpu", dtype)
    assign_data(self, torch.empty(shape, dtype=self.dtype, device=target))


def _device(self: Any) -> Any:
    place = self.__dict__.get(_PLACE)
    return torch._C.TensorBase.device.__get__(self) if place is None else place  # type: ignore[attr-defined]


@functools.wraps(_torch_deepcopy)
def _deepcopy(self: Any, memo: dict) -> Any:
    copied = _torch_deepcopy(self, memo)
    copied.__dict__.update({_PLACE: self.__dict__[_PLACE]} if _PLACE in self.__dict__ else {})
    return copied


def patches() -> list[Patch]:
    """(owner, name, stand-in) of what torch must do in another way for these tensors."""
    return [
        (UninitializedParameter, "__new__", _maker(UninitializedParameter.__new__)),
        (UninitializedBuffer, "__new__", _maker(UninitializedBuffer.__new__)),
        (UninitializedParameter, "__deepcopy__", _deepcopy),
        (UninitializedTensorMixin, "materialize", _materialize),
        (UninitializedTensorMixin, "device", property(_device)),
    ]


def apply(
    module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool, original: Callable[..., Any]
) -> torch.nn.Module:
    """``Module._apply`` of any module: what has no shape yet is only told where it belongs."""
    moved: list[tuple[dict[str, Any], str, Any]] = []
    for owner in (module._parameters, module._buffers):
        for key, t in owner.items():
            if t is not None and is_lazy(t) and _move(t, fn):
                moved.append((owner, key, t))
    for owner, key, _t in moved:
        owner[key] = None
    try:
        return apply_to_module(module, fn, recurse, original)
    finally:
        for owner, key, t in moved:
            owner[key] = t


def _move(t: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Ask ``fn`` where a tensor like this goes; True when that, or where it was, is a device of ours."""
    place = t.__dict__.get(_PLACE)
    made = fn(torch.empty(0, dtype=t.dtype, device=t.device))
    there = is_opaque(made)
    if place is None and not there:
        return False
    t.__dict__.pop(_PLACE, None)
    if there:
        t.__dict__[_PLACE] = made.device
        with torch._C.DisableTorchFunction():
            made = torch.empty(0, dtype=made.dtype)
    t.data = made
    return True
