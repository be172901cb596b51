"""The tensors among a call's arguments: finding ours, and putting others in their place."""

from __future__ import annotations

from typing import Any

import torch

from ..._ext import guards as _guards
from ..._ext import lazy as _core
from ..._ext import operands as _operands
from ..._ext.operands import collect, filled, lazy_in, meta_like, tensors_in

__all__ = [
    "TORCH_ERRORS", "collect", "filled", "has_no_kernel", "is_dense", "lazy_in", "meta_like", "meta_tensor", "quiet",
    "tensors_in", "to_call", "to_options", "with_dtypes",
]  # fmt: skip

# What torch's kernels, meta kernels and decompositions raise for inputs they refuse or do not know.
TORCH_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, ArithmeticError)


def meta_tensor(handle: Any) -> torch.Tensor:
    """Torch's own meta tensor that looks like the tensor of ours with this handle."""
    return meta_like(_core.meta_of(handle), _core.view_bits(handle))


def is_dense(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements fill a stretch of memory, each once."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(sizes, strides) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


#: ``with quiet():`` torch code of our own; see there.
quiet = _guards.Quiet
_guards.init(torch)
_operands.init(torch, _core.set_view_bits)

#: What torch takes for a dtype, beside its own.
_OF_PYTHON: dict[Any, torch.dtype] = {
    bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128,
}  # fmt: skip


def with_dtypes(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The same with torch's dtypes for Python's types: ``t.to(bool)``, ``torch.ones(3, dtype=int)``."""
    if any(type(a) is type for a in args):
        args = tuple(_OF_PYTHON.get(a, a) if type(a) is type else a for a in args)
    if type(dtype := kwargs.get("dtype")) is type:
        kwargs = {**kwargs, "dtype": _OF_PYTHON.get(dtype, dtype)}
    return args, kwargs


def to_call(args: tuple, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """(the device as it is given, or None, the other options by name, as far as they are given) of ``x.to(...)``."""
    args, kwargs = with_dtypes(args, kwargs)
    rest, options = list(args), dict(kwargs)
    device, other = options.pop("device", None), options.pop("tensor", None)
    if rest and isinstance(rest[0], torch.Tensor):
        other = rest.pop(0)
    elif rest and not isinstance(rest[0], (torch.dtype, bool)):
        device = rest.pop(0)
    if other is not None:
        with torch._C.DisableTorchFunction():  # no call of the program's: function modes are not told
            device, options["dtype"] = other.device, other.dtype
    elif rest and not isinstance(rest[0], bool):
        options["dtype"] = rest.pop(0)
    options.update(zip(("non_blocking", "copy"), rest, strict=False))
    return device, {name: value for name, value in options.items() if value is not None}


def to_options(args: tuple, kwargs: dict[str, Any]) -> tuple[Any, bool, Any]:
    """(dtype, non_blocking, memory_format) of a ``.to(...)`` call; a move between devices always copies."""
    _device, options = to_call(args, kwargs)
    return (
        options.get("dtype"), bool(options.get("non_blocking", False)),
        options.get("memory_format") or torch.preserve_format,
    )  # fmt: skip


def has_no_kernel(error: BaseException) -> bool:
    """Does torch say that a device has no kernel for such a call? Other NotImplementedErrors say that none takes it."""
    return "not implemented for" in str(error) or "Could not run '" in str(error)
