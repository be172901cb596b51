"""By how many tokens what a model keeps has grown within a call: told from the sizes of its tensors, before and after.

A cache may be cut before a call, beside tensors of its new size which are no part of it: of a window of 64 tokens, 63
are kept, and all that the last call computed of 64. So what is made is compared with what is next shorter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any, TypeAlias

import torch

__all__ = ["Key", "beside", "growth", "length", "sizes"]

_MOST = 4096  # lists and dicts that are looked at, and entries of each

#: A dimension, and the size in all others.
Key: TypeAlias = tuple[int, tuple[int, ...]]


def sizes(tensors: Iterable[torch.Tensor]) -> list[tuple[int, ...]]:
    """Of those that may be a cache: several dimensions, one for tokens, one for what is kept of each."""
    return [tuple(t.shape) for t in tensors if t.dim() > 1 and t.dtype.is_floating_point]


def growth(before: list[tuple[int, ...]], made: list[tuple[int, ...]], tokens: int) -> tuple[int, Key | None]:
    """By how much most of what was made is longer than what was there, in one dimension alone, 0: nothing is; and in
    which, if it is then as long as the tokens are that the call got for each sequence. If anything is, that alone
    counts: what a decoder keeps of its encoder is made again, too, longer than the tokens so far."""
    known: dict[Key, set[int]] = {}
    for key, n in _lengths(before):
        known.setdefault(key, set()).add(n)
    grown: Counter[tuple[int, Key | None]] = Counter()
    for key, n in _lengths(made):
        if shorter := max((old for old in known.get(key, ()) if 0 < old < n), default=0):
            grown[n - shorter, key if n == tokens else None] += 1
    grown = Counter({each: n for each, n in grown.items() if each[1] is not None}) or grown
    # Of as many of each, those that grew least: scores of a vocabulary are longer than anything else of one token.
    return min(grown, key=lambda each: (-grown[each], each[0]), default=(0, None))


def length(found: list[tuple[int, ...]], key: Key | None) -> int:
    """How long that is which grows, before a call; 0: nothing of it is there."""
    return max((n for each, n in _lengths(found) if each == key), default=0)


def beside(got: Iterable[Any], filled: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a call filled, and the other tensors of the lists and dicts, in what it got, that hold some of it: what a
    decoder keeps of its encoder is written once."""
    if not filled:
        return []
    written = {id(t) for t in filled}
    kept, seen = {id(t): t for t in filled}, set[int]()
    todo = [value for value in got if isinstance(value, list | tuple | dict)]
    while todo:
        inside = todo.pop()
        if id(inside) in seen or len(seen) > _MOST:
            continue
        seen.add(id(inside))
        values = list(islice(inside.values() if isinstance(inside, dict) else inside, _MOST))
        todo += [value for value in values if isinstance(value, list | tuple | dict)]
        if any(id(value) in written for value in values):
            kept |= {id(t): t for t in values if isinstance(t, torch.Tensor) and t.dtype.is_floating_point}
    return list(kept.values())


def _lengths(found: Iterable[tuple[int, ...]]) -> Iterable[tuple[Key, int]]:
    for size in found:
        for at, n in enumerate(size):
            yield (at, size[:at] + size[at + 1 :]), n
