"""``flex_attention`` on the device: torch takes tensors on the devices that it names only, and compiles what it gets.

So it runs now, on the values, as it would on the CPU (where torch has no backward for it); the result is on the device.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from . import tensors
from ._ext import lazy as _core
from .errors import LazyTensorError

__all__ = ["restore", "stand_in"]
_replaced: list[tuple[Any, Any]] = []


def stand_in(module: Any) -> None:
    """Let ``torch.nn.attention.flex_attention.flex_attention`` take tensors of ours; earlier names of it do not."""
    original = module.flex_attention
    _replaced.append((module, original))
    module.flex_attention = _flexible(original, module)


def restore() -> None:
    """Put torch's own function back."""
    while _replaced:
        module, original = _replaced.pop()
        module.flex_attention = original


def _flexible(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def flex_attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or _core.get_handle(query) is None:
            return original(query, key, value, *args, **kwargs)
        index = _core.device_index(query)
        if index < 0:
            raise LazyTensorError("[flex_attention] expected tensors with values, got tensors without data")
        query, key, value = (_on_values(t) for t in (query, key, value))
        args = tuple(_on_values(a) for a in args)
        kwargs = {name: _on_values(a) for name, a in kwargs.items()}
        # Uncompiled: Dynamo looks up by name what our copies of the program's functions have under another value.
        compiles = module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
        module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
        try:
            out = original(query, key, value, *args, **kwargs)
        finally:
            module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = compiles
        return tree_map_only(torch.Tensor, lambda t: tensors.from_plain(t, index), out)

    return flex_attention


def _on_values(a: Any) -> Any:
    """Tensors, masks of blocks, and functions that refer to tensors: on the CPU, differentiably."""
    if isinstance(a, torch.Tensor):
        return a if _core.get_handle(a) is None else tensors.to_plain(a, "cpu", "flex_attention")
    if isinstance(a, types.FunctionType):
        return _function_on_values(a)
    if hasattr(a, "mask_mod") and hasattr(a, "as_tuple"):  # a BlockMask
        moved = a.to("cpu")
        moved.mask_mod = _on_values(a.mask_mod)
        return moved
    return a


def _function_on_values(function: types.FunctionType) -> types.FunctionType:
    inside = function.__closure__ or ()
    cells = [_on_values(cell.cell_contents) for cell in inside]
    known = function.__globals__
    named = {name: _on_values(known[name]) for name in function.__code__.co_names
             if isinstance(known.get(name), torch.Tensor)}
    if all(new is cell.cell_contents for new, cell in zip(cells, inside, strict=True)) and not named:
        return function
    made = types.FunctionType(function.__code__, {**known, **named} if named else known, function.__name__,
                              function.__defaults__, tuple(types.CellType(new) for new in cells))
    made.__kwdefaults__ = function.__kwdefaults__
    return made
