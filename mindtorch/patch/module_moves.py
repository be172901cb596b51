"""``nn.Module`` moves that keep parameter identity, tied weights and optimizer references (SPEC L7)."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import handle_torch_function
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakIdKeyDictionary

from .._ext import lazy as _core
from .._ext.guards import NoGrad, Unseen
from ..base.errors import LazyTensorError
from ..devices import mode
from ..engine.tensor import classes
from ..npu.tensor import as_npu, is_npu
from . import wrappers

_torch_swap_tensors = torch.utils.swap_tensors
_HELD_BY_PARAMETER = 2  # references to a gradient: its Python object, and the parameter in C++


def apply_to_module(
    module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool, original: Callable[..., Any]
) -> torch.nn.Module:
    """``Module._apply`` that also works when ``fn`` takes parameters to or from the lazy device.

    Torch would assign ``param.data`` across tensor types there, which corrupts both. Here the parameter object
    stays the same Python object: its class, its dictionary and the C++ tensor behind it are exchanged.
    """
    if recurse:
        for child in module.children():
            child._apply(fn)
    done: dict[int, torch.Tensor] = {}  # by the parameter's identity; what was converted is not converted again
    own = {id(param) for param in module._parameters.values()}
    owner: Any = None  # of the gradient that comes next

    def until_one_crosses(t: torch.Tensor) -> torch.Tensor:
        nonlocal owner
        moved = fn(t)
        if id(t) not in own:
            if owner is not None:
                _move_gradient(owner, t, moved, _references_of_nobody(original))
            owner = None
            return moved
        goes_on = moved is t or _is_torchs_own(t) or not _changes_kind(t, moved)
        owner = None if goes_on or not _assignable(t, moved) else t
        if not goes_on and owner is None:
            done[id(t)] = moved
            raise _Crosses
        done[id(t)] = t
        return moved

    try:
        return original(module, until_one_crosses, False)
    except _Crosses:
        pass
    crossing: list[tuple[str, Any, torch.Tensor]] = []
    for key, param in module._parameters.items():
        if param is None or _is_torchs_own(param):
            continue
        if id(param) not in done:
            with NoGrad():
                done[id(param)] = fn(param)
        moved = done[id(param)]
        if moved is not param and _changes_kind(param, moved):
            crossing.append((key, param, moved))
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


def _gradient_can_move(grad: Any, moved: torch.Tensor) -> bool:
    dataless = any(t.is_meta or _core.device_index(t) < 0 for t in (grad, moved))  # C++ refuses another device's
    return not dataless and grad.layout is torch.strided and grad._use_count() == _HELD_BY_PARAMETER


def _move_gradient(param: Any, grad: Any, moved: torch.Tensor, references: int) -> None:
    """``grad`` becomes ``moved``, to which torch sets its data next; C++ has it from ``param`` alone.

    references: those to a gradient that nobody holds. Then another may take its place, of torch's own class.
    """
    held = sys.getrefcount(grad) > references
    with Unseen():
        if param.grad is not grad or moved.layout is not torch.strided or is_opaque(grad) == is_opaque(moved):
            return
        param.grad = None
        if not held and not is_opaque(moved):
            param.grad = moved.detach().requires_grad_(grad.requires_grad)
            return
        try:
            _swap(grad, _twin(moved, grad, grad.requires_grad))
        finally:
            param.grad = grad


@functools.cache
def _references_of_nobody(original: Callable[..., Any]) -> int:
    """What sys.getrefcount says in _move_gradient of a gradient that the program holds nowhere but in its parameter."""
    found = 0

    def count(_param: Any, grad: Any, _moved: Any, _references: int) -> None:
        nonlocal found
        found = sys.getrefcount(grad)

    def visit(t: torch.Tensor) -> torch.Tensor:
        moved = t.clone()
        count(None, t, moved, 0)
        return moved

    with Unseen():
        module = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(1, device="cpu"))])
        module[0].grad = torch.zeros(1, device="cpu")
        original(module, visit, False)
    return found


def _changes_kind(param: Any, moved: torch.Tensor) -> bool:
    """Would torch, which sets the data of one to the other, do wrong? (It exchanges what says what it holds.)"""
    if is_opaque(param) or is_opaque(moved):
        return True
    return (wrappers.around_ours(param) or wrappers.around_ours(moved)) and not is_traceable_wrapper_subclass(moved)


class _Crosses(Exception):
    """A parameter of the module has to be exchanged for one on another kind of device."""


def _is_torchs_own(param: Any) -> bool:
    """Is this a parameter without data, which torch replaces, or one in an estimate, where all devices are alike?"""
    if _core.get_handle(param) is not None:
        return mode.now.estimate is not None
    with torch._C.DisableTorchFunction():
        return bool(param.device.type == "meta")


def _assignable(param: Any, moved: torch.Tensor) -> bool:
    """Will ``param.data = moved``, which is what torch does, move the parameter too? (Not to sparse data: torch puts
    another parameter there.)"""
    flags = torch.__future__
    if flags.get_overwrite_module_params_on_conversion() or flags.get_swap_module_params_on_conversion():
        return False
    with Unseen():
        if moved.layout is not torch.strided:
            return True
        if not (is_opaque(param) or is_opaque(moved)):
            return False  # a class around tensors: what it holds is elsewhere, too
        if is_opaque(param) and is_opaque(moved):
            between_recorded = _core.get_handle(param) is not None and _core.get_handle(moved) is not None
            return between_recorded or bool(param.device == moved.device)
        if param.grad is not None and not _gradient_can_move(param.grad, moved):
            return False
        return param not in _replaced and _swappable(param, moved)


def is_opaque(t: Any) -> bool:
    """Has the tensor no memory that C++ could read: is it a recorded one, or one on an NPU?"""
    return _core.get_handle(t) is not None or is_npu(t)


def assign_data(target: torch.Tensor, source: torch.Tensor) -> None:
    """``target.data = source`` for a plain tensor and one of ours: ``target`` moves to that device."""
    if torch._C._len_torch_function_stack() and not torch._C._is_torch_function_all_disabled():
        handle_torch_function(torch.Tensor.data.__set__, (target,), target, source)  # modes of the program see it first
        return
    if not _swappable(target, source):
        raise LazyTensorError(
            f"[data] cannot move this tensor from {target.device} to {source.device} by assigning .data, because "
            "something in C++ (a graph, a view) refers to it: use .to()"
        )
    with Unseen():
        grad = target.grad if target.is_leaf else None
        _swap(target, _twin(source, target, target.requires_grad))
        target.grad = grad  # stays where it was, as torch leaves it


def _twin(source: torch.Tensor, target: Any, requires_grad: bool) -> Any:
    """Another tensor with the data of ``source``, of the class that ``target`` is to have."""
    parameter = isinstance(target, torch.nn.Parameter)
    if is_npu(source):
        twin: Any = as_npu(source.detach())
        if parameter:
            twin._is_param = True  # what isinstance(..., torch.nn.Parameter) asks for
        return twin.requires_grad_(requires_grad)
    plain = _class_of(target, parameter)
    ours = _core.get_handle(source) is not None
    cls: Any = classes.class_for(plain, type(source)._family if ours else None, classes.is_slotted(type(target)))
    with Unseen():
        if not ours:
            return torch.Tensor._make_subclass(cls, source, requires_grad)  # type: ignore[attr-defined]
        return classes.requiring(classes.twin(source.detach(), cls), requires_grad)


def _class_of(t: Any, parameter: bool) -> type:
    if is_npu(t):
        return torch.nn.Parameter if parameter else torch.Tensor
    return classes.plain_class(type(t))


def _exchange(owner: dict[str, Any], key: str, param: Any, moved: torch.Tensor) -> None:
    """Put ``moved``'s tensor behind the Python object ``param``."""
    with Unseen():
        if is_opaque(param) or is_opaque(moved):
            fresh = _twin(moved, param, param.requires_grad)
        else:
            swap_tensors(param, torch.nn.Parameter(moved, param.requires_grad))
            return
    known = _replaced.get(param)
    if known is not None:
        owner[key] = known  # a tied weight, replaced a moment ago
    elif torch.__future__.get_overwrite_module_params_on_conversion():
        owner[key] = fresh
    elif _swappable(param, fresh):
        _swap(param, fresh)
    else:
        owner[key] = fresh
        _replaced[param] = fresh


def _swap(param: Any, fresh: Any) -> None:
    """Exchange the C++ tensors, classes and handles of two Python objects; other attributes stay where they are."""
    cls, old_class = type(fresh), type(param)
    theirs, ours = (t.__dict__.pop("_is_param", None) for t in (fresh, param))  # goes with the class
    handle, old_handle = _core.get_handle(fresh), _core.get_handle(param)
    kept = dict(param.__dict__)
    torch._C._swap_tensor_impl(param, fresh)
    param.__class__, fresh.__class__ = cls, old_class
    _core.adopt(param, handle)
    _core.adopt(fresh, old_handle)
    param.__dict__.update(kept)
    for t, flag in ((param, theirs), (fresh, ours)):
        if flag is not None:
            t._is_param = flag


@functools.wraps(_torch_swap_tensors)
def swap_tensors(t1: Any, t2: Any) -> None:
    """Stand-in for ``torch.utils.swap_tensors``: with a tensor of ours among the two, handles go along."""
    wrappers.swapped(_swap_tensors, t1, t2)


def _swap_tensors(t1: Any, t2: Any) -> None:
    if _core.get_handle(t1) is None and _core.get_handle(t2) is None:
        return _torch_swap_tensors(t1, t2)
    for name, t, other in (("t1", t1, t2), ("t2", t2, t1)):
        if len(weakref.getweakrefs(t)) > _core.is_adopted(t):
            raise RuntimeError(f"Cannot swap {name} because it has weakref associated with it")
        if not _swappable(t, other):
            raise RuntimeError(
                f"Expected use_count of {name} to be 1 or 2 with an AccumulateGrad node but got {t._use_count()} "
                "make sure you are not holding references to the tensor in other places."
            )
    cls, old_class = (
        classes.class_for(
            classes.plain_class(type(new)), getattr(type(new), "_family", None), classes.is_slotted(type(t))
        )
        for t, new in ((t1, t2), (t2, t1))
    )
    handle, old_handle = _core.get_handle(t2), _core.get_handle(t1)
    torch._C._swap_tensor_impl(t1, t2)
    t1.__class__, t2.__class__ = cls, old_class
    t1.__dict__, t2.__dict__ = t2.__dict__, t1.__dict__
    _core.adopt(t1, handle)
    _core.adopt(t2, old_handle)
    return None


# Parameters that could not keep their identity (C++ holds them): tied weights must be replaced by one object.
_replaced = WeakIdKeyDictionary()


def _swappable(param: Any, fresh: Any) -> bool:
    # The C++ tensors can be exchanged when nothing but Python and, as torch.utils.swap_tensors allows, the
    # gradient accumulator of a live graph refers to them; classes must share their layout.
    if classes.is_slotted(type(param)) and is_npu(fresh):
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
