"""Tensors that hold one of ours inside: what torch.func puts around it, and classes that wrap tensors (SPEC D5).

C++ takes both for CPU tensors, as it does what is inside: a device that it has no code for would end the process in
backward. So ``.device`` looks inside, from the first of them on; not before, since every program reads it. Nor can C++
move them between devices: the class's own ``__torch_dispatch__`` is asked here, as C++ asks it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.nested._internal.nested_tensor import NestedTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass,
)

from .._ext import hooks as _hooks
from .._ext import lazy as _core
from .._ext.guards import Modes
from ..devices import mode
from ..devices.lazy_device import device_at, npu_device
from ..devices.places import NPU, RECORDED, where
from ..engine.execute import tensors
from ..engine.record import unwrapping
from ..npu import moves
from . import held

__all__ = ["around_ours", "away", "copy_across", "crosses", "make", "moved", "shows", "swapped", "type_as"]
_peek = torch._C._functorch.peek_interpreter_stack
_devices: dict[int, tuple[Any, Any]] = {}  # id of a wrapper -> (a weak reference to it, its device)


def watch() -> None:
    """From now on ``.device`` looks inside, and so do moves to another device."""
    if (torch._C.TensorBase, "device") not in held:
        held.put([(torch._C.TensorBase, "device", _hooks.ReadHook(_device_inside))])
        _hooks.take_hidden(lambda t: unwrapping.hides(t) or around_ours(t))
        held.after(_hooks.take_hidden, None)


def _device_inside(t: Any) -> Any:
    known = _devices.get(id(t))
    if known is not None:
        return known[1]
    if _peek() is None:
        return None
    index = unwrapping.index_inside(t)
    return None if index is None else device_at(index)


def make(original: Callable[..., Any], *args: Any, device: Any, **kwargs: Any) -> Any:
    """``torch.Tensor._make_wrapper_subclass(..., device=device)`` for a device of ours."""
    made = original(*args, device="cpu", **kwargs)
    on_npu = where(device) is NPU
    _remember(made, npu_device(moves.index_of(device)) if on_npu else tensors.torch_device(tensors.index_of(device)))
    watch()
    return made


def around_ours(t: Any) -> bool:
    """Is this of a class around tensors, and on a device of ours?"""
    return bool(_devices) and id(t) in _devices and where(_devices[id(t)][1]) is RECORDED


def crosses(t: torch.Tensor, target: Any) -> bool:
    """Is the move of ``t``, of a class around tensors, to ``target`` one to or from a device of ours?"""
    if target is None or type(t) in (torch.Tensor, torch.nn.Parameter) or _core.get_handle(t) is not None:
        return False
    if mode.now.estimate is not None or isinstance(t, NestedTensor):
        return False
    return around_ours(t) or (where(target) is RECORDED and _has_own_dispatch(t))


def shows(t: torch.Tensor, target: Any) -> bool:
    """Do dispatch modes of the program see the move of ``t`` to ``target``, which is one to or from a device of ours?

    Not where autograd's rules of the move itself are wanted: transforms of torch.func, forward mode.
    """
    simple = _peek() is None and not unwrapping.wrapped(t) and forward_ad._current_level < 0
    return simple and t.layout is torch.strided and _program_modes() is not None and where(target).has_data


def _program_modes() -> list[Any] | None:
    """The dispatch modes that are on, ``make_fx``'s too; None if one of them has tensors of its own (fake ones)."""
    stack = _get_current_dispatch_mode_stack()
    return None if any(getattr(entry, "_mode_key", None) not in (None, unwrapping.PROXY) for entry in stack) else stack


def moved(t: torch.Tensor, device: Any, dtype: Any, non_blocking: bool, memory_format: Any) -> Any:
    """``t.to(device, …)`` as modes and the class of ``t`` are asked for it; ``device`` is another one."""
    options: dict[str, Any] = {"dtype": t.dtype, "layout": t.layout} if dtype is None else {"dtype": dtype}
    options["device"] = device
    if non_blocking:
        options["non_blocking"] = True
    if memory_format is not torch.preserve_format:
        options["memory_format"] = memory_format
    if t.requires_grad and torch.is_grad_enabled():
        return _Move.apply(t, options)
    return _asked(t, options)


class _Move(torch.autograd.Function):
    """A copy on another device; the gradient goes back to the first."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, options: dict[str, Any]) -> Any:
        ctx.source, ctx.dtype = t.device, t.dtype
        ctx.set_materialize_grads(False)
        return _asked(t, options)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:  # type: ignore[override]
        return None if grad is None else grad.to(ctx.source, ctx.dtype), None


def _asked(t: torch.Tensor, options: dict[str, Any]) -> Any:
    stack = _program_modes() or []
    traces = unwrapping.tracing_mode()
    if traces is not None:
        options = {name: value for name, value in options.items() if name != "layout"}  # which `to` does not take
        with Modes(*(entry for entry in stack if entry is not traces)):
            return _traced(traces.tracer, t, options, t.to(**options, copy=True))
    with torch._C._AutoDispatchBelowAutograd():  # type: ignore[attr-defined]
        if stack and isinstance(options["device"], torch.device):
            with Modes(_Moving(), *stack):
                return _to_copy(t, **options)
        with _Moving() as moving:
            return moving.ask(_to_copy, (t,), options)


_to_copy = torch.ops.aten._to_copy.default


def _traced(tracer: Any, t: torch.Tensor, options: dict[str, Any], out: Any) -> Any:
    """``out``, in the graph of ``make_fx`` as a copy of ``t``: as a constant it would be the same in each call."""
    from torch.fx.experimental.proxy_tensor import get_proxy_slot, track_tensor_tree  # loaded by whoever traces

    source = get_proxy_slot(t, tracer, t, lambda found: found.proxy)
    proxy = tracer.create_proxy("call_method", "to", (source,), options)
    return track_tensor_tree(out, proxy, constant=None, tracer=tracer)


class _Moving(TorchDispatchMode):
    """Below the modes of the program: moves tensors, and what their classes hold. C++ has no code for our devices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if func is not _to_copy or device is None:
            return func(*args, **kwargs)
        t = args[0]
        if _core.get_handle(t) is None and _has_own_dispatch(t):
            with self:
                return self.ask(func, args, kwargs)
        if where(device) is RECORDED or _core.get_handle(t) is not None:
            options = {k: v for k, v in kwargs.items() if k in ("dtype", "non_blocking", "memory_format")}
            return t.to(device, copy=True, **options)
        return func(*args, **kwargs)

    def ask(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """``func`` as the class of the first argument does it."""
        cls: Any = type(args[0])
        return cls.__torch_dispatch__(func, (cls,), args, kwargs)


_no_dispatch = torch._C._disabled_torch_dispatch_impl


def _has_own_dispatch(t: Any) -> bool:
    """Is this of a class of the program's around tensors, which C++ asks before it does anything?"""
    cls = type(t)
    if cls.__torch_dispatch__ is _no_dispatch or isinstance(t, (FakeTensor, FunctionalTensor)):
        return False
    if is_traceable_wrapper_subclass(t):
        return True
    try:
        with torch._C.DisableTorchFunction():
            t.untyped_storage().data_ptr()
    except RuntimeError:  # a wrapper has no memory of its own
        return True
    return False


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
