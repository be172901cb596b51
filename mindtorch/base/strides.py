"""What sizes and strides say of memory, in elements."""

from __future__ import annotations

import functools

__all__ = ["contiguous", "extent", "known_extent", "overlapping"]


def extent(size: tuple[int, ...], stride: tuple[int, ...] | None, offset: int) -> int:
    """How many elements of its storage such a tensor reaches; stride None: contiguous."""
    if 0 in size:
        return 0
    return offset + 1 + sum((n - 1) * s for n, s in zip(size, stride or contiguous(size), strict=True))


#: The same of tuples, which is found once for each.
known_extent = functools.lru_cache(maxsize=4096)(extent)


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a new tensor of this size."""
    stride, acc = [], 1
    for n in reversed(size):
        stride.append(acc)
        acc *= max(n, 1)
    return tuple(reversed(stride))


def overlapping(size: tuple[int, ...], stride: tuple[int, ...] | None) -> bool:
    """Do elements of such a tensor certainly share memory, as those of an expanded one do?"""
    return stride is not None and any(n > 1 and s == 0 for n, s in zip(size, stride, strict=True)) and 0 not in size
