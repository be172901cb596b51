"""``npu_tensor.as_subclass(cls)``: a program's own classes of tensors, of tensors on NPUs."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.overrides import get_default_nowrap_functions

from .._ext.guards import NoGrad
from .tensor import NpuTensor

_base = torch._C.TensorBase
_as_it_is = get_default_nowrap_functions()


def as_subclass(t: NpuTensor, cls: type) -> Any:
    """Another name of ``t``, in its graph, as an object of ``cls``: of a class of both."""
    if not isinstance(cls, type) or not issubclass(cls, torch.Tensor):
        raise TypeError(f"[as_subclass] expected a class of tensors, got {cls!r}")
    kind = NpuTensor if cls in (torch.Tensor, torch.nn.Parameter) else cls
    if not issubclass(kind, NpuTensor):
        kind = _derived(kind)
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunctionSubclass():
        return _base.as_subclass(t, kind)


def make_subclass(cls: type, data: NpuTensor, require_grad: bool = False, **options: Any) -> Any:
    """``torch.Tensor._make_subclass(cls, data)``: a leaf on the memory of ``data``, of a class that is ``cls``.

    Of a class of parameters it is a parameter, as ``cls(data)`` is where torch does not know the class of ``data``.
    """
    if options:
        raise TypeError(f"[_make_subclass] expected no options for a tensor on {data.device}, got {', '.join(options)}")
    if isinstance(cls, type) and issubclass(cls, torch.nn.Parameter):
        return torch.nn.Parameter(data.detach(), require_grad)
    with NoGrad():
        made = as_subclass(data.detach(), cls)
    return made.requires_grad_() if require_grad else made


class _Derived(NpuTensor):
    """What classes of a program are put before: results are of that class, as torch has it."""

    _plain: type

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out if func in _as_it_is else cls._wrapped(out)

    @classmethod
    def _wrapped(cls, out: Any) -> Any:
        if isinstance(out, torch.Tensor):
            wanted = cls if isinstance(out, NpuTensor) else cls._plain
            return out if isinstance(out, wanted) else out.as_subclass(wanted)  # type: ignore[arg-type]
        if type(out) in (tuple, list):
            return type(out)(map(cls._wrapped, out))
        return out


def _moving(name: str) -> Any:
    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped(getattr(NpuTensor, name)(self, *args, **kwargs))

    move.__name__ = name
    return move


for _name in ("to", "cpu", "cuda", "npu"):
    setattr(_Derived, _name, _moving(_name))


@functools.cache
def _derived(cls: type) -> type:
    metaclass: Any = type(NpuTensor)
    return metaclass.__new__(metaclass, cls.__name__, (cls, _Derived), {"__module__": cls.__module__, "_plain": cls})


NpuTensor.as_subclass = as_subclass  # type: ignore[method-assign, assignment]
