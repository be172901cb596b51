"""Random numbers under ``torch.vmap`` (SPEC L7): its rules draw in C++, from the generator of the device they see.

To C++ a lazy tensor is on the CPU. So while a function is mapped over lazy tensors, the lazy device's generator stands
in for the CPU's, and what would be recorded with a draw in it runs at once: then all draws come in program order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import vmap as _torch_vmap

from . import intercept, tensors
from ._ext import intercept as _intercept
from ._ext import lazy as _core

__all__ = ["draw", "flat_vmap"]
_CPU = torch.device("cpu")
_functorch = torch._C._functorch
_torch_flat_vmap = _torch_vmap._flat_vmap


@functools.wraps(_torch_flat_vmap)
def flat_vmap(func: Any, batch_size: int, flat_in_dims: Any, flat_args: list[Any], args_spec: Any, out_dims: Any,
              randomness: str, **kwargs: Any) -> Any:
    """Stand-in for ``torch._functorch.vmap._flat_vmap``, through which every vmap goes."""
    index = None
    if randomness != "error" and not torch.compiler.is_compiling():
        index = next((i for i in map(_device_index, flat_args) if i is not None), None)
    if index is None:
        return _torch_flat_vmap(func, batch_size, flat_in_dims, flat_args, args_spec, out_dims, randomness, **kwargs)
    tensors.materialize([], "vmap", generator=index)
    with tensors.executor().rng(index):
        _intercept.draw_at_once(True)
        try:
            return _torch_flat_vmap(func, batch_size, flat_in_dims, flat_args, args_spec, out_dims, randomness,
                                    **kwargs)
        finally:
            _intercept.draw_at_once(False)


def _device_index(t: Any) -> int | None:
    if not isinstance(t, torch.Tensor):
        return None
    while _functorch.is_functorch_wrapped_tensor(t):
        t = _functorch.get_unwrapped(t)
    return None if _core.get_handle(t) is None else _core.device_index(t)


def draw(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any], index: int) -> Any:
    """What a random creation function makes inside a transform: vmap decides how many are drawn, or refuses."""
    intercept.note_fallback(f"aten::{func.__name__}")
    tensors.materialize([], func.__name__, generator=index)
    with torch._C.DisableTorchFunction(), tensors.executor().rng(index):
        return _lazy_inside(func(*args, device=_CPU, **kwargs), index)


def _lazy_inside(t: torch.Tensor, index: int) -> Any:
    if _functorch.is_batchedtensor(t):
        inner = _lazy_inside(_functorch.get_unwrapped(t), index)
        return _functorch._add_batch_dim(inner, _functorch.maybe_get_bdim(t), _functorch.maybe_get_level(t))
    if _functorch.is_gradtrackingtensor(t):
        inner = _lazy_inside(_functorch.get_unwrapped(t), index)
        return _functorch._wrap_for_grad(inner, _functorch.maybe_get_level(t))
    return tensors.from_plain(t, index)
