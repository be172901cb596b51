"""What mapping a function over lazy tensors does in C++, on the device that is seen there (SPEC L7): torch's own rules.

``torch.vmap`` draws random numbers there, from the generator of the device it sees.

To C++ a lazy tensor is on the CPU. So while a function is mapped over lazy tensors, the lazy device's generator stands
in for the CPU's, and what would be recorded with a draw in it runs at once: then all draws come in program order.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import _vmap_internals
from torch._functorch import eager_transforms as _transforms
from torch._functorch import vmap as _torch_vmap
from torch.autograd import functional
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .._ext import intercept as _intercept
from ..base.patching import Patch
from ..engine.execute import tensors, values
from ..engine.record import eager
from ..engine.record.unwrapping import index_inside
from . import wrappers

__all__ = ["draw", "flat_vmap", "patches"]
_CPU = torch.device("cpu")
_functorch = torch._C._functorch
_torch_flat_vmap = _torch_vmap._flat_vmap


@functools.wraps(_torch_flat_vmap)
def flat_vmap(
    func: Any,
    batch_size: int,
    flat_in_dims: Any,
    flat_args: list[Any],
    args_spec: Any,
    out_dims: Any,
    randomness: str,
    **kwargs: Any,
) -> Any:
    """Stand-in for ``torch._functorch.vmap._flat_vmap``, through which every vmap goes."""
    index = None
    if randomness != "error" and not torch.compiler.is_compiling():
        index = next((i for i in map(index_inside, flat_args) if i is not None), None)
    if index is None:
        return _torch_flat_vmap(func, batch_size, flat_in_dims, flat_args, args_spec, out_dims, randomness, **kwargs)
    values.materialize([], "vmap", generator=index)
    with values.lock, values.executor().rng(index):
        _intercept.draw_at_once(True)
        try:
            return _torch_flat_vmap(
                func, batch_size, flat_in_dims, flat_args, args_spec, out_dims, randomness, **kwargs
            )
        finally:
            _intercept.draw_at_once(False)


def _wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
    """Stand-in for functions that put a transform around a tensor: from the first of ours, ``.device`` looks inside."""

    @functools.wraps(original)
    def wrap(t: Any, *args: Any) -> Any:
        if index_inside(t) is not None:
            wrappers.watch()
        return original(t, *args)

    return wrap


def draw(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any], index: int) -> Any:
    """What a random creation function makes inside a transform: vmap decides how many are drawn, or refuses."""
    eager.note_fallback(f"aten::{func.__name__}")
    values.materialize([], func.__name__, generator=index)
    with torch._C.DisableTorchFunction(), values.lock, values.executor().rng(index):
        return _lazy_inside(func(*args, device=_CPU, **kwargs), index)


def _lazy_inside(t: torch.Tensor, index: int) -> Any:
    if _functorch.is_batchedtensor(t):
        inner = _lazy_inside(_functorch.get_unwrapped(t), index)
        return _functorch._add_batch_dim(inner, _functorch.maybe_get_bdim(t), _functorch.maybe_get_level(t))
    if _functorch.is_gradtrackingtensor(t):
        inner = _lazy_inside(_functorch.get_unwrapped(t), index)
        return _functorch._wrap_for_grad(inner, _functorch.maybe_get_level(t))
    return tensors._upload(t, index)  # no transform is told of the copy: it becomes theirs as the plain draw was


class _ZerosOfRules(TorchDispatchMode):
    """Torch's older vmap (of ``autograd.grad(is_grads_batched=True)``, vectorized Jacobians) makes zeros to take in the
    gradient of a slice; as a lazy tensor is on the CPU to C++, they would be plain."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        # Calls from Python say `pin_memory=False`; these take over what one tensor has for another.
        if func is torch.ops.aten.zeros.default and "pin_memory" not in (kwargs or {}) and out.device == _CPU:
            return tensors.from_plain(out, self.index)
        return out


_torch_older_vmap = _vmap_internals._vmap


@functools.wraps(_torch_older_vmap)
def _older_vmap(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    mapped = _torch_older_vmap(func, *args, **kwargs)

    @functools.wraps(func)
    def call(*inputs: Any) -> Any:
        indices = (index_inside(t) for t in _pytree.tree_leaves(inputs))
        index = next((i for i in indices if i is not None and i >= 0), None)
        if index is None:
            return mapped(*inputs)
        with _ZerosOfRules(index):
            return mapped(*inputs)

    return call


def patches() -> list[Patch]:
    """(owner, name, stand-in) of what begins a transform; of the older vmap, wherever torch has a name for it."""
    gradcheck = importlib.import_module("torch.autograd.gradcheck")  # torch.autograd has a function of that name
    begins = (
        (_torch_vmap, "_add_batch_dim"),
        (_transforms, "_wrap_for_grad"),
        (_transforms, "_wrap_functional_tensor"),
    )
    return [
        (_torch_vmap, "_flat_vmap", flat_vmap),
        *((owner, name, _wrapping(getattr(owner, name))) for owner, name in begins),
        *((owner, "_vmap", _older_vmap) for owner in (_vmap_internals, functional, gradcheck)),
    ]
