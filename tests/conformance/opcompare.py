"""Copies of inputs for eager and for the lazy device, and what differs between two results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import mindtorch

DEVICE = "remote_accelerator:0"


@dataclass(frozen=True)
class Side:
    """The device that is compared with eager: its name, its class of tensors, and what is behind one of them."""

    device: Any
    ours: type
    concrete: Callable[[Any], torch.Tensor]  # a plain tensor with the same values, sizes, strides and offset
    storage: Callable[[Any], int]  # equal for tensors that share memory


LAZY = Side(
    DEVICE, mindtorch.LazyTensor, lambda t: t.materialize(), lambda t: t.materialize().detach().untyped_storage()._cdata
)
side = LAZY


def compare_on(other: Side) -> None:
    """Compare another device with eager from now on."""
    global side
    side = other


def is_lazy(t: Any) -> bool:
    return isinstance(t, side.ours)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


# ---- copies ----------------------------------------------------------------------------------------------------------
class Place:
    """Copies a sample's tensors to one side. Same strides and offsets, storage shared as in the sample."""

    def __init__(self, lazy: bool, requires_grad: bool) -> None:
        self.lazy = lazy
        self.requires_grad = requires_grad
        self.storages: dict[int, torch.Tensor] = {}
        self.copies: dict[int, torch.Tensor] = {}
        self.originals: list[torch.Tensor] = []  # alive, so that ids stay theirs

    def __call__(self, tree: Any) -> Any:
        return tree_map(self._leaf, tree)

    def _leaf(self, a: Any) -> Any:
        if isinstance(a, (torch.device, str)):
            return mindtorch.device(side.device) if self.lazy and str(a) == "cpu" else a
        if not isinstance(a, torch.Tensor) or a.device.type != "cpu":
            return a
        if id(a) not in self.copies:
            self.originals.append(a)
            self.copies[id(a)] = self._copy(a)
        return self.copies[id(a)]

    def _copy(self, a: torch.Tensor) -> torch.Tensor:
        wants_grad = a.requires_grad and self.requires_grad
        with torch.no_grad():
            t = a.detach()
            if t.layout is not torch.strided or t.is_quantized or t.is_nested:
                out = self._send_other(t.clone())
            elif t.is_conj():
                out = self._copy(t.conj()).conj()
            elif t.is_neg():
                out = torch._neg_view(self._copy(torch._neg_view(t)))
            elif t.is_contiguous() and t.untyped_storage().nbytes() == t.numel() * t.itemsize:
                out = self._send(t)
            else:
                out = self._whole(t).as_strided(t.shape, t.stride(), t.storage_offset())
        return out.detach().requires_grad_() if wants_grad else out.detach()

    def _whole(self, t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        if storage._cdata not in self.storages:
            flat = torch.empty(0, dtype=t.dtype).set_(storage, 0, (storage.nbytes() // t.itemsize,))
            self.storages[storage._cdata] = self._send(flat)
        return self.storages[storage._cdata]

    def _send(self, t: torch.Tensor) -> torch.Tensor:
        return t.to(side.device) if self.lazy else t.clone()

    def _send_other(self, t: torch.Tensor) -> torch.Tensor:
        """The recording device has sparse tensors; what is nested or quantized stays on the CPU, as all on others."""
        return self._send(t) if side is LAZY and not (t.is_quantized or t.is_nested) else t


# ---- differences -----------------------------------------------------------------------------------------------------
def concrete(t: torch.Tensor) -> torch.Tensor:
    """The plain tensor behind one of ours (computes it), else the tensor itself."""
    return side.concrete(t) if is_lazy(t) else t


def bits(t: torch.Tensor) -> torch.Tensor:
    t = t.detach()
    return torch.empty(t.shape, dtype=t.dtype).copy_(t).reshape(-1).view(torch.uint8)


def same_bits(expected: torch.Tensor, got: torch.Tensor) -> str:
    """Empty if equal bit for bit; NaNs are equal whatever their payload (hardware chooses it, not the program)."""
    a, b = bits(expected), bits(got)
    if torch.equal(a, b):
        return ""
    if expected.dtype.is_floating_point or expected.dtype.is_complex:
        x, y = expected.detach().resolve_conj().resolve_neg(), got.detach().resolve_conj().resolve_neg()
        if x.dtype.is_complex:
            x, y = torch.view_as_real(x.contiguous()), torch.view_as_real(y.contiguous())
        nan = x.isnan() & y.isnan()
        zero = torch.zeros((), dtype=x.dtype)
        a, b = bits(torch.where(nan, zero, x)), bits(torch.where(nan, zero, y))
        if torch.equal(a, b):
            return ""
    return f"{int((a != b).sum())} of {a.numel()} bytes differ"


def tensor_differences(expected: torch.Tensor, got: torch.Tensor, values: bool = True) -> Iterator[str]:
    if expected.layout is not torch.strided or expected.is_quantized or expected.is_nested:
        yield from _other_layout(expected, got)
        return
    if not is_lazy(got):
        yield f"a {type(got).__name__} on {got.device} instead of a tensor on {side.device}"
        return
    value = concrete(got)
    for what, one in (("", got), ("value's ", value)):
        if one.dtype is not expected.dtype:
            yield f"{what}dtype {one.dtype}, eager {expected.dtype}"
        if one.shape != expected.shape:
            yield f"{what}shape {tuple(one.shape)}, eager {tuple(expected.shape)}"
        elif one.stride() != expected.stride():
            yield f"{what}strides {one.stride()}, eager {expected.stride()} (shape {tuple(expected.shape)})"
        if one.storage_offset() != expected.storage_offset():
            yield f"{what}offset {one.storage_offset()}, eager {expected.storage_offset()}"
    for flag in ("requires_grad", "is_leaf"):
        if getattr(got, flag) != getattr(expected, flag):
            yield f"{flag} {getattr(got, flag)}, eager {getattr(expected, flag)}"
    for query in ("is_conj", "is_neg", "is_inference"):
        if getattr(got, query)() != getattr(expected, query)():
            yield f"{query} {getattr(got, query)()}, eager {getattr(expected, query)()}"
    if values and value.dtype is expected.dtype and value.shape == expected.shape:
        why = same_bits(expected, value)
        if why:
            yield f"value: {why}"


def _other_layout(expected: torch.Tensor, got: torch.Tensor) -> Iterator[str]:
    if (got.layout, got.dtype, got.shape) != (expected.layout, expected.dtype, expected.shape):
        yield f"{got.layout} {got.dtype} {tuple(got.shape)}, eager {expected.layout} {expected.dtype} "
        return
    if expected.layout is torch.sparse_coo and got.is_coalesced() != expected.is_coalesced():
        yield f"is_coalesced {got.is_coalesced()}, eager {expected.is_coalesced()}"
    x, y = expected.detach().to_dense(), got.detach().to_dense()
    why = same_bits(x, y)
    if why:
        yield f"value: {why}"


def tree_differences(expected: Any, got: Any, values: bool = True) -> Iterator[str]:
    """What differs between two results: structure, and each leaf. `values`: those of tensors, too."""
    e, e_spec = tree_flatten(expected)
    g, g_spec = tree_flatten(got)
    if e_spec != g_spec:
        yield f"structure {g_spec}, eager {e_spec}"
        return
    for i, (x, y) in enumerate(zip(e, g, strict=True)):
        where = f"[{i}] " if len(e) > 1 else ""
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            for why in tensor_differences(x, y, values):
                yield where + why
        elif isinstance(x, torch.device):
            if str(y) not in (side.device, str(x)):
                yield f"{where}{y!r}, eager {x!r}"
        elif type(x) is not type(y) or not (x == y or (x != x and y != y)):
            yield f"{where}{y!r}, eager {x!r}"


def aliasing(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> list[tuple[str, str, bool]]:
    """Pairs of tensors, an output among them, that share storage; and whether they are the same object."""
    named = [(f"input {i}", t) for i, t in enumerate(inputs)] + [(f"output {i}", t) for i, t in enumerate(outputs)]
    keys = [_storage(t) for _, t in named]
    pairs = []
    for j in range(len(inputs), len(named)):
        for i in range(j):
            if keys[i] is not None and keys[i] == keys[j]:
                pairs.append((named[i][0], named[j][0], named[i][1] is named[j][1]))
    return pairs


def _storage(t: torch.Tensor) -> int | None:
    if t.layout is not torch.strided or t.is_nested:
        return None
    return side.storage(t) if is_lazy(t) else t.detach().untyped_storage()._cdata
