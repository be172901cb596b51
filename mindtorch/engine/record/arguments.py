"""The tensors among a call's arguments: finding ours, and putting others in their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..._ext import guards as _guards
from ..._ext import lazy as _core
from ..._ext.keys import same_device
from ...base.strides import contiguous, extent

# What torch's kernels, meta kernels and decompositions raise for inputs they refuse or do not know.
TORCH_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, ArithmeticError)


# ---- tensors among arguments -----------------------------------------------------------------------------------------
def collect(info: Any, args: tuple, kwargs: dict) -> tuple[list[torch.Tensor], bytes]:
    """Our tensors among the arguments, and for each whether the call writes it (1, else 0)."""
    inputs: list[torch.Tensor] = []
    written = bytearray()
    for key, a in (*enumerate(args), *kwargs.items()):
        for t in lazy_in(a):
            inputs.append(t)
            written.append(key in info.writes)
    return inputs, bytes(written)


def lazy_in(a: Any) -> Iterator[torch.Tensor]:
    """Lazy tensors in an argument, in the order in which the extension encodes them."""
    return (t for t in tensors_in(a) if _core.get_handle(t) is not None)


def tensors_in(a: Any) -> Iterator[torch.Tensor]:
    """Tensors in an argument, in that order."""
    if isinstance(a, torch.Tensor):
        yield a
    elif isinstance(a, (tuple, list)):
        for item in a:
            yield from tensors_in(item)


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


def meta_like(facts: tuple[Any, ...], bits: int = 0) -> torch.Tensor:
    """Torch's own meta tensor of which these are the facts: (dtype, size, stride or None, offset, place)."""
    dtype, size, stride, offset, _place = facts
    with torch._C.DisableTorchFunction():  # in an estimate, torch.empty makes ours
        if stride is None and not offset:
            made = torch.empty(size, dtype=dtype, device="meta")
        else:
            length = max(extent(size, stride, offset), offset)
            made = torch.empty(length, dtype=dtype, device="meta").as_strided(size, stride or contiguous(size), offset)
    return _core.set_view_bits(made, bits) if bits else made


#: ``with quiet():`` torch code of our own; see there.
quiet = _guards.Quiet
_guards.init(torch)


def filled(
    args: tuple, kwargs: dict[str, Any], tensors: Iterable[Any], device: torch.device, *, any_device: bool = False
) -> tuple[tuple, dict[str, Any]]:
    """The arguments of a call with these tensors in place of ours, and ``device`` in place of ours, or of any."""
    holes = iter(tensors)
    return (
        tuple(_filled(a, holes, device, any_device) for a in args),
        {name: _filled(a, holes, device, any_device) for name, a in kwargs.items()},
    )


def _filled(a: Any, holes: Iterator[Any], device: torch.device, any_device: bool) -> Any:
    if isinstance(a, torch.Tensor):
        return next(holes) if _core.get_handle(a) is not None else a
    if isinstance(a, (tuple, list)) and not isinstance(a, torch.Size):
        return type(a)(_filled(item, holes, device, any_device) for item in a)
    return device if isinstance(a, torch.device) and (any_device or same_device(a)) else a


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
