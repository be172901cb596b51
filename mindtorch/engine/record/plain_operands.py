"""Plain tensors that meet tensors of ours while the default device is one of ours (SPEC C9).

A program that was written for one device mixes what torch puts on the default device with what is plain: arrays of
numpy's, a DataLoader's batches, what was loaded from a file. Plain operands go to the device, as if the program had
said ``.to(device)``, which autograd sees. A call that writes to a plain tensor, or takes elements out of one, comes to
it: what a plain tensor shares memory with sees what is written. Where it writes to one of ours, too, it comes to the
device, and what it wrote goes back.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ... import ops
from ..._ext import lazy as _core
from ...devices.lazy_device import DEVICE_TYPE, device_at
from ...ops import schema
from .mixing import no_ordinary_cpu_tensor
from .predict import tensors_in

__all__ = ["bring_together"]

#: What takes elements out of its first operand: that may be large, and stays where it is.
_TAKES = frozenset({"aten::index", "aten::index_select", "aten::gather", "aten::take", "aten::masked_select"})
#: With `max_norm`, these scale the rows that they look up, in place.
_SCALES_ROWS = frozenset({"embedding", "embedding_bag"})
_WRITES_FIRST = frozenset({"aten::index_put_", "aten::__setitem__"})
_ordinary_function = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]


def bring_together(info: Any, func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """``func(*args, **kwargs)`` with all operands on one device; NotImplemented if they are, or torch moves them."""
    row = ops.about(info.name)
    if row.anywhere or info.name.startswith("python::"):
        return NotImplemented
    apart = row.elsewhere
    if row.tag == "rnn" and len(args) > 3 and isinstance(args[3], (list, tuple)):
        apart = (1,)  # of packed sequences: the batch sizes
    written = _written(info, func, args, kwargs)
    if written and all(_place(t) < 0 for t in written):
        if not any(_joins(t) for t in written):
            return NotImplemented
        return func(*(_to_cpu(a) for a in args), **{name: _to_cpu(a) for name, a in kwargs.items()})
    if info.name in _TAKES and args and isinstance(args[0], torch.Tensor) and _joins(args[0]):
        return func(*(_to_cpu(a) for a in args), **{name: _to_cpu(a) for name, a in kwargs.items()})
    place = max(map(_place, tensors_in([*args, *kwargs.values()])), default=-1)
    if place < 0:
        return NotImplemented
    index = 1 if row.indexed else None  # of a tensor of ours: may be on the CPU
    moved_args = tuple(a if i in apart or i == index else _to_device(a, place) for i, a in enumerate(args))
    moved = {name: a if name in apart else _to_device(a, place) for name, a in kwargs.items()}
    if all(a is b for a, b in zip((*args, *kwargs.values()), (*moved_args, *moved.values()), strict=True)):
        return NotImplemented
    result = func(*moved_args, **moved)
    _write_back(written, (*args, *kwargs.values()), (*moved_args, *moved.values()))
    return result


def _write_back(written: list[torch.Tensor], before: Iterable[Any], moved: Iterable[Any]) -> None:
    """To plain tensors among `written`, what was written to them on the device."""
    plain = {id(t) for t in written if _place(t) < 0}
    if not plain:
        return
    with torch.no_grad():
        for t, there in zip(tensors_in(before), tensors_in(moved), strict=True):
            if t is not there and id(t) in plain:
                t.copy_(there)


def _written(info: Any, func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The operands that the call writes to."""
    name = getattr(func, "__name__", "")
    in_place = info.writes == (0,) or info.name in _WRITES_FIRST or (name.endswith("_") and not name.endswith("__"))
    first = args[:1] if in_place else ()
    in_python = isinstance(func, types.FunctionType)
    names, order = _writes(info.name)
    if in_python:
        names = frozenset() if in_place else frozenset({"weight"}) if name in _SCALES_ROWS else names
    further: list[Any] = []
    if names:
        given = {**dict(zip(order, args, strict=False)), **kwargs}
        if in_python:  # torch's Python code has an order of its own
            given = inspect.signature(func).bind(*args, **kwargs).arguments
        # In evaluation, running statistics are only read; without `max_norm`, so are an embedding's rows.
        only_reads = given.get("training", given.get("use_input_stats")) is False
        only_reads = only_reads or (name in _SCALES_ROWS and given.get("max_norm") is None)
        further = [] if only_reads else [given.get(key) for key in names]
    return tensors_in([*first, kwargs.get("out"), *further])


@functools.cache
def _writes(name: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """(arguments that an ATen op writes to, besides ``out=``, all its arguments in order)."""
    if not name.startswith("aten::") or not hasattr(torch.ops.aten, name.removeprefix("aten::")):
        return frozenset(), ()
    for overload in schema.overloads(name):
        order = schema.argument_names(overload)
        if not schema.has_out(overload) and (found := schema.writes(overload)):
            return frozenset(w if isinstance(w, str) else order[w] for w in found), tuple(order)
    return frozenset(), ()


def _place(t: torch.Tensor) -> int:
    """The index of the remote_accelerator that it is on; negative: it is on none."""
    if _core.get_handle(t) is not None:
        return _core.device_index(t)
    device = t.device if getattr(type(t), "_is_mindtorchs", False) else None  # a sparse one
    return device.index or 0 if device is not None and device.type == DEVICE_TYPE else -1


def _joins(t: torch.Tensor) -> bool:
    """Is this a plain tensor on the CPU, which may be brought elsewhere?"""
    if _core.get_handle(t) is not None or getattr(type(t), "_is_mindtorchs", False) or not t.is_cpu:
        return False
    function = type(t).__torch_function__
    ordinary = getattr(function, "__func__", None) is _ordinary_function or isinstance(t, torch.nn.Parameter)
    return ordinary and not no_ordinary_cpu_tensor(t)


def _to_device(a: Any, place: int) -> Any:
    if isinstance(a, torch.Tensor):
        # A single number joins anything, unless its gradient is to come back to it.
        return a.to(device_at(place)) if _joins(a) and (a.dim() or a.requires_grad) else a
    if isinstance(a, (tuple, list)) and not isinstance(a, torch.Size):
        items = [_to_device(item, place) for item in a]
        return a if all(x is y for x, y in zip(a, items, strict=True)) else _same_kind(a, items)
    return a


def _to_cpu(a: Any) -> Any:
    if isinstance(a, torch.Tensor):
        return a.cpu() if _place(a) >= 0 else a
    if isinstance(a, (tuple, list)) and not isinstance(a, torch.Size):
        return _same_kind(a, [_to_cpu(item) for item in a])
    return a


def _same_kind(a: Any, items: list[Any]) -> Any:
    return type(a)(*items) if hasattr(a, "_fields") else type(a)(items)
