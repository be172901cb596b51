"""Calls on lists of tensors of which each may be somewhere else: one call for each of them (SPEC R5)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..._ext import lazy as _core
from .eager import lists_are_apart

__all__ = ["guard", "one_by_one"]

_EACH = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")


def guard(name: str) -> Callable[[], bool] | None:
    """What says whether a call of this operator may be recorded whole now. None: always."""
    return (lambda: not lists_are_apart()) if name.startswith(_EACH) else None


def one_by_one(func: Any) -> Callable[[tuple, dict[str, Any]], Any] | None:
    """What answers such a call where the executor has no one place for a list: torch, too, computes what is of one
    tensor from that and its fellows in the other lists alone. None for other operators."""
    lists = [a.name for a in func._schema.arguments if str(a.type) in ("List[Tensor]", "List[number]")]
    returned = [str(r.type) for r in func._schema.returns]
    names = [a.name for a in func._schema.arguments]
    if not func._schema.name.startswith(_EACH) or names[:1] != lists[:1] or returned not in ([], ["List[Tensor]"]):
        return None
    return functools.partial(_answer, func, names, set(lists), bool(returned))


def _answer(func: Any, names: list[str], lists: set[str], gives: bool, args: tuple, kwargs: dict[str, Any]) -> Any:
    fellows = [t for t in args[0] if isinstance(t, torch.Tensor)]
    if len(fellows) < 2 or _core.device_index(fellows[0]) < 0 or not lists_are_apart():
        return NotImplemented

    def one(name: str, value: Any, k: int) -> Any:
        apart = (name in lists and len(value) == len(fellows)) or (
            name == "scalars" and isinstance(value, torch.Tensor)
        )
        return value[k : k + 1] if apart else value

    found = [
        func(
            *(one(name, value, k) for name, value in zip(names, args)),
            **{name: one(name, value, k) for name, value in kwargs.items()},
        )
        for k in range(len(fellows))
    ]
    return [each[0] for each in found] if gives else None
