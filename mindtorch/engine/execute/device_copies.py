"""Copies from one ``remote_accelerator`` to another, which do not pass through the program (SPEC R2)."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from ..._ext import lazy as _core
from ..._ext.guards import NoGrad, Unseen
from ...devices.lazy_device import torch_device
from ..record import unwrapping
from . import values

__all__ = ["copied", "moves"]


def moves(t: torch.Tensor) -> bool:
    """May `copied` move it? Not what a transform is looking at, and nothing with a tangent."""
    return _core.get_handle(t) is not None and not unwrapping.wrapped(t) and forward_ad._current_level < 0


def copied(t: torch.Tensor, index: int) -> Any:
    """A copy of lazy ``t`` on ``remote_accelerator:index``; differentiable."""
    if t.requires_grad and torch.is_grad_enabled():
        return _Across.apply(t, index)
    return _copied(t, index)


def _copied(t: torch.Tensor, index: int) -> Any:
    with Unseen(), NoGrad():
        own = t.detach().clone()
        value = values.executor().move(values.materialize([own], "to")[0], index)
    return _core.hold(value, index, None, torch.is_grad_enabled())


class _Across(torch.autograd.Function):
    @staticmethod
    def forward(t: Any, index: int) -> Any:
        return _copied(t, index)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.set_materialize_grads(False)  # as torch's own moves: what is undefined stays that
        ctx.index = unwrapping.index_inside(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:  # type: ignore[override]
        return None if grad is None else grad.to(torch_device(ctx.index)), None
