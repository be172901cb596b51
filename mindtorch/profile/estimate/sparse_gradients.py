"""Gradients of tables (``nn.Embedding(sparse=True)``) in an estimate: of the rows that are looked up.

Autograd makes one of indices and values that nobody knows, adds it to others, and optimizers take it apart. It is a
tensor without data whose parts are counted where the table is. A coalesced one has as many rows as there are distinct
indices, where those are known; else as were looked up, of which there are no more than rows. What torch does to it is
in the table of `_RULES`; all else is an error that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..._ext import lazy as _core
from ..._ext import ledger as _ledger
from ...base.errors import UnsupportedOperationError
from ...devices.lazy_device import device_at
from ...engine.record import predict
from ...ops import op_name

__all__ = ["SparseGradient", "made_of", "of_bags", "plain"]

_ATEN: Any = torch.ops.aten
_below: Any = torch._C._disabled_torch_function_impl
_names: dict[Any, str] = {}  # of calls in the ledger


class AtPlace(torch.Tensor):
    """What says that it is at ``_place``."""

    _place: int

    @property
    def device(self) -> Any:  # type: ignore[override]
        return device_at(self._place)

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return bool(self.device.type == "cpu")

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return bool(self.device.type == "cuda")

    def get_device(self) -> int:
        return -1 if self.device.index is None else int(self.device.index)


class SparseGradient(AtPlace):
    """A table's gradient. _held: indices and values, tensors of ours; _merged: it is coalesced."""

    _held: tuple[torch.Tensor, torch.Tensor]
    _merged: bool

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return (f"tensor(..., size={tuple(self.shape)}, nnz={_rows(self)}, device='{self.device}', "
                "layout=torch.sparse_coo)")  # fmt: skip

    def __deepcopy__(self, memo: dict) -> Any:
        return memo.setdefault(id(self), self.clone())

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__") or name in _ASKED:
            return _below(func, types, args, kwargs or {})
        return _do(name, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Autograd's own calls."""
        return _do(func.overloadpacket.__name__, args, kwargs or {})


#: What needs sizes and the like only.
_ASKED = frozenset((
    "size", "dim", "ndimension", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "is_signed",
    "requires_grad_", "register_hook", "is_same_size", "data_ptr", "__hash__", "type", "is_leaf", "retain_grad",
    "is_inference", "__len__",
))  # fmt: skip


def _do(name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    rule = _RULES.get(name)
    made = NotImplemented if rule is None else rule(*args, **kwargs)
    if made is NotImplemented:
        raise UnsupportedOperationError(
            f"[{name}] expected a dense tensor: an estimate does not know the result for a sparse gradient"
        )
    return made


# ---- how they are made -----------------------------------------------------------------------------------------------
def _made(place: int, size: Any, indices: torch.Tensor, values: torch.Tensor, merged: bool) -> SparseGradient:
    with predict.quiet():
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            SparseGradient, tuple(size), dtype=values.dtype, layout=torch.sparse_coo, device=torch.device("cpu")
        )
    made._place, made._held, made._merged = place, (indices, values), merged
    return made  # type: ignore[no-any-return]


def made_of(size: Any, indices: Any, values: Any, merged: bool = False) -> Any:
    """The gradient of these parts, of rows; NotImplemented where they are those of another sparse tensor."""
    handles = [_core.get_handle(t) if isinstance(t, torch.Tensor) else None for t in (indices, values)]
    if None in handles or indices.dim() != 2 or indices.shape[0] != 1 or values.dim() < 2:
        return NotImplemented
    return _made(_core.device_index(values), size, indices.detach(), values.detach(), merged)


def of_bags(grad: Any, indices: Any, offsets: Any, bags: Any, sizes: Any, most: Any, rows: int, by_frequency: bool,
            mode: int, sparse: bool, weights: Any = None, padding: int = -1) -> Any:  # fmt: skip
    """The gradient of ``nn.EmbeddingBag``'s table: for each index the gradient of its bag, scaled."""
    if by_frequency or mode > 1:
        return NotImplemented  # torch refuses it
    found = grad.index_select(0, bags)
    if mode == 1:
        found = found.div_(sizes.index_select(0, bags).unsqueeze(1))
    if weights is not None:
        found = found.mul_(weights.unsqueeze(1))
    return made_of((rows, *grad.shape[1:]), indices.reshape(1, -1), found)


def _part(place: int, shape: Any, dtype: torch.dtype) -> Any:
    with predict.quiet():
        made = torch.empty(tuple(shape), dtype=dtype, device="meta")
    return _core.hold(made, place, None, True)


def _like(g: SparseGradient, indices: int | torch.Tensor, merged: bool, dtype: Any = None) -> SparseGradient:
    """Another of so many rows, or of these known ones, with parts of its own."""
    rows = indices if isinstance(indices, int) else indices.shape[1]
    at = _part(g._place, (1, rows), torch.int64)
    if isinstance(indices, torch.Tensor) and rows <= predict.MOST_KNOWN:
        _core.keep(_core.get_handle(at), indices)
    return _made(g._place, g.shape, at, _part(g._place, (rows, *g.shape[1:]), dtype or g.dtype), merged)


def _rows(g: SparseGradient) -> int:
    return int(g._held[1].shape[0])


def _looked_up(g: SparseGradient) -> int | torch.Tensor:
    """The indices, or how many where nobody knows them."""
    known = _core.kept(_core.get_handle(g._held[0]))
    return _rows(g) if known is None else known


# ---- what is told of calls -------------------------------------------------------------------------------------------
def _noted(func: Any, args: tuple, make: Callable[[], Any]) -> Any:
    """What ``make`` gives, which the ledger logs as that call: it is costed by what the parts hold."""
    from . import known_values  # which imports this

    given = [t for t in args if isinstance(t, torch.Tensor)]
    if any(not isinstance(t, SparseGradient) and _core.get_handle(t) is None for t in given):
        raise RuntimeError(f"[{func}] expected all tensors to be on the same device")
    places = {t._place if isinstance(t, SparseGradient) else _core.device_index(t) for t in given if t.dim()}
    if len(places) > 1:
        one, other = (device_at(place) for place in sorted(places)[:2])
        raise RuntimeError(
            f"[{func}] expected all tensors to be on the same device, found at least two: {one}, {other}"
        )
    call = plain(args)
    key = func, tuple(map(_described, call)), tuple(places)
    name = _names.setdefault(key, f"{op_name(func)} (sparse {len(_names)})")
    with _ledger.Making(name):
        out = make()
    if name not in known_values.ran:
        known_values.ran[name] = func, call, {}, plain(out)
        if all(device_at(place).type == "cpu" for place in places):
            known_values.on_host.add(name)
    return out


def _described(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return tuple(value.shape), value.dtype, value._nnz() if value.layout is torch.sparse_coo else value.stride()


def plain(value: Any) -> Any:
    """The same with torch's own meta tensors."""
    if isinstance(value, SparseGradient):
        parts = [predict.meta_tensor(_core.get_handle(part)) for part in value._held]
        with predict.quiet():
            return _ATEN._sparse_coo_tensor_with_dims_and_tensors(
                1,
                value.dim() - 1,
                tuple(value.shape),
                *parts,
                dtype=value.dtype,
                layout=torch.sparse_coo,
                device="meta",
            )
    if isinstance(value, torch.Tensor):
        handle = _core.get_handle(value)
        return value if handle is None else predict.meta_tensor(handle)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return type(value)(plain(v) for v in value) if type(value) in (list, tuple) else value


# ---- rules -----------------------------------------------------------------------------------------------------------
def _clone(g: SparseGradient, **how: Any) -> Any:
    return _noted(_ATEN.clone.default, (g,), lambda: _like(g, _looked_up(g), g._merged))


def _detach(g: SparseGradient) -> Any:
    return _made(g._place, g.shape, *g._held, g._merged)


def _coalesce(g: SparseGradient) -> Any:
    def make() -> SparseGradient:
        with predict.quiet():
            at = _looked_up(g)
            merged = min(at, int(g.shape[0])) if isinstance(at, int) else torch.unique(at)[None]
        return _like(g, merged, True)

    return g if g._merged else _noted(_ATEN._coalesce.default, (g,), make)


def _set_coalesced(g: SparseGradient, merged: bool) -> Any:
    g._merged = merged
    return g


def _takes(out: SparseGradient, made: SparseGradient) -> SparseGradient:
    out._held, out._merged = made._held, made._merged
    return out


def _joined(a: SparseGradient, b: SparseGradient) -> SparseGradient:
    if a._place != b._place or a.shape != b.shape:
        raise RuntimeError(
            f"[add] expected two tensors of {tuple(a.shape)} on {a.device}, got {tuple(b.shape)} on {b.device}"
        )
    with predict.quiet():
        at = [_looked_up(each) for each in (a, b)]
        known = None if any(isinstance(each, int) for each in at) else torch.cat(at, 1)  # type: ignore[arg-type]
    return _like(a, _rows(a) + _rows(b) if known is None else known, False)


def _add(a: Any, b: Any, *, alpha: Any = 1, func: Any = _ATEN.add.Tensor) -> Any:
    if isinstance(a, SparseGradient) and isinstance(b, SparseGradient):
        return _noted(func, (a, b), lambda: _joined(a, b))
    if isinstance(a, SparseGradient) or not isinstance(b, SparseGradient) or _core.get_handle(a) is None:
        return NotImplemented  # torch does not add a dense tensor to a sparse one
    return _noted(func, (a, b), lambda: _part(_core.device_index(a), a.shape, a.dtype))


def _add_in_place(a: Any, b: Any, *, alpha: Any = 1, func: Any = _ATEN.add_.Tensor) -> Any:
    if isinstance(a, SparseGradient) and isinstance(b, SparseGradient):
        return _noted(func, (a, b), lambda: _takes(a, _joined(a, b)))
    if isinstance(a, SparseGradient) or not isinstance(b, SparseGradient) or _core.get_handle(a) is None:
        return NotImplemented
    if a.shape != b.shape:
        raise RuntimeError(f"[add_] expected a sparse tensor of {tuple(a.shape)}, got {tuple(b.shape)}")
    if a.requires_grad and a.is_leaf and torch.is_grad_enabled():
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    return _noted(func, (a, b), lambda: a)


def _each(func: Any, merges: bool = False) -> Callable[..., Any]:
    """A number to each stored one."""

    def rule(g: Any, *others: Any, **how: Any) -> Any:
        if not isinstance(g, SparseGradient) or any(isinstance(o, torch.Tensor) and o.dim() for o in others):
            return NotImplemented
        g = _coalesce(g) if merges else g
        return _noted(func, (g, *others), lambda: _like(g, _looked_up(g), g._merged))

    return rule


def _each_in_place(func: Any) -> Callable[..., Any]:
    def rule(g: Any, *others: Any, **how: Any) -> Any:
        if not isinstance(g, SparseGradient) or any(isinstance(o, torch.Tensor) and o.dim() for o in others):
            return NotImplemented
        return _noted(func, (g, *others), lambda: g)

    return rule


def _zero(g: SparseGradient) -> Any:
    return _noted(_ATEN.zero_.default, (g,), lambda: _takes(g, _like(g, 0, True)))


def _copy(out: Any, g: Any, non_blocking: bool = False) -> Any:
    if not isinstance(out, SparseGradient) or not isinstance(g, SparseGradient):
        return NotImplemented
    return _noted(_ATEN.copy_.default, (out, g), lambda: _takes(out, _like(out, _looked_up(g), g._merged)))


def _mask(dense: Any, mask: Any) -> Any:
    if isinstance(dense, SparseGradient) or _core.get_handle(dense) is None:
        return NotImplemented
    return _noted(
        _ATEN.sparse_mask.default, (dense, mask), lambda: _like(mask, _looked_up(mask), mask._merged, dense.dtype)
    )


def _to_dense(g: SparseGradient, dtype: Any = None, **how: Any) -> Any:
    return _noted(_ATEN.to_dense.default, (g,), lambda: _part(g._place, g.shape, dtype or g.dtype))


def _new(g: SparseGradient, *args: Any, **how: Any) -> Any:
    """``g.new(indices, values, size)``, as SparseAdam has it."""
    return (
        made_of(args[2], args[0], args[1]) if len(args) == 3 and isinstance(args[0], torch.Tensor) else NotImplemented
    )


def _indices(g: SparseGradient) -> Any:
    return g._held[0]


def _values(g: SparseGradient) -> Any:
    return g._held[1]


def _of_merged(part: Callable[[SparseGradient], Any]) -> Callable[..., Any]:
    def rule(g: SparseGradient) -> Any:
        if not g._merged:
            raise RuntimeError("Cannot get indices or values on an uncoalesced tensor, please call .coalesce() first")
        return part(g)

    return rule


_RULES: dict[str, Callable[..., Any]] = {
    "clone": _clone, "detach": _detach, "detach_": lambda g: g, "alias": _detach,
    "coalesce": _coalesce, "_coalesce": _coalesce, "_coalesced_": _set_coalesced,
    "is_coalesced": lambda g: g._merged,
    "_indices": _indices, "_values": _values, "indices": _of_merged(_indices), "values": _of_merged(_values),
    "_nnz": _rows, "sparse_dim": lambda g: 1, "dense_dim": lambda g: g.dim() - 1,
    "add": _add, "__add__": _add, "__radd__": lambda b, a: _add(a, b), "add_": _add_in_place,
    "__iadd__": _add_in_place,
    "sub": lambda a, b, **how: _add(a, b, func=_ATEN.sub.Tensor, **how),
    "sub_": lambda a, b, **how: _add_in_place(a, b, func=_ATEN.sub_.Tensor, **how),
    "neg": _each(_ATEN.neg.default), "__neg__": _each(_ATEN.neg.default), "neg_": _each_in_place(_ATEN.neg_.default),
    "pow": _each(_ATEN.pow.Tensor_Scalar, merges=True), "sqrt": _each(_ATEN.sqrt.default, merges=True),
    "zero_": _zero, "copy_": _copy, "sparse_mask": _mask, "to_dense": _to_dense, "_to_dense": _to_dense, "new": _new,
}  # fmt: skip
for _name in ("mul", "div"):
    _RULES[_name] = _each(getattr(_ATEN, _name).Tensor)
    _RULES[f"{_name}_"] = _each_in_place(getattr(_ATEN, f"{_name}_").Tensor)
_RULES |= {"__mul__": _RULES["mul"], "__rmul__": _RULES["mul"], "__truediv__": _RULES["div"]}
