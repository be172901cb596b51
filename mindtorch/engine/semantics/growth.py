"""By how many tokens what a model keeps has grown within a call: told from the sizes of its tensors, before and after.

A cache may be cut before a call, beside tensors of that size which are no part of it (of a window of 64 tokens, 63 are
kept, and what the last call computed of 64): then as many tensors have its new size as before, or more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

import torch

__all__ = ["Key", "growth", "length", "sizes"]

#: A dimension, and the size in all others.
Key: TypeAlias = tuple[int, tuple[int, ...]]


def sizes(tensors: Iterable[torch.Tensor], held: Iterable[torch.Tensor]) -> list[tuple[int, ...]]:
    """Of those that may be a cache: several dimensions, one for tokens, one for what is kept of each."""
    return [tuple(t.shape) for each in (tensors, held) for t in each if t.dim() > 1 and t.dtype.is_floating_point]


def growth(before: list[tuple[int, ...]], after: list[tuple[int, ...]], tokens: int) -> tuple[int, Key | None]:
    """By how much most of those tensors grew that grew in one dimension alone, 0: none did; and which ones, if they are
    then as long as the tokens are that the call got for each sequence."""
    known: dict[Key, Counter[int]] = {}
    for key, n in _lengths(before):
        known.setdefault(key, Counter())[n] += 1
    found: dict[Key, Counter[int]] = {}
    for key, n in _lengths(after):
        found.setdefault(key, Counter())[n] += 1
    grown: Counter[tuple[int, Key | None]] = Counter()
    for key, lengths in found.items():
        for n, times in lengths.items():
            there = known.get(key, Counter())
            shorter = max((old for old in there if 0 < old < n), default=0)
            if shorter and times > there[n]:
                grown[n - shorter, key if n == tokens else None] += times - there[n]
    # Of as many of each, those that grew least: scores of a vocabulary are longer than anything else of one token.
    return min(grown, key=lambda each: (-grown[each], each[0]), default=(0, None))


def length(found: list[tuple[int, ...]], key: Key | None) -> int:
    """How long that is which grows, before a call; 0: nothing of it is there."""
    return max((n for each, n in _lengths(found) if each == key), default=0)


def _lengths(found: Iterable[tuple[int, ...]]) -> Iterable[tuple[Key, int]]:
    for size in found:
        for at, n in enumerate(size):
            yield (at, size[:at] + size[at + 1 :]), n
