"""Sparse tensors in an estimate: real ones, of what the host knows, that say on which device they are.

Their indices are computed, as those of any small tensor, and decide what products with them cost. Unknown indices of a
matrix whose size is given are taken to be distinct, unknown values not to be 0. Products with dense tensors give sizes
only; all else is done on the CPU, with zeros for what nobody knows. Gradients of tables (``nn.Embedding(sparse=True)``)
are others (`sparse_gradients`). What would differentiate by a sparse tensor's values is refused, and so are jagged
tensors, whose lengths are no numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.jit._builtins import _register_builtin

from ..._ext import lazy as _core
from ...base.errors import UnsupportedOperationError
from ...base.patching import Patch, existing
from ...devices import mode
from ...devices.lazy_device import place_of
from ...engine.record import intercept, mixing, predict
from ...engine.record.arguments import tensors_in, to_options
from ...engine.record.mixing import SPARSE
from . import assumptions, sparse_gradients, transfers

__all__ = ["KnownSparse", "labelled", "like", "patches", "result"]

_MAKERS = ("sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor",
           "sparse_compressed_tensor")  # fmt: skip
_LEGACY = {"FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
           "LongTensor": torch.int64, "IntTensor": torch.int32}  # fmt: skip
_NESTED = ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged", "narrow")
_base: Any = torch.Tensor
_below: Any = torch._C._disabled_torch_function_impl
_info = functools.cache(functools.partial(intercept.describe, dispatch=False))


def patches() -> list[Patch]:
    return [
        *((torch, name, _making(name)) for name in _MAKERS),
        *existing(torch.sparse, {name: _made_as(dtype) for name, dtype in _LEGACY.items()}),
        *((torch.nested, name, _unless_jagged(getattr(torch.nested, name))) for name in _NESTED),
    ]


# ---- what they are ---------------------------------------------------------------------------------------------------
class KnownSparse(sparse_gradients.AtPlace):
    """A sparse tensor of the CPU's.

    _held: tensors without data of the size of its parts, so that they are counted where it is.
    """

    _is_mindtorchs = True
    _held: tuple[Any, ...]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        given = [*args, *(kwargs or {}).values()]
        with torch._C.DisableTorchFunctionSubclass():
            mixing.mixed_devices(_info(func), args, kwargs)
        place = next(t._place for t in tensors_in(given) if isinstance(t, KnownSparse))
        if kwargs and kwargs.get("device") is not None:  # of which C++ knows nothing
            place, kwargs = place_of(kwargs["device"], anywhere=True), {**kwargs, "device": torch.device("cpu")}
        with transfers.none():  # C++ makes zeros for the result beside the real tensor, which is the CPU's
            return _at(_below(func, types, args, kwargs or {}), place, given)

    def to(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        first = args[0] if args else kwargs.get("device", kwargs.get("tensor"))
        target = first.device if isinstance(first, torch.Tensor) else first
        if target is None or isinstance(target, (torch.dtype, type)):
            return super().to(*args, **kwargs)
        dtype, _non_blocking, _format = to_options(args, kwargs)
        place = place_of(target, anywhere=True)
        if place == self._place and dtype in (None, self.dtype) and not kwargs.get("copy"):
            return self
        with torch._C.DisableTorchFunctionSubclass():
            made = _base.to(self, dtype=dtype or self.dtype, copy=True)
        return labelled(made, place)

    def cpu(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return self.to("cpu")

    def cuda(self, device: Any = None, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return self.to("cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return "tensor(" + super().__repr__(tensor_contents=tensor_contents).removeprefix(f"{type(self).__name__}(")

    def __deepcopy__(self, memo: dict) -> Any:
        return memo.setdefault(id(self), self.to(self.device, copy=True))


def labelled(t: Any, place: int) -> Any:
    """``t``, which is at ``place``, if it is a sparse tensor of torch's own."""
    if type(t) is torch.Tensor and t.layout in SPARSE:
        t.__class__ = KnownSparse  # type: ignore[assignment]
        t._place = place
        t._held = tuple(_core.hold(part, place, None, True) for part in _parts_on_meta(t))
    return t


def uncounted(t: Any) -> Any:
    """``t``, or of a sparse tensor another with its numbers that is none of the program's: no memory of it counts."""
    if not isinstance(t, KnownSparse):
        return sparse_gradients.plain(t)
    with torch._C.DisableTorchFunctionSubclass():
        return t.detach()


def _parts_on_meta(t: torch.Tensor) -> list[torch.Tensor]:
    with predict.quiet():
        return [torch.empty(part.shape, dtype=part.dtype, device="meta") for part in mixing.parts(t)]


def _at(out: Any, place: int, given: list[Any]) -> Any:
    """What a call gave, at the place of its sparse operands."""
    if isinstance(out, (tuple, list)) and not isinstance(out, torch.Size):
        return type(out)(_at(item, place, given) for item in out)
    if type(out) is not torch.Tensor or any(out is a for a in given):
        return out
    if out.layout is not torch.strided:
        return labelled(out, place)
    return mode.now.estimate.adopt(out.detach(), place, computed=True)


# ---- how they are made -----------------------------------------------------------------------------------------------
@functools.cache
def _making(name: str) -> Callable[..., Any]:
    original = getattr(torch, name)

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        device, wants_grad = kwargs.pop("device", None), kwargs.pop("requires_grad", False)
        parts = tensors_in([*args, *kwargs.values()])
        if name == "sparse_coo_tensor" and len(args) == 3 and device is None and not wants_grad:
            of_rows = sparse_gradients.made_of(args[2], *args[:2])
            if of_rows is not NotImplemented:
                return of_rows
        if wants_grad or (torch.is_grad_enabled() and any(t.requires_grad for t in parts)):
            raise _not_differentiated(name)
        place = place_of(device if device is not None else parts[-1].device if parts else "cpu", anywhere=True)
        first = 2 if name != "sparse_coo_tensor" else 1
        unknown = [t for t in parts if _core.get_handle(t) is not None and _core.kept(_core.get_handle(t)) is None]
        if sum(t.numel() for t in unknown) > assumptions.MOST_ASSUMED:
            raise assumptions.too_large(name, sum(t.numel() for t in unknown))
        known = [
            _number(a, name, i < first, args, kwargs) if isinstance(a, torch.Tensor) else a for i, a in enumerate(args)
        ]
        named = {
            k: _number(a, name, "ind" in k, args, kwargs) if isinstance(a, torch.Tensor) else a
            for k, a in kwargs.items()
        }
        with predict.quiet():
            made = original(*known, device="cpu", **named)
        return labelled(made.detach(), place)

    _register_builtin(make, f"aten::{name}")  # for torch.jit.script, which looks functions up by what they are
    return make


def _not_differentiated(name: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"[{name}] expected values that need no gradient: an estimate does not compute gradients of sparse tensors"
    )


def like(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any], place: int) -> Any:
    """What ``torch.zeros_like`` and its like make of a sparse tensor; None where the call is another."""
    if not args or not isinstance(args[0], KnownSparse):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        return _at(func(*args, **{**kwargs, "device": "cpu"}).detach(), place, [])


def _number(t: Any, name: str, is_index: bool, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
    """A plain tensor with what is known of ``t``, or assumed."""
    handle = _core.get_handle(t)
    with predict.quiet():
        value = t if handle is None else _core.kept(handle)
        if value is not None:
            return value.clone()
        if not is_index:
            return torch.ones(t.shape, dtype=t.dtype, device="cpu")
        size = kwargs.get("size", args[2] if len(args) > 2 else None)
        if name != "sparse_coo_tensor" or size is None:
            raise UnsupportedOperationError(
                f"[{name}] expected known indices: without them an estimate cannot know the tensor's size"
            )
        order = torch.arange(t.shape[1], device="cpu") % max(math.prod(size[: t.shape[0]]), 1)
        return torch.stack(torch.unravel_index(order, tuple(size[: t.shape[0]]))).to(t.dtype)


def _made_as(dtype: torch.dtype) -> Callable[..., Any]:
    """Stands for ``torch.sparse.FloatTensor`` and its like."""

    def make(*args: Any) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            return torch.sparse_coo_tensor(*args, dtype=dtype)
        size = args[0] if args and isinstance(args[0], torch.Size) else args
        return torch.sparse_coo_tensor([[]] * len(size), [], size, dtype=dtype)

    return make


# ---- what is done with them ------------------------------------------------------------------------------------------
_PRODUCTS = {"aten::mm": 0, "aten::_sparse_mm": 0, "aten::mv": 0, "aten::addmm": 1, "aten::_sparse_addmm": 1}


def result(info: Any, args: tuple, inputs: list[Any]) -> Any:
    """What the product of a sparse matrix and a dense one gives, one of dense ones where a sparse one has numbers, and
    the gradient of a table; NotImplemented for all other calls."""
    if info.name == "aten::_sparse_coo_tensor_with_dims_and_tensors" and len(args) > 4:
        return sparse_gradients.made_of(*args[2:5])
    if info.name == "aten::_embedding_bag_backward" and len(args) > 9 and args[9]:
        return sparse_gradients.of_bags(*args)
    if info.name == "aten::sparse_sampled_addmm" and args[0].layout is torch.sparse_csr:
        pattern, a, b = args[:3]
        if a.shape[:-1] != pattern.shape[:-1] or b.shape != (*a.shape[:-2], a.shape[-1], pattern.shape[-1]):
            return NotImplemented
        if torch.is_grad_enabled() and any(t.requires_grad for t in (pattern, a, b)):
            raise _not_differentiated(info.name)
        with predict.quiet(), torch._C.DisableTorchFunctionSubclass():
            made = pattern.detach().clone()
        return labelled(made, _core.device_index(inputs[0]))
    at = _PRODUCTS.get(info.name)
    if at is None or len(args) < at + 2 or (args[at].layout in SPARSE) == (args[at + 1].layout in SPARSE):
        return NotImplemented
    a, b = args[at : at + 2]
    if a.dim() != 2 or a.shape[1] != b.shape[0] or a.dtype is not b.dtype:
        return NotImplemented  # torch says what is wrong
    with predict.quiet():
        made = torch.empty((a.shape[0], *b.shape[1:]), dtype=a.dtype, device="meta")
    return _core.hold(made, _core.device_index(inputs[0]), None, False)


# ---- nested tensors -------------------------------------------------------------------------------------------------
def _unless_jagged(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def nest(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("layout") is torch.jagged or original.__name__ == "nested_tensor_from_jagged":
            raise UnsupportedOperationError(f"[torch.nested.{original.__name__}] an estimate has no jagged tensors")
        return original(*args, **kwargs)

    return nest
