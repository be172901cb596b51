"""Operators that put something on a device that they name, beside a tensor: ``aten::_to_copy``, ``zeros_like`` …

Below Python, C++ takes our tensors for the CPU's: which device is meant, only the call of the operator by name says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["on_named_device"]
_METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
_modes_on = torch._C._len_torch_dispatch_stack


def on_named_device(func: Any) -> Callable[[tuple, dict[str, Any]], Any] | None:
    """What answers a call of this operator by name, by torch's public function; None where it names no device."""
    name = func._schema.name.removeprefix("aten::")
    arguments = [a.name for a in func._schema.arguments]
    if name == "prims::device_put":
        return functools.partial(_answer, torch.Tensor.to, ["self", *arguments[1:]], {})
    if name == "to" and "other" in arguments:
        return functools.partial(_as_other, arguments)
    if func.namespace != "aten" or arguments[0] != "self" or "device" not in arguments:
        return None
    if name in ("to", "_to_copy"):
        return functools.partial(_answer, torch.Tensor.to, arguments, {"copy": True} if name == "_to_copy" else {})
    if name in _METHODS or name.endswith("_like"):
        return functools.partial(_answer, getattr(torch.Tensor if name in _METHODS else torch, name), arguments, {})
    return None


def _answer(public: Any, names: list[str], more: dict[str, Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Dispatch modes hear of the call first; what the last of them calls comes here again."""
    given = dict(zip(names, args)) | kwargs
    if given.get("device") is None or _modes_on():
        return NotImplemented
    given = {name: value for name, value in given.items() if value is not None and name != "pin_memory"} | more
    if public is torch.Tensor.to:
        given.pop("layout", None)  # it takes none
    return public(given.pop("self"), **given)


def _as_other(names: list[str], args: tuple, kwargs: dict[str, Any]) -> Any:
    given = dict(zip(names, args)) | kwargs
    if given["self"].device == given["other"].device or _modes_on():
        return NotImplemented
    other = given.pop("other")
    return torch.Tensor.to(given.pop("self"), other.device, other.dtype, **given)
