"""Jagged tensors made of lazy ones: torch's own, whose calls run at once, on the values (SPEC L7, L8).

One that is a view of a lazy tensor is on that tensor's memory. What was recorded as written to it is run before a call
with the view, and what the call gives of that memory is a lazy tensor on it: both sides see each other's writes.
Random numbers come from the generator of the device.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nested._internal.nested_tensor import NestedTensor
from torch.utils.weak import WeakIdKeyDictionary

from .._ext import intern as _intern
from .._ext import lazy as _core
from ..base.patching import Patch
from ..engine.execute import values
from ..engine.record import eager, intercept
from ..engine.record.arguments import tensors_in
from ..engine.tensor import queues
from ..engine.tensor.recorded import RecordedTensor
from . import generators, sparse

__all__ = ["patches"]
_made = WeakIdKeyDictionary()  # jagged tensors made of lazy ones -> (the memory that they share, the device's index)
_infos: dict[Any, Any] = {}
_torchs_function: Any = NestedTensor.__torch_function__.__func__  # type: ignore[attr-defined]
_torchs: Any = NestedTensor.__torch_dispatch__.__func__  # type: ignore[attr-defined]
_torchs_reduce: Any = NestedTensor.__reduce_ex__
#: What gives out the memory of the tensor, when the program calls it; torch's own code wants plain tensors of it.
_PARTS = frozenset({torch._nested_get_values, torch.Tensor.unbind, torch.unbind})  # type: ignore[attr-defined]


class _Asked(threading.local):
    parts = False  # does the program ask for parts?


_asked = _Asked()


@functools.wraps(_torchs_function)
def _function(cls: Any, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
    if not _made:
        return _torchs_function(cls, func, types, args, kwargs)
    of = _settled(args, kwargs)
    before, _asked.parts = _asked.parts, func in _PARTS
    try:
        # Attention draws on the values, where no jagged tensor sees it.
        with _drawing(of) if generators.may_draw(getattr(func, "__name__", ""), args, kwargs or {}) else nullcontext():
            return _marked(_torchs_function(cls, func, types, args, kwargs), of, False)
    finally:
        _asked.parts = before


@functools.wraps(_torchs)
def _jagged(cls: Any, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
    of = _settled(args, kwargs) if _made else []
    parts, _asked.parts = _asked.parts and not args[0].requires_grad, False
    if any(issubclass(t, RecordedTensor) for t in types):
        # It would make a jagged tensor of lazy values and plain offsets. Those stay torch's own: it runs eagerly.
        out = eager.run_eagerly(_info(func), args, kwargs or {})
    else:
        with _drawing(of) if of and _info(func).random else nullcontext():
            out = _torchs(cls, func, types, args, kwargs)
    return _marked(out, of, parts)


def _drawing(of: list[Any]) -> AbstractContextManager[object]:
    """A block in which torch draws for operands that are ``of`` a device: from its generator."""
    return generators.drawing_from(of[0][1], "nested") if of else nullcontext()


def _settled(args: tuple, kwargs: Any) -> list[Any]:
    """(shared memory, device) of the operands that are made of lazy tensors, with nothing left to be written to it."""
    of = [_made[t] for t in tensors_in([*args, *(kwargs or {}).values()]) if t in _made]
    for lent, _index in of:
        lent.settle()
    return of


@queues.told_at_the_other_end
@functools.wraps(_torchs_reduce)
def _reduce(self: Any, protocol: Any) -> Any:
    _settled((self,), None)
    return _torchs_reduce(self, protocol)


def _marked(out: Any, of: list[Any], lend: bool) -> Any:
    """What a call gave whose operands are ``of`` a device: jagged tensors know it, and the memory that they share.

    ``lend``: other tensors on that memory become lazy ones.
    """
    if not of:
        return out
    if type(out) in (tuple, list):  # not a shape
        return type(out)(_marked(item, of, lend) for item in out)
    if not isinstance(out, torch.Tensor) or _core.get_handle(out) is not None or out in _made:
        return out
    jagged = isinstance(out, NestedTensor)
    memory = sparse.storage_of(out._values if jagged else out) if jagged or lend else None
    for lent, index in of:
        if memory in lent:
            if not jagged:
                with torch.inference_mode(False):  # the view is no inference tensor: it was made in an eager run
                    return lent.lend(out, index)
            _made[out] = lent, index
            return out
    if jagged and not out._values.is_meta:  # torch has one of meta that all jagged tensors name
        _made[out] = sparse.Lent("nested"), of[0][1]
    return out


def _info(func: Any) -> Any:
    info = _infos.get(func)
    if info is None:
        known = intercept.describe(func, True)
        made = _intern.OpInfo(
            func,
            known.name,
            _intern.EAGER,
            random=known.random,
            writes=known.writes,
            call=lambda *args, **kwargs: _torchs(NestedTensor, func, (NestedTensor,), args, kwargs),
        )
        info = _infos.setdefault(func, made)
    return info


def _label(t: Any, index: int, given: Mapping[int, Any] | None = None) -> Any:
    """Let ``t``, a result on device ``index``, know that it is there, or which of the ``given`` it is on."""
    if not isinstance(t, NestedTensor):
        return sparse.label(t, index, None, given)
    lent = sparse.Lent("nested")
    for part in (t._values, t._offsets, t._lengths):
        made_of = None if part is None else (given or {}).get(values.executor().home(part.untyped_storage()))
        if made_of is not None:
            lent.share(part, index, made_of)
    _made[t] = lent, index
    return t


eager.set_label(_label)


def patches() -> list[Patch]:
    """(owner, name, stand-in) of what torch's own classes of tensors do with tensors of ours among their operands."""
    return [
        (NestedTensor, "__torch_function__", classmethod(_function)),
        (NestedTensor, "__torch_dispatch__", classmethod(_jagged)),
        (NestedTensor, "__reduce_ex__", _reduce),
    ]
