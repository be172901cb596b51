"""Small copies of large calls: other sizes, in the same relations to each other, and strides in the same order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterator
from typing import Any

import torch

from ..._ext import lazy as _core

KEPT = 4  # sizes up to this one stay as they are; the others become distinct multiples of it
_AT_ONCE = 2  # so many different sizes may stay as they are in the later copies


def copies(
    args: tuple, kwargs: dict, facts: list[tuple], most: int, as_they_are: Container[int | str] = ()
) -> Iterator[tuple[tuple, dict, list[tuple]]]:
    """(args, kwargs, facts) of copies of a call, none with more than `most` elements, the smallest first.

    facts: (dtype, size, stride, offset, place, bits) of each of our tensors among the arguments; as_they_are:
    positions and names of arguments that are no sizes, whatever number they are.
    """
    listed: list[int] = []
    may_be_sizes = [a for key, a in (*enumerate(args), *kwargs.items()) if key not in as_they_are]
    if not _numbers(may_be_sizes, listed):
        return
    sizes = sorted({n for f in facts for n in f[1] if n > KEPT} or ({n for n in listed if n > KEPT}))
    products = _products(facts, listed)
    # A number that is a size, and also the product of others: which of them is meant, is not known here.
    always = {n for number in products if number in sizes for n in (number, *products[number]) if n > KEPT}
    others = [n for n in sizes if n not in always]
    for kept in itertools.chain.from_iterable(itertools.combinations(others, n) for n in range(_AT_ONCE + 1)):
        for multiples in (False, True) if not kept else (False,):
            new = _mapping(sizes, (*always, *kept), multiples)
            if new is None:
                continue
            for number, factors in products.items():
                if number not in new:
                    new[number] = math.prod(new.get(n, n) for n in factors)
            small = [_copy(f, new) for f in facts]
            if None in small:
                return  # elements that share memory: what the kernel does with them may depend on how
            if sum(math.prod(f[1]) for f in small if f is not None) <= most:
                yield (
                    tuple(a if i in as_they_are else _resized(a, new) for i, a in enumerate(args)),
                    {k: a if k in as_they_are else _resized(a, new) for k, a in kwargs.items()},
                    [f for f in small if f is not None],
                )


def _mapping(sizes: list[int], kept: tuple[int, ...], multiples: bool) -> dict[int, int] | None:
    """A smaller size for each, in the same order, distinct. `multiples`: of twice, three or four times as much, too."""
    new: dict[int, int] = {n: n for n in kept}
    found = False
    for place, n in enumerate(n for n in sizes if n not in new):
        base = next((n // k for k in (2, 3, 4) if multiples and n % k == 0 and n // k in new), None)
        new[n] = KEPT * (place + 2)
        if base is not None:
            found, new[n] = True, n // base * new[base]
        while n not in kept and list(new.values()).count(new[n]) > 1:
            new[n] += KEPT
    return new if found or not multiples else None


def _numbers(a: Any, found: list[int]) -> bool:
    """Append the integers in an argument that may be sizes; False where a tensor that is not ours has some itself."""
    if isinstance(a, torch.Tensor):
        return _core.get_handle(a) is not None or not a.dim()
    if isinstance(a, (tuple, list)):
        return False not in [_numbers(item, found) for item in a]
    if type(a) is int:
        found.append(a)
    return True


def _products(facts: list[tuple], listed: list[int]) -> dict[int, tuple[int, ...]]:
    """The arguments that are products of neighbouring sizes (all pixels of an image)."""
    asked = {n for n in listed if n > KEPT}
    found: dict[int, tuple[int, ...]] = {}
    if asked:
        for fact in facts:
            size = tuple(fact[1])
            for i, j in itertools.combinations(range(len(size) + 1), 2):
                if j - i > 1 and (number := math.prod(size[i:j])) in asked:
                    found.setdefault(number, size[i:j])
    return found


def _resized(a: Any, new: dict[int, int]) -> Any:
    if type(a) is int:
        return new.get(a, a)
    if isinstance(a, torch.Size):
        return torch.Size([new.get(n, n) for n in a])
    if isinstance(a, (tuple, list)):
        return type(a)(_resized(item, new) for item in a)
    return a


def _copy(fact: tuple, new: dict[int, int]) -> tuple | None:
    dtype, size, stride, _offset, place, bits = fact
    small = torch.Size([new.get(n, n) for n in size])
    if stride is not None:
        laid = strides(tuple(size), stride, tuple(small))
        if laid is None:
            return None
        stride = _core.canonical(small, laid)
    return dtype, small, stride, 0, place, bits


def strides(size: tuple[int, ...], stride: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides for other sizes: in the same order, gaps where there were some, 0 where it was. None: elements overlap,
    or the stride of a dimension of size 1 says nothing."""
    out = [0] * len(size)
    reach, reached = 1, 1  # elements that the dimensions so far go through, of the old and of the new
    steps = {1: 1}
    for d in sorted((d for d in range(len(size)) if size[d] != 1 and stride[d]), key=stride.__getitem__):
        if stride[d] < reach:
            return None
        gap = stride[d] > reach
        out[d] = reached if not gap else reached * 2 if stride[d] % reach == 0 else reached + 1
        steps[stride[d]] = out[d]
        reach, reached = stride[d] * max(size[d], 1), out[d] * max(new[d], 1)
        steps.setdefault(reach, reached)
    for d in range(len(size)):
        if size[d] == 1 and stride[d]:
            out[d] = steps.get(stride[d], 2 * reached if stride[d] > reach else 0)
            if not out[d]:
                return None
    return tuple(out)


def dense(size: tuple[int, ...], stride: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides, for other sizes, of a tensor without gaps in this order of dimensions. None: these are not such."""
    out = []
    for step in stride:
        inner = [k for k in range(len(size)) if size[k] > 1 and 0 < stride[k] < step]
        if step and math.prod(size[k] for k in inner) != step:
            return None
        out.append(math.prod(new[k] for k in inner) if step else 0)
    return tuple(out)


def show(a: Any, shown: list[Any]) -> None:
    """Append what tells an argument from others, but for our tensors."""
    if isinstance(a, torch.Tensor):
        shown.append(object() if _core.get_handle(a) is None else torch.Tensor)
    elif isinstance(a, (tuple, list)):
        shown.append((type(a), len(a)))
        for item in a:
            show(item, shown)
    else:
        shown.append((type(a), a))  # 1, 1.0 and True are equal
