"""Creation functions with ``device="npu[:i]"`` (SPEC D5, D6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .._ext import blocks as _blocks
from .._ext import streams
from ..base.errors import UnsupportedOperationError
from ..base.sourceline import named
from ..engine.execute import tensors
from ..engine.record.predict import quiet
from .counts import queued
from .moves import faked, fakes, index_of, move, pin_memory, pins, upload
from .random import drawing
from .tensor import NpuTensor, block_of, empty, is_npu, of_this_mode

_FROM_DATA = frozenset({"tensor", "as_tensor", "asarray"})
_UNINITIALIZED = frozenset({"empty", "empty_strided", "empty_permuted", "empty_like"})
_CPU = torch.device("cpu")
_META = torch.device("meta")


def create(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """The NPU tensor that ``func(*args, **kwargs)`` makes; ``kwargs["device"]`` is an NPU.

    Raises ``RuntimeError`` with the reason where there is no such device.
    """
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None and fakes():
        return _fake(func, args, dict(kwargs), faked(kwargs["device"]))
    streams.follow()
    kwargs = dict(kwargs)
    index = index_of(kwargs.pop("device"))
    name = func.__name__
    out = kwargs.get("out")
    if out is not None:
        if not is_npu(out) or block_of(out).device != index:
            raise RuntimeError(f"[{name}] expected out= on npu:{index}, got {out.device}")
        return func(*args, **kwargs)
    if kwargs.pop("pin_memory", False):
        raise RuntimeError("Only dense CPU tensors can be pinned")
    requires_grad = kwargs.pop("requires_grad", False)
    made = named(f"torch.{name}", _from_data if name in _FROM_DATA else _make, func, args, kwargs, index)
    if name not in _FROM_DATA:
        made = of_this_mode(made)
    return made.requires_grad_() if requires_grad else made


def _fake(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any], device: torch.device) -> Any:
    """What FakeTensorMode makes there: a tensor without data."""
    if func.__name__ not in _FROM_DATA:
        return func(*args, **{**kwargs, "device": device})
    requires_grad = kwargs.pop("requires_grad", False)
    made = func(*args, **{**kwargs, "device": _CPU})  # C++ would make memory for the data
    made = torch.ops.aten.to.dtype_layout(made, device=device)
    return made.requires_grad_() if requires_grad else made


def create_pinned(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
    """What ``func(*args, **kwargs)`` makes on the CPU, in memory from which copies to an NPU need not wait.

    Where no NPU is the accelerator, torch's own function decides.
    """
    if not pins():
        return func(*args, **kwargs)
    made = pin_memory(func(*args, **{**kwargs, "pin_memory": False, "requires_grad": False}))
    return made.requires_grad_(bool(kwargs.get("requires_grad", False)))


def _from_data(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any], index: int) -> Any:
    data = args[0] if args else kwargs.get("data")
    if not isinstance(data, torch.Tensor):
        if args:
            args = (_numbers(data), *args[1:])
        return of_this_mode(upload(func(*args, device=_CPU, **kwargs), index))
    source = data if func.__name__ == "as_tensor" else data.detach()  # the others cut the graph
    if kwargs.get("dtype") is not None:
        source = source.to(kwargs["dtype"])
    made = move(source, f"npu:{index}")
    copied = func.__name__ == "tensor" or kwargs.get("copy")
    return made.clone() if copied and made is source else made


def _numbers(data: Any) -> Any:
    """Lists with NPU tensors in them as torch's C++ code can read them."""
    if isinstance(data, (list, tuple)):
        return type(data)(_numbers(item) for item in data) if type(data) in (list, tuple) else data
    return data.cpu() if is_npu(data) else data


def _make(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any], index: int) -> NpuTensor:
    name = func.__name__
    with quiet() as inside:
        if name in _UNINITIALIZED or name.startswith("zeros"):
            shape = func(*_stand_ins(args, name.endswith("_like")), device=_META, **kwargs)
            if shape.layout is torch.strided:
                made = empty(shape.shape, shape.stride(), shape.dtype, index)
                if name.startswith("zeros"):
                    block = block_of(made)
                    _blocks.fill(block, 0, 0, block.nbytes)
                    queued(index, f"torch.{name}")
                return made
        inside.also(drawing(index))
        plain = func(*_stand_ins(args, False), device=_CPU, **kwargs)
        if plain.layout is not torch.strided or plain.is_quantized:
            raise UnsupportedOperationError(f"[{name}] npu holds dense strided tensors, asked for {plain.layout}")
        return upload(plain, index)


def _stand_ins(args: tuple, like: bool) -> tuple:
    """Tensor arguments as plain ones: of ``*_like`` on meta, for its sizes; else numbers and data, on the CPU."""
    return tuple(_stand_in(a, like) for a in args)


def _stand_in(a: Any, like: bool) -> Any:
    if type(a) in (list, tuple):
        return type(a)(_stand_in(item, like) for item in a)
    if not isinstance(a, torch.Tensor):
        return a
    if like:
        return torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=_META)
    return a.detach().cpu() if is_npu(a) or isinstance(a, tensors.LazyTensor) else a
