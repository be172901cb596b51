"""``nn.Module`` moves that keep parameter identity, tied weights and optimizer references (SPEC L7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ._ext import lazy as _core
from ._ext.guards import NoGrad
from .errors import LazyTensorError
from .lazy_device import dataless_everywhere
from .meta import MetaTensor
from .npu.tensor import NpuTensor, as_npu, is_npu
from .tensors import LazyParameter, LazyTensor


def apply_to_module(module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool,
                    original: Callable[..., Any]) -> torch.nn.Module:
    """``Module._apply`` that also works when ``fn`` takes parameters to or from the lazy device.

    Torch would assign ``param.data`` across tensor types there, which corrupts both. Here the parameter object
    stays the same Python object: its class, its dictionary and the C++ tensor behind it are exchanged.
    """
    if recurse:
        for child in module.children():
            child._apply(fn)
    crossing: list[tuple[str, Any, torch.Tensor]] = []
    with NoGrad():
        for key, param in module._parameters.items():
            if param is None:
                continue
            lazy = _core.get_handle(param) is not None
            if not lazy and param.device.type == "meta":
                continue
            if lazy and dataless_everywhere():
                continue  # all devices are alike: torch's own way keeps the parameter's identity
            moved = fn(param)
            if moved is param:
                continue
            if is_ours(param) or is_ours(moved):
                crossing.append((key, param, moved))
    if not crossing:
        return original(module, fn, False)
    for key, param, moved in crossing:
        grad = param.grad
        if grad is not None:
            param.grad = None
            with NoGrad():
                grad = fn(grad)
        _exchange(module._parameters, key, param, moved)
        if grad is not None:
            module._parameters[key].grad = grad
    for key, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[key] = fn(buffer)
    return module


def is_ours(t: Any) -> bool:
    """Is this a tensor without memory that C++ could read: a recorded one, or one on an NPU?"""
    return _core.get_handle(t) is not None or is_npu(t)


def assign_data(target: torch.Tensor, source: torch.Tensor) -> None:
    """``target.data = source`` for a plain tensor and one of ours: ``target`` moves to that device."""
    if not _swappable(target):
        raise LazyTensorError(
            f"[data] cannot move this tensor from {target.device} to {source.device} by assigning .data, because "
            "something in C++ (a graph, a view) refers to it: use .to()"
        )
    grad = target.grad if target.is_leaf else None
    _swap(target, _twin(source, isinstance(target, torch.nn.Parameter), target.requires_grad))
    with torch._C.DisableTorchFunctionSubclass():
        target.grad = grad  # stays where it was, as torch leaves it


def _twin(source: torch.Tensor, parameter: bool, requires_grad: bool) -> Any:
    """Another tensor with the data of ``source``, of a class whose objects are laid out as torch's are."""
    if is_npu(source):
        twin: Any = as_npu(source.detach())
        if parameter:
            twin._is_param = True  # what isinstance(..., torch.nn.Parameter) asks for
        return twin.requires_grad_(requires_grad)
    if isinstance(source, MetaTensor):
        twin = _lazy_twin(source, MetaTensor, requires_grad)
        twin._is_param = parameter
        return twin
    return _lazy_twin(source, LazyParameter if parameter else LazyTensor, requires_grad)


def _lazy_twin(lazy: torch.Tensor, cls: Any, requires_grad: bool) -> Any:
    with NoGrad():
        fresh = cls._make_wrapper_subclass(
            cls, lazy.shape, lazy.stride(), lazy.storage_offset(), None, lazy.dtype
        )
    _core.adopt(fresh, _core.get_handle(lazy))
    return fresh.requires_grad_(requires_grad)


def _exchange(owner: dict[str, Any], key: str, param: Any, moved: torch.Tensor) -> None:
    """Put ``moved``'s tensor behind the Python object ``param``."""
    requires_grad = param.requires_grad
    if is_ours(moved):
        fresh = _twin(moved, True, requires_grad)
    else:
        fresh = torch.nn.Parameter(moved.detach(), requires_grad=requires_grad)
    known = _replaced.get(param)
    if known is not None:
        owner[key] = known  # a tied weight, replaced a moment ago
    elif _swappable(param):
        _swap(param, fresh)
    else:
        owner[key] = fresh
        _replaced[param] = fresh


_OF_ITS_KIND = ("_handle", "_is_param")  # go with the class


def _swap(param: Any, fresh: Any) -> None:
    """Exchange the C++ tensors, classes and handles of two Python objects; other attributes stay where they are."""
    cls, old_class = type(fresh), type(param)
    theirs, ours = ({name: t.__dict__.pop(name) for name in _OF_ITS_KIND if name in t.__dict__} for t in (fresh, param))
    kept = dict(param.__dict__)
    torch._C._swap_tensor_impl(param, fresh)
    param.__class__, fresh.__class__ = cls, old_class
    param.__dict__.update(kept)
    param.__dict__.update(theirs)
    fresh.__dict__.update(ours)


# Parameters that could not keep their identity (C++ holds them): tied weights must be replaced by one object.
_replaced = WeakIdKeyDictionary()


def _swappable(param: Any) -> bool:
    # The C++ tensors can be exchanged when nothing but Python and, as torch.utils.swap_tensors allows, the
    # gradient accumulator of a live graph refers to them; classes must share their layout.
    if type(param) not in (torch.nn.Parameter, LazyParameter, NpuTensor, torch.Tensor):
        return False
    if param._use_count() == 1:
        return True
    if param._use_count() != 2 or not (param.is_leaf and param.requires_grad):
        return False
    node = torch.autograd.graph.get_gradient_edge(param).node
    if param._use_count() != 2:
        return False  # the second reference was something else; this call has just made the accumulator
    node.register_prehook(_moved_meanwhile)
    return True


def _moved_meanwhile(_grads: Any) -> None:
    raise RuntimeError("a parameter was moved to another device between forward and backward")
