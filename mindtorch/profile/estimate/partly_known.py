"""Integers of which a part is known: what a program appends to unknown tokens (SPEC C4).

What is known of a tensor is all of it or nothing; beside that, the known ones of results of few ops are noted here, so
that a program which ends each sequence by a token of its own finds it there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..._ext import lazy as _core
from ..._ext.strides import contiguous
from ...engine.record.predict import MOST_KNOWN, little
from ...ops.decision_ops import PADDING

__all__ = ["NAMES", "equal", "forget", "note"]

_EQUALITY = frozenset({"aten::eq", "aten::ne"})
#: Ops that something is noted or said of here.
NAMES = PADDING | _EQUALITY

_Parts = tuple["weakref.ref[torch.Tensor]", torch.Tensor, torch.Tensor]
#: By slot of a storage: whose it is, its elements, and which of them are known. Views of it look there, too.
_parts: dict[int, _Parts] = {}

Run = Callable[[list[torch.Tensor]], torch.Tensor]


def forget() -> None:
    _parts.clear()


def note(name: str, inputs: list[Any], results: list[Any], values: list[torch.Tensor | None], run: Run) -> None:
    """Before a call: which elements of its result follow from the known ones. They are those that come out the same,
    whatever the unknown ones are."""
    if name not in PADDING or not results or all(v is not None for v in values):
        return
    result = results[0]
    if not little(result.dtype, result.numel()) or any(t.numel() > MOST_KNOWN for t in inputs):
        return
    filled = _filled(inputs, values)
    if filled is None:
        return
    low, high = map(run, filled)
    known = low == high
    handle = _core.get_handle(result)
    if low.shape == result.shape and low.dtype is result.dtype and known.any() and _core.is_root(handle):
        slot = _core.root_slot(handle)
        _parts[slot] = weakref.ref(result, lambda _: _parts.pop(slot, None)), low.contiguous(), known.contiguous()


def equal(name: str, inputs: list[Any], values: list[torch.Tensor | None], run: Run) -> torch.Tensor | None:
    """What a comparison says, some of whose inputs are known in part: no unknown integer is equal to anything."""
    if (
        not _parts
        or name not in _EQUALITY
        or all(v is not None or _of(t) is None for t, v in zip(inputs, values, strict=True))
    ):
        return None
    filled = _filled(inputs, values)
    if filled is None:
        return None
    low, high = map(run, filled)
    return low & high if name == "aten::eq" else low | high


def _filled(inputs: list[Any], values: list[torch.Tensor | None]) -> tuple[list[torch.Tensor], ...] | None:
    """The inputs with all unknown elements 0, and with all 1; None where one has no integers."""
    found: tuple[list[torch.Tensor], ...] = ([], [])
    for t, value in zip(inputs, values, strict=True):
        if t.dtype.is_floating_point or t.dtype.is_complex or t.dtype is torch.bool:
            return None
        parts = None if value is not None else _of(t)
        for fill, each in enumerate(found):
            unknown = torch.full(t.shape, fill, dtype=t.dtype, device="cpu") if value is None else value
            each.append(unknown if parts is None else torch.where(parts[1], parts[0], unknown))
    return found


def _of(t: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Elements of ``t``, and which of them are known; None where none is, or where it has been written since."""
    handle = _core.get_handle(t)
    ref, elements, known = _parts.get(_core.root_slot(handle), (None, None, None))
    root = None if ref is None else ref()
    # Of tensors of inference mode nobody counts the writes.
    if root is None or root.is_inference() or root._version or t.dtype is not elements.dtype:  # type: ignore[union-attr]
        return None
    _dtype, size, stride, offset, _place = _core.meta_of(handle)
    stride = stride or contiguous(size)
    return elements.as_strided(size, stride, offset), known.as_strided(size, stride, offset)  # type: ignore[union-attr]
