"""``flex_attention`` on the device: torch takes tensors on the devices that it names only, and compiles what it gets.

So it runs now, on the values, as it would on the CPU (where torch has no backward for it); the result is on the device.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .._ext import lazy as _core
from ..base.errors import LazyTensorError, UnsupportedOperationError
from ..base.patching import Patch, with_names
from ..devices.lazy_device import DEVICE_TYPE
from ..engine.execute import tensors

__all__ = ["patches", "run", "without_data"]


def patches(module: Any) -> list[Patch]:
    """Let ``flex_attention`` take tensors of ours, by whatever name the program has it.

    Torch's check of the device gets one more name to compare with; what torch compiles after it comes to `run`: see
    tracing.
    """
    check = module._validate_device
    # Which names they are is each release's own.
    constants = tuple(
        c | {DEVICE_TYPE} if isinstance(c, frozenset) and {"cpu", "cuda"} <= c else c for c in check.__code__.co_consts
    )
    for cls in tensors.TYPES:  # where the program has told torch not to compile
        module.flex_attention_hop.python_key_table.setdefault(cls, run)
    code = check.__code__.replace(co_consts=constants)
    return [(module, "_validate_device", types.FunctionType(code, vars(module), check.__name__))]


def without_data(*args: Any) -> Any:
    """``flex_attention_hop(query, ...)`` in an estimate: what torch computes where nobody compiles it, step by step."""
    if torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
        raise UnsupportedOperationError(
            "[flex_attention] expected a call without gradients, since an estimate does not know its backward pass: "
            "use torch.no_grad(), or scaled_dot_product_attention"
        )
    return importlib.import_module("torch._higher_order_ops.flex_attention").sdpa_dense(*args)


def run(*args: Any) -> Any:
    """``flex_attention_hop(query, ...)`` of lazy tensors: uncompiled, since Dynamo looks up by name what our copies of
    the program's functions have under another value."""
    from torch.nn.attention import flex_attention as module

    index = _core.device_index(args[0])
    if index < 0:
        raise LazyTensorError("[flex_attention] expected tensors with values, got tensors without data")
    args = tuple(_on_values(a) for a in args)
    module._validate_device(*args[:3])
    out = module.flex_attention_hop(*args)
    return tree_map_only(torch.Tensor, lambda t: tensors.from_plain(t, index), out)


def _on_values(a: Any) -> Any:
    """Tensors, masks of blocks, and functions that refer to tensors: on the CPU, differentiably."""
    if isinstance(a, torch.Tensor):
        return a if _core.get_handle(a) is None else tensors.to_plain(a, "cpu", "flex_attention")
    if isinstance(a, types.FunctionType):
        return _function_on_values(a)
    if isinstance(a, tuple):  # a mask of blocks
        return tuple(_on_values(item) for item in a)
    return a


def _function_on_values(function: types.FunctionType) -> types.FunctionType:
    inside = function.__closure__ or ()
    cells = [_on_values(cell.cell_contents) for cell in inside]
    known = function.__globals__
    named = {
        name: _on_values(known[name])
        for name in function.__code__.co_names
        if isinstance(known.get(name), torch.Tensor)
    }
    if all(new is cell.cell_contents for new, cell in zip(cells, inside, strict=True)) and not named:
        return function
    return with_names(function, named, tuple(types.CellType(new) for new in cells))
