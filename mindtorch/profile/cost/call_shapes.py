"""Shapes that ops are called with: of their inputs and outputs, one entry per distinct call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from mindtorch.profile.cost.work import Work

Shape = tuple[str, tuple[int, ...]]  # dtype, sizes


class Shaped(NamedTuple):
    """What one call looks like. work: see `Work`; None where nobody asked for it."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    work: Work | None


def shaped(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, work: Work | None) -> Shaped:
    inputs = tuple(_shapes((args, tuple((kwargs or {}).values()))))
    return Shaped(inputs, tuple(_shapes((out,))), work)


def _shapes(values: tuple[Any, ...] | list[Any]) -> Iterator[Shape]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield str(value.dtype).removeprefix("torch."), _sizes(value)
        elif isinstance(value, (tuple, list)):
            yield from _shapes(value)


def _sizes(tensor: torch.Tensor) -> tuple[int, ...]:
    """-1 where the parts of a nested tensor differ, as torch itself shows it."""
    try:
        return tuple(n if type(n) is int else -1 for n in tensor.shape)
    except RuntimeError:  # strided nested tensors have no shape to tell
        parts = tensor._nested_tensor_size()
        return (len(parts), *(column[0] if len(set(column)) == 1 else -1 for column in parts.T.tolist()))


def facts(shapes: tuple[Shape, ...]) -> list[dict[str, Any]]:
    """For a report."""
    return [{"dtype": dtype, "shape": list(sizes)} for dtype, sizes in shapes]


def text(shapes: tuple[Shape, ...]) -> str:
    """``float32[2, 3] int64[4]``"""
    return " ".join(f"{dtype}{list(sizes)}" for dtype, sizes in shapes)
