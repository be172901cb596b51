"""What crosses of a storage of which another worker reads a small part (SPEC R5).

The bytes from the first to the last that the tensors of a segment read cross, and no others. The first one is at a
multiple of 64 bytes, as all memory begins, so that kernels find the same alignment.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch

from ..._ext import lazy as _core
from ..._ext.encoder import Encoded
from ..._ext.strides import extent
from .mirrors import view

__all__ = ["Slice", "shift", "slices"]

_SMALL = 8  # times as large as the part is the storage, at least
_ALIGNED = 64  # bytes


class Slice(NamedTuple):
    """Bytes of a storage. begin: the first one; part: a mirror of them, where they are."""

    begin: int
    part: torch.Tensor

    def of(self, whole: torch.Tensor, mirror: torch.Tensor) -> torch.Tensor:
        """The same value on a storage that has these bytes alone."""
        offset = mirror.storage_offset() - self.begin // mirror.dtype.itemsize
        bits = _core.view_bits(mirror)
        return view(whole.untyped_storage(), mirror.dtype, mirror.shape, mirror.stride(), offset, bits)


def slices(encoded: Encoded, storages: Collection[int], moving: Collection[int]) -> dict[int, Slice]:
    """By storage, of those of these that a segment reads a small part of. moving: slots of the storages that move
    whole. What the segment makes views of does, too, because the views are on all of it."""
    ends: dict[int, tuple[int, int, torch.Tensor]] = {}
    whole: set[int] = set()
    for mirror, root in encoded.given:
        key = mirror.untyped_storage()._cdata
        if key not in storages:
            continue
        if root in moving or root in encoded.viewed:
            whole.add(key)
        size = mirror.dtype.itemsize
        first = mirror.storage_offset() * size
        last = extent(mirror.shape, mirror.stride(), mirror.storage_offset()) * size
        before = ends.get(key, (first, last, mirror))
        ends[key] = min(first, before[0]), max(last, before[1]), mirror
    found: dict[int, Slice] = {}
    for key, (first, last, mirror) in ends.items():
        begin = first // _ALIGNED * _ALIGNED
        if key not in whole and 0 < (last - begin) * _SMALL <= mirror.untyped_storage().nbytes():
            found[key] = Slice(begin, view(mirror.untyped_storage(), torch.uint8, (last - begin,), (1,), begin))
    return found


def shift(encoded: Encoded, sliced: dict[int, Slice]) -> None:
    """Let the offsets of what a segment is given be those on slices."""
    numbers = memoryview(encoded.numbers).cast("q")
    at = len(numbers)  # behind the last one's: sizes, strides if they are told, offset
    for (mirror, _root), (dtype, ndim, told, _bits) in zip(
        reversed(encoded.given), reversed(encoded.begins()), strict=True
    ):
        found = sliced.get(mirror.untyped_storage()._cdata)
        if found is not None:
            numbers[at - 1] -= found.begin // dtype.itemsize
        at -= ndim * (1 + told) + 1
