"""Byte rules: (bytes read, bytes written) of a call, where they are not what `by_tag` says.

Bytes are what has to cross the memory bus if nothing is in a cache and nothing is read twice: each element that the
operation really reads, once (an expanded tensor's distinct elements, a look-up's selected rows and its indices), and
each that it writes. Views and questions about metadata move nothing, and neither does memory that is only reserved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .call import Call, size, sizes, strides, tensors
from .flop_rules import gives_back, is_sparse, is_tensor, numel, stored

Bytes = tuple[int, int]


def by_tag(call: Call, tag: str) -> Bytes:
    """Of ops without a rule: all arguments are read, all results written, but for what the tag says."""
    if tag == "view" or (tag == "other" and not call.results and not call.mutated):
        return 0, 0
    if tag == "creation":
        return 0, _written(call)
    given = list(tensors([*call.args, *call.kwargs.values()]))
    if any(map(is_sparse, given)) and (call.mutated or all(map(is_sparse, call.results))):
        return _of_rows(call, given)
    return AllBut(0)(call) if tag == "random" and call.mutated else AllBut()(call)


def _of_rows(call: Call, given: list[Any]) -> Bytes:
    """Of a call with a sparse tensor that gives no dense one: of dense tensors of its size, what it has numbers for."""
    sparse = next(t for t in given if is_sparse(t))

    def met(t: Any) -> int:
        return min(size(t), stored(sparse) * int(t.dtype.itemsize)) if t.shape == sparse.shape else size(t)

    return sum(map(met, given)), sum(map(met, call.mutated or call.results))


def nothing(call: Call) -> Bytes:
    """Reserves memory and leaves it as it is."""
    return 0, 0


def dropped(call: Call) -> Bytes:
    """Dropout: nothing where it gives its input back."""
    return (0, 0) if gives_back(call.args, call.kwargs) else AllBut()(call)


def one(call: Call) -> Bytes:
    """Reads one element."""
    return (int(call.args[0].dtype.itemsize) if call.args and is_tensor(call.args[0]) else 0), 0


def grouped(call: Call) -> Bytes:
    """A grouped product: of the weights of many groups, those that rows are there for."""
    a, b, *rest = [t for t in call.args if is_tensor(t)]
    share = min(1.0, a.shape[0] / max(b.shape[0], 1)) if len(a.shape) == 2 and len(b.shape) == 3 else 1.0
    return size(a) + int(size(b) * share) + _read(rest, {}), _written(call)


def packed(call: Call) -> Bytes:
    """packed_linear(x, stored, columns, groups): of packed weights of many groups, those that rows are there for. A
    scale for each row, where there is one, counts as if it were the weights'."""
    x, stored, _, groups = call.args[:4]
    used = max(min(groups, math.prod(x.shape[:-1])), 1)
    return size(x) + sizes(stored) * used // groups, _written(call)


class AllBut:
    """Reads all arguments but those at these positions, of which only the shape matters."""

    def __init__(self, *unread: int) -> None:
        self.unread = unread

    def __call__(self, call: Call) -> Bytes:
        return _read([a for i, a in enumerate(call.args) if i not in self.unread], call.kwargs), _written(call)


def _written(call: Call) -> int:
    return sizes(call.mutated) or sizes(call.results)


def _read(args: Any, kwargs: dict[str, Any]) -> int:
    return sizes([*args, *(value for name, value in kwargs.items() if name not in ("out", "out0", "out1", "out2"))])


def part(call: Call) -> Bytes:
    """Copies of a part read what they return."""
    first, *rest = call.args
    if not is_tensor(first):  # nested
        return AllBut()(call)
    return min(sum(numel(t) * t.dtype.itemsize for t in call.results), size(first)) + _read(rest, {}), _written(call)


class _Into:
    """Writes some elements of its first argument, or of a copy of it, or adds to them.

    count: how many, of the call and its other tensors.
    """

    def __init__(self, count: Callable[[Call, list[Any]], int], adds: bool = False) -> None:
        self.count = count
        self.adds = adds

    def __call__(self, call: Call) -> Bytes:
        target, others = call.args[0], _others(call)
        moved = self.count(call, others) * int(target.dtype.itemsize)
        read = sum(map(size, others)) + (moved if self.adds else 0)
        if call.mutated:
            return read, moved
        return read + size(target), moved + sizes(call.results)


def _others(call: Call) -> list[Any]:
    return list(tensors([*call.args[1:], *(value for name, value in call.kwargs.items() if name != "out")]))


def _index(others: list[Any]) -> Any:
    return next((t for t in others if not t.dtype.is_floating_point), None)


def _as_indices(call: Call, others: list[Any]) -> int:
    index = _index(others)
    return numel(index) if index is not None else 0


def _rows(call: Call, others: list[Any]) -> int:
    return max(map(numel, others), default=0)


def _filled(call: Call, others: list[Any]) -> int:
    target, index = call.args[0], _index(others)
    if index is None:
        return _rows(call, others)
    length = target.shape[call.args[1]] if target.shape else 1  # a number has a dimension 0, too
    return numel(target) // max(length, 1) * numel(index)


def _put(call: Call, others: list[Any]) -> int:
    """Elements that ``target[indices]`` has at most: a mask may select everything."""
    target, indices = call.args[:2]
    values = call.args[2] if len(call.args) > 2 else None
    given = [index for index in indices if index is not None]
    if any(index.dtype == torch.bool for index in given):
        return numel(target) if values is None or numel(values) <= 1 else numel(values)
    picked = math.prod(torch.broadcast_shapes(*(tuple(index.shape) for index in given))) if given else 1
    lengths = [target.shape[axis] for axis in range(len(target.shape)) if axis >= len(indices) or indices[axis] is None]
    return picked * math.prod(lengths)


scatter, scatter_add = _Into(_as_indices), _Into(_as_indices, adds=True)
index_copy, index_add, index_fill = _Into(_rows), _Into(_rows, adds=True), _Into(_filled)


def index_put(call: Call) -> Bytes:
    """index_put(target, indices, values, accumulate)."""
    return _Into(_put, adds=len(call.args) > 3 and bool(call.args[3]))(call)


def embedding(call: Call) -> Bytes:
    """The rows looked up, and which."""
    given = list(tensors([*call.args[:2], call.kwargs.get("weight"), call.kwargs.get("indices")]))
    weight = next((t for t in given if t.dtype.is_floating_point or t.dtype.is_complex), None)
    if weight is None:  # a table of integers: by its shape, as Python's function has it behind the indices
        looked_up = [tuple(t.shape) for t in call.results]
        weight = next((t for t in given if len(t.shape) == 2 and _rest(given, t) in looked_up), given[0])
    indices = next((t for t in given if t is not weight), weight)
    rows = numel(indices) * weight.shape[-1] * int(weight.dtype.itemsize)
    return min(rows, size(weight)) + size(indices), sizes(call.results)


def _rest(given: list[Any], table: Any) -> tuple[int, ...]:
    """The shape of what the others of two tensors would look up in this one."""
    return (*(length for t in given if t is not table for length in t.shape), table.shape[-1])


def embedding_backward(call: Call) -> Bytes:
    """Zeros everywhere, then each gradient added to its row."""
    whole = sizes(call.results)
    rows = min(size(call.args[0]), whole)
    return _read(call.args, call.kwargs) + rows, whole + rows


def into_zeros(call: Call) -> Bytes:
    """select_backward, slice_backward ...: zeros, and the gradient copied into a part of them."""
    read = _read(call.args, call.kwargs)
    return read, sizes(call.results) + read


def onto_copy(call: Call) -> Bytes:
    """select_scatter, slice_scatter ...: a copy, and a part of it overwritten."""
    return _read(call.args, call.kwargs), sizes(call.results) + size(call.args[1])


def nll(call: Call) -> Bytes:
    """One number of each row is looked at."""
    scores, target = call.args[:2]
    return numel(target) * int(scores.dtype.itemsize) + _read(call.args[1:], call.kwargs), sizes(call.results)


def convolution_backward(call: Call) -> Bytes:
    """Input and weight are needed for each other's gradient only."""
    grad, x, weight = call.args[:3]
    mask = call.args[10] if len(call.args) > 10 else call.kwargs.get("output_mask", (True, True, True))
    return size(grad) + (size(weight) if mask[0] else 0) + (size(x) if mask[1] else 0), sizes(call.results)


def fused_optimizer(call: Call) -> Bytes:
    """Everything is read; all but the gradients is written (those too while they are scaled)."""
    lists = list(call.args)
    if call.kwargs.get("grad_scale") is None and len(lists) > 1:
        del lists[1]
    return _read(call.args, call.kwargs), sizes([value for value in lists if isinstance(value, (list, tuple))])


def conversion(call: Call) -> Bytes:
    """`to` and `contiguous` return what they are given where nothing has to change."""
    source, results = call.args[0], call.results
    kept = bool(results) and all(
        getattr(results[0], name, None) == getattr(source, name, None) for name in ("dtype", "device")
    )
    if kept and strides(results[0]) == strides(source):
        return 0, 0
    return size(source), sizes(results)
