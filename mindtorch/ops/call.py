"""One call as byte and product rules see it, and what its tensors take in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .flop_rules import Args, Kwargs, is_sparse, is_tensor, stored


class Call(NamedTuple):
    """``results = op(*args, **kwargs)``: its tensors, and the arguments that it writes into."""

    args: Args
    kwargs: Kwargs
    results: list[Any]
    mutated: list[Any]


def strides(tensor: Any) -> tuple[int, ...]:
    """Its strides; those of a dense tensor for what has only a shape, or none to tell (sparse)."""
    if getattr(tensor, "layout", torch.strided) is torch.strided and hasattr(tensor, "stride"):
        return tuple(tensor.stride())
    found, step = [], 1
    for length in reversed(tensor.shape):
        found.append(step)
        step *= max(length, 1)
    return tuple(reversed(found))


def distinct(tensor: Any) -> int:
    """Elements in memory: one for each place that its indices reach."""
    if is_sparse(tensor):
        return stored(tensor)
    shape, steps = tuple(tensor.shape), strides(tensor)
    if 0 in shape:
        return 0
    reached = 1 + sum((length - 1) * abs(step) for length, step in zip(shape, steps))
    return min(math.prod(length for length, step in zip(shape, steps) if step), reached)


def size(tensor: Any) -> int:
    """Bytes of its distinct elements; of a sparse tensor, of what it stores, without its indices."""
    return distinct(tensor) * int(tensor.dtype.itemsize)


def sizes(found: Any) -> int:
    """The same of all tensors in nested tuples and lists."""
    return sum(map(size, tensors(found)))


def tensors(value: Any) -> Iterator[Any]:
    """Those in nested tuples and lists."""
    if is_tensor(value):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
