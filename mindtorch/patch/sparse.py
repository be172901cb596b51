"""Sparse and quantized tensors on ``remote_accelerator``: torch's own, which know where they are (SPEC L3, L8).

Calls with them run at once, on the values. What comes out is on the device: dense results are lazy tensors, others are
of these classes again. A tensor of torch's becomes one of these by its class: it stays the same object, in its graph,
to C++ what it was where recordings run. So do those in oneDNN's own layout.

The parts of a sparse one (``values()``, ``indices()`` …) are lazy tensors on its own memory. They are put in below
autograd, which makes them views of it as on the CPU: gradients, version counters and refused writes are torch's.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.autograd.grad_mode import _force_original_view_tracking
from torch.utils._python_dispatch import TorchDispatchMode

from .._ext import lazy as _core
from ..devices import mode
from ..devices.lazy_device import index_of, torch_device
from ..devices.places import RECORDED, where
from ..engine.execute import tensors, values
from ..engine.record import eager, intercept, mixing
from ..engine.record.arguments import tensors_in, to_options
from ..engine.semantics import phases
from ..engine.tensor import queues

__all__ = ["KeptTensor", "Lent", "QuantizedTensor", "SparseTensor", "label", "storage_of"]
_base: Any = torch.Tensor
_below: Any = torch._C._disabled_torch_function_impl
_info = functools.cache(functools.partial(intercept.describe, dispatch=False))
#: What gives out the memory that the tensor itself is made of: a write to it is one to the tensor.
_PARTS = frozenset({"_values", "_indices", "values", "indices", "crow_indices", "col_indices", "ccol_indices",
                    "row_indices"})  # fmt: skip


class Lent(dict[int, Any]):
    """Memory that sparse or nested tensors share with lazy ones: by storage, a lazy tensor on it."""

    def __init__(self, reason: str = "sparse") -> None:
        super().__init__()
        self.reason = reason  # for which recordings are run
        self._memory: dict[int, torch.UntypedStorage] = {}  # by address
        self._executor: Callable[[], Any] = lambda: None  # the one that has what is lent

    def is_here(self) -> bool:
        """Does the executor in use have what is lent?"""
        return self._executor() is values.executor()

    def lend(self, part: torch.Tensor, index: int) -> Any:
        """A lazy tensor that is on the memory of ``part``."""
        tensors.in_use()
        value = part.data  # versions are counted where writes are recorded, not where they run
        if storage_of(value) not in self:
            self.share(value, index, None)
        return eager.held(value, index, False, self[storage_of(value)])

    def share(self, part: torch.Tensor, index: int, made_of: Any) -> None:
        """``part`` is memory of the lazy tensor ``made_of`` (None: of no other)."""
        self[storage_of(part)] = eager.held(part.data, index, True, made_of)
        self._memory[storage_of(part)] = part.untyped_storage()
        self._executor = weakref.ref(values.executor())
        _lenders[id(self)] = self

    def settle(self) -> None:
        """Run what was recorded as written to the memory, and what reads it before it is written here."""
        if self:
            roots = list(self.values())
            values.materialize(roots, self.reason, roots)
            values.executor().bring(list(self._memory.values()))


_lenders: weakref.WeakValueDictionary[int, Lent] = weakref.WeakValueDictionary()


def _settle_all() -> None:
    """Autograd's kernels read what it saved of sparse tensors, below every call that could be seen here."""
    for lent in list(_lenders.values()):
        if lent.is_here():  # what another executor had was settled when this one took over
            lent.settle()


phases.before_backward.append(_settle_all)
values.before_change(_settle_all)


class _Lending(TorchDispatchMode):
    """Lets what an operation gives be a lazy tensor on the memory of ``source``, of which it is a part."""

    def __init__(self, source: KeptTensor) -> None:
        super().__init__()
        self.source = source

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        lends = isinstance(out, torch.Tensor) and _core.get_handle(out) is None and out.layout is torch.strided
        return self.source._lent.lend(out, self.source._index) if lends else out


class KeptTensor(torch.Tensor):
    """A tensor on ``remote_accelerator`` that is none of ours, since it is not a dense one."""

    _is_mindtorchs = True
    _index: int
    _lent: Lent  # the same one in all sparse tensors that share memory

    @property
    def device(self) -> Any:  # type: ignore[override]
        return torch_device(self._index)

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return self._index

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if mode.now.meets is not None:
            out = mode.now.meets(_info(func), func, args, kwargs or {})
            if out is not NotImplemented:
                return out
        with torch._C.DisableTorchFunctionSubclass():
            mixing.mixed_devices(_info(func), args, kwargs)
        ours = [t for t in tensors_in([*args, *(kwargs or {}).values()]) if isinstance(t, KeptTensor)]
        for t in ours:
            t._settle()
        if getattr(func, "__name__", "").partition(".")[0] in _PARTS:
            # Autograd must know parts by what made them: below them, views of lazy tensors build on that.
            with _force_original_view_tracking(True), _Lending(ours[0]):
                return _below(func, types, args, kwargs or {})
        out, device = _below(func, types, args, kwargs or {}), (kwargs or {}).get("device")
        return out if device is not None and where(device) is not RECORDED else _on_device(out, ours)

    def _settle(self) -> None:
        """Have written what was recorded as written to parts of it."""
        self._lent.settle()

    def _copied_to(self, device: Any, dtype: Any) -> Any:
        self._settle()
        with torch._C.DisableTorchFunctionSubclass():
            if self.layout is torch._mkldnn:  # type: ignore[attr-defined]  # has no copy to another memory format
                return _base.to(_base.clone(self), device=device, dtype=dtype)
            return _base.to(self, device=device, dtype=self.dtype if dtype is None else dtype, copy=True)

    def to(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        first = args[0] if args else kwargs.get("device", kwargs.get("tensor"))
        target = first.device if isinstance(first, torch.Tensor) else first
        if target is None or isinstance(target, (torch.dtype, type)):
            return super().to(*args, **kwargs)
        dtype, _non_blocking, _format = to_options(args, kwargs)
        if where(target) is not RECORDED:
            return self._copied_to(str(target), dtype)
        there = index_of(target) == self._index
        if there and dtype in (None, self.dtype) and not kwargs.get("copy"):
            return self
        return label(self._copied_to(values.executor().device, dtype), index_of(target))

    def cpu(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return self._copied_to("cpu", None)

    def cuda(self, device: Any = None, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return self._copied_to("cuda" if device is None else device, None)

    def new(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Torch's old constructor, which reads indices and values in C++: optimizers call it."""
        self._settle()
        given = (
            tensors.to_plain(a, values.executor().device, "new") if _core.get_handle(a) is not None else a for a in args
        )
        with torch._C.DisableTorchFunctionSubclass():
            return label(_base.new(self, *given, **kwargs), self._index)

    def __copy__(self) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            copied = self.detach().requires_grad_(self.requires_grad)
        return label(copied, self._index, self._lent)

    def __deepcopy__(self, memo: dict) -> Any:
        if id(self) not in memo:
            with torch._C.DisableTorchFunctionSubclass():
                plain = self._copied_to(values.executor().device, None)
                if not self.is_leaf:
                    copy.deepcopy(plain, memo)  # refuses, in torch's words
                copied = label(plain.detach().requires_grad_(self.requires_grad), self._index)
            memo[id(self)] = copied
            if self.grad is not None:
                copied.grad = copy.deepcopy(self.grad, memo)
            own = {name: value for name, value in self.__dict__.items() if name not in copied.__dict__}
            copied.__dict__.update(copy.deepcopy(own, memo))
        return memo[id(self)]

    @queues.told_at_the_other_end
    def __reduce_ex__(self, protocol: Any) -> Any:
        # A saved tensor of ours loads as a plain one (SPEC L7).
        plain = self._copied_to("cpu", None).detach().requires_grad_(self.requires_grad)
        return plain.__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        self._settle()
        return "tensor(" + super().__repr__(tensor_contents=tensor_contents).removeprefix(f"{type(self).__name__}(")


class SparseTensor(KeptTensor):
    """A sparse tensor on ``remote_accelerator``."""


class QuantizedTensor(KeptTensor):
    """A quantized tensor on ``remote_accelerator``."""


def _kind(t: torch.Tensor) -> type[KeptTensor] | None:
    """The class by which a tensor of torch's own knows where it is; None where it is a dense one, or nested."""
    if t.layout in mixing.SPARSE:
        return SparseTensor
    if t.is_quantized:
        return QuantizedTensor
    return None if t.layout is torch.strided or t.is_nested else KeptTensor


def label(t: Any, index: int, lent: Lent | None = None, given: Mapping[int, Any] | None = None) -> Any:
    """Let ``t``, a result on device ``index``, know that it is there, if it is a tensor of torch's own that can.

    given: by storage, the lazy tensors that it may have been made of.
    """
    kind = _kind(t) if type(t) is torch.Tensor else None
    if kind is not None:
        t.__class__ = kind
        t._index, t._lent = index, Lent() if lent is None else lent
        for part in mixing.parts(t) if given else ():
            if (made_of := (given or {}).get(values.executor().home(part.untyped_storage()))) is not None:
                t._lent.share(part, index, made_of)
    return t


def storage_of(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata


def _sharing(t: torch.Tensor, sources: list[KeptTensor]) -> Lent | None:
    """What those of ``sources`` lend whose memory a result has, if there is one."""
    memory = set(map(storage_of, mixing.parts(t)))
    return next((s._lent for s in sources if not memory.isdisjoint(map(storage_of, mixing.parts(s)))), None)


def _on_device(out: Any, sources: list[KeptTensor]) -> Any:
    """What a call gave, where those of its operands are."""
    if isinstance(out, (tuple, list)) and not isinstance(out, torch.Size):
        items = [_on_device(item, sources) for item in out]
        return type(out)(items) if type(out) in (tuple, list) or not hasattr(out, "_fields") else type(out)(*items)
    if type(out) is not torch.Tensor or out.is_nested:
        return out
    index = sources[0]._index
    if _kind(out) is not None:
        return label(out, index, _sharing(out, sources))
    if out.device != values.executor().device:
        return out
    if out.requires_grad and torch.is_grad_enabled():
        return tensors.from_plain(out, index)
    tensors.in_use()
    return eager.held(out.detach(), index, torch.is_grad_enabled())
