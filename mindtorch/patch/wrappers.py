"""Tensors that hold one of ours inside: what torch.func puts around it, and classes that wrap tensors (SPEC D5).

C++ takes both for CPU tensors, as it does what is inside: a device that it has no code for would end the process in
backward. So ``.device`` looks inside, from the first of them on; not before, since every program reads it. Nor can C++
move them between devices: the class's own ``__torch_dispatch__`` is asked here, as C++ asks it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nested._internal.nested_tensor import NestedTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from .._ext import hooks as _hooks
from .._ext import intern as _intern
from .._ext import lazy as _core
from ..devices import mode
from ..devices.lazy_device import device_at, is_ours, npu_device
from ..engine.execute import tensors
from ..engine.record import eager, intercept
from ..engine.record.inside import hides, index_inside
from ..engine.tensor.recorded import RecordedTensor
from ..npu import moves

__all__ = ["away", "copy_across", "crosses", "make", "moved", "patches", "swapped", "type_as", "unwatch", "watch"]
_peek = torch._C._functorch.peek_interpreter_stack
_devices: dict[int, tuple[Any, Any]] = {}  # id of a wrapper -> (a weak reference to it, its device)
_watched = False


def watch() -> None:
    """From now on ``.device`` looks inside, and so do moves to another device."""
    global _watched
    if not _watched:
        _hooks.hook_device(torch._C.TensorBase.device, _device_inside)  # type: ignore[attr-defined]
        _hooks.take_hidden(lambda t: hides(t) or _around_ours(t))
        _watched = True


def unwatch() -> None:
    """Leave ``.device`` to torch alone."""
    global _watched
    _hooks.unhook_device(torch._C.TensorBase.device)  # type: ignore[attr-defined]
    _hooks.take_hidden(None)
    _watched = False


def _device_inside(t: Any) -> Any:
    known = _devices.get(id(t))
    if known is not None:
        return known[1]
    if _peek() is None:
        return None
    index = index_inside(t)
    return None if index is None else device_at(index)


def make(original: Callable[..., Any], *args: Any, device: Any, **kwargs: Any) -> Any:
    """``torch.Tensor._make_wrapper_subclass(..., device=device)`` for a device of ours."""
    made = original(*args, device="cpu", **kwargs)
    on_npu = moves.names_npu(device)
    _remember(made, npu_device(moves.index_of(device)) if on_npu else tensors.torch_device(tensors.index_of(device)))
    watch()
    return made


def _around_ours(t: Any) -> bool:
    return bool(_devices) and id(t) in _devices and is_ours(_devices[id(t)][1])


def crosses(t: torch.Tensor, target: Any) -> bool:
    """Is the move of ``t``, of a class around tensors, to ``target`` one to or from a device of ours?"""
    if target is None or type(t) in (torch.Tensor, torch.nn.Parameter) or _core.get_handle(t) is not None:
        return False
    if mode.now.known is not None or isinstance(t, NestedTensor):
        return False
    return _around_ours(t) or (is_ours(target) and is_traceable_wrapper_subclass(t))


def moved(t: torch.Tensor, device: Any, dtype: Any, non_blocking: bool, memory_format: Any) -> Any:
    """``t.to(device, …)`` of a class around tensors, by its ``__torch_dispatch__``; ``device`` is another one."""
    options: dict[str, Any] = {"dtype": t.dtype, "layout": t.layout} if dtype is None else {"dtype": dtype}
    options["device"] = device
    if non_blocking:
        options["non_blocking"] = True
    if memory_format is not torch.preserve_format:
        options["memory_format"] = memory_format
    if t.requires_grad and torch.is_grad_enabled():
        return _Move.apply(t, options)
    return _by_its_class(t, options)


class _Move(torch.autograd.Function):
    """A copy on another device; the gradient goes back to the first."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, options: dict[str, Any]) -> Any:
        ctx.source, ctx.dtype = t.device, t.dtype
        ctx.set_materialize_grads(False)
        return _by_its_class(t, options)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:  # type: ignore[override]
        return None if grad is None else grad.to(ctx.source, ctx.dtype), None


def _by_its_class(t: torch.Tensor, options: dict[str, Any]) -> Any:
    cls: Any = type(t)
    with torch._C._AutoDispatchBelowAutograd(), _Inside():  # type: ignore[attr-defined]
        return cls.__torch_dispatch__(_to_copy, (cls,), (t,), options)


_to_copy = torch.ops.aten._to_copy.default


class _Inside(TorchDispatchMode):
    """Moves what a class holds: C++ has no code for devices of ours."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        moves = func is _to_copy and device is not None and not is_traceable_wrapper_subclass(args[0])
        if moves and (is_ours(device) or _core.get_handle(args[0]) is not None):
            options = {k: v for k, v in kwargs.items() if k in ("dtype", "non_blocking", "memory_format")}
            return args[0].to(device, copy=True, **options)
        with self:
            return func(*args, **kwargs)


def _remember(t: Any, device: Any) -> None:
    address = id(t)
    _devices[address] = (weakref.ref(t, lambda _: _devices.pop(address, None)), device)


def swapped(swap: Callable[[Any, Any], None], t1: Any, t2: Any) -> None:
    """``swap(t1, t2)``, which refuses objects with weak references: ours are not among them, and go along."""
    devices = [_devices.pop(id(t), (None, None))[1] for t in (t1, t2)]
    try:
        swap(t1, t2)
        devices.reverse()
    finally:
        for t, device in zip((t1, t2), devices, strict=True):
            if device is not None:
                _remember(t, device)


def away(original: Callable[..., Any], t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``.cpu()`` and ``.cuda()`` of what a transform has put around a recorded tensor."""
    kind = original.__name__
    target = kwargs.pop("device", args[0] if args else None) if kind == "cuda" else None
    return t.to(torch.device(kind, target) if isinstance(target, int) else target or kind, **kwargs)


def copy_across(original: Callable[..., Any], t: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``copy_`` inside transforms: autograd would bring the gradient to where C++ takes the source to be."""
    return original(t, source.to(t.device), *args, **kwargs)


def type_as(original: Callable[..., Any], t: torch.Tensor, other: torch.Tensor) -> Any:
    """``type_as`` inside transforms, from or to another device."""
    return t.to(other)


_jagged_infos: dict[Any, Any] = {}
_torch_jagged: Any = NestedTensor.__torch_dispatch__.__func__  # type: ignore[attr-defined]


@functools.wraps(_torch_jagged)
def _jagged(cls: Any, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
    # It would make a jagged tensor of lazy values and plain offsets. Those stay torch's own: the call runs eagerly.
    if not any(issubclass(t, RecordedTensor) for t in types):
        return _torch_jagged(cls, func, types, args, kwargs)
    info = _jagged_infos.get(func)
    if info is None:
        known = intercept.describe(func, True)
        info = _jagged_infos[func] = _intern.OpInfo(
            func,
            known.name,
            _intern.EAGER,
            random=known.random,
            writes=known.writes,
            call=lambda *args, **kwargs: _torch_jagged(NestedTensor, func, (NestedTensor,), args, kwargs),
        )
    return eager.run_eagerly(info, args, kwargs or {})


def patches() -> list[tuple[Any, str, Any]]:
    """(owner, name, stand-in) of what torch's own classes of tensors do with tensors of ours among their operands."""
    return [(NestedTensor, "__torch_dispatch__", classmethod(_jagged))]
