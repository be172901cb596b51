"""What operators whose kernels do not look are looked at for: `bounds` says which ones, and for what (SPEC R3)."""

from __future__ import annotations

from typing import NoReturn

import torch

__all__ = ["in_range", "like", "of_elements", "of_sizes", "rising", "wrong"]


def wrong(what: str) -> NoReturn:
    raise RuntimeError(what)


def in_range(t: torch.Tensor | None, end: int, begin: int = 0, besides: int | None = None) -> None:
    """Indices from ``begin`` up to, and without, ``end``; ``besides``: one that means nothing."""
    if t is None or not t.numel() or t.device.type != "cpu" or t.dtype.is_floating_point or t.dtype.is_complex:
        return
    low, high = (each.item() for each in torch.aminmax(t))
    if begin <= low and high < end:
        return
    wrong = t[((t < begin) | (t >= end)) & (t != (begin if besides is None else besides))]
    if wrong.numel():
        raise IndexError(f"expected indices in {begin}..{end - 1}, got {wrong.flatten()[0].item()}")


def rising(t: torch.Tensor, end: int) -> None:
    """Offsets of parts, one after the other, from 0 up to ``end``."""
    in_range(t, end + 1)
    if t.device.type == "cpu" and (t[0].item() if t.numel() else end) != 0:
        wrong("expected offsets that start at 0")
    if t.device.type == "cpu" and t.numel() > 1 and bool((t[1:] < t[:-1]).any()):
        wrong("expected offsets in ascending order")


def of_sizes(t: torch.Tensor | None, *sizes: int) -> None:
    """A tensor, if there is one, of these sizes."""
    if t is not None and tuple(t.shape) != sizes:
        wrong(f"expected a tensor of {sizes}, got one of {tuple(t.shape)}")


def like(other: torch.Tensor, *tensors: torch.Tensor | None) -> None:
    """Tensors, those that there are, of the sizes of another one."""
    for t in tensors:
        of_sizes(t, *other.shape)


def of_elements(n: int, *tensors: torch.Tensor | None) -> None:
    """Tensors, those that there are, of so many elements."""
    for t in tensors:
        if t is not None and t.numel() != n:
            wrong(f"expected a tensor of {n} elements, got one of {tuple(t.shape)}")
