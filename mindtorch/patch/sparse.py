"""Sparse tensors on ``remote_accelerator``: torch's own, which know where they are (SPEC L3, L8).

Calls with them run at once, on the values. What comes out is on the device: dense results are lazy tensors, sparse ones
are of this class again. A sparse tensor of torch's becomes one of these by its class: it stays the same object, in its
graph, to C++ a sparse tensor where recordings run.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch

from .._ext import lazy as _core
from ..devices.lazy_device import index_of, is_ours, torch_device
from ..engine.execute import tensors, values
from ..engine.record import eager, intercept, mixing
from ..engine.record.arguments import tensors_in, to_options

__all__ = ["SparseTensor", "label"]
_base: Any = torch.Tensor
_below: Any = torch._C._disabled_torch_function_impl
_info = functools.cache(functools.partial(intercept.describe, dispatch=False))
#: What gives out the memory that the tensor itself is made of: a write to it is one to the tensor.
_PARTS = frozenset({"_values", "_indices", "values", "indices", "crow_indices", "col_indices", "ccol_indices",
                    "row_indices"})  # fmt: skip


class SparseTensor(torch.Tensor):
    """A sparse tensor on ``remote_accelerator``."""

    _is_mindtorchs = True
    _index: int
    _lent: list[Any]  # lazy tensors that share memory with it, or with what it shares memory with

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
        with torch._C.DisableTorchFunctionSubclass():
            mixing.mixed_devices(_info(func), args, kwargs)
        ours = [t for t in tensors_in([*args, *(kwargs or {}).values()]) if isinstance(t, SparseTensor)]
        for t in ours:
            t._settle()
        out = _below(func, types, args, kwargs or {})
        return _on_device(out, ours[0], getattr(func, "__name__", "") in _PARTS)

    def _settle(self) -> None:
        """Have written what was recorded as written to parts of it."""
        if self._lent:
            values.materialize(self._lent, "sparse")

    def _copied_to(self, device: Any, dtype: Any) -> Any:
        self._settle()
        with torch._C.DisableTorchFunctionSubclass():
            return _base.to(self, device=device, dtype=self.dtype if dtype is None else dtype, copy=True)

    def to(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        first = args[0] if args else kwargs.get("device", kwargs.get("other"))
        target = first.device if isinstance(first, torch.Tensor) else first
        if target is None or isinstance(target, torch.dtype):
            return super().to(*args, **kwargs)
        dtype, _non_blocking, _format = to_options(args, kwargs)
        if not is_ours(target):
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

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A saved tensor of ours loads as a plain one (SPEC L7).
        plain = self._copied_to("cpu", None).detach().requires_grad_(self.requires_grad)
        return plain.__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        self._settle()
        return "tensor(" + super().__repr__(tensor_contents=tensor_contents).removeprefix(f"{type(self).__name__}(")


def label(t: Any, index: int, lent: list[Any] | None = None) -> Any:
    """Let ``t``, a result on device ``index``, know that it is there, if it is a sparse tensor of torch's own."""
    if type(t) is torch.Tensor and t.layout in mixing.SPARSE:
        t.__class__ = SparseTensor  # type: ignore[assignment]
        t._index, t._lent = index, [] if lent is None else lent
    return t


def _on_device(out: Any, source: SparseTensor, part: bool) -> Any:
    """What a call gave, where its sparse operand is."""
    if isinstance(out, (tuple, list)) and not isinstance(out, torch.Size):
        items = [_on_device(item, source, part) for item in out]
        return type(out)(items) if type(out) in (tuple, list) or not hasattr(out, "_fields") else type(out)(*items)
    if type(out) is not torch.Tensor or out.is_nested or out.is_quantized:
        return out
    if out.layout is not torch.strided:
        return label(out, source._index, source._lent)
    if out.device != values.executor().device:
        return out
    if out.requires_grad and torch.is_grad_enabled():
        return tensors.from_plain(out, source._index)
    tensors.in_use()
    held = eager.held(out.detach(), source._index, torch.is_grad_enabled())
    if part:
        source._lent.append(held)
    return held


eager.set_label(label)
