"""Numbers that a program makes tensors of while calls are sampled: a graph of an estimate has them as a run's has.

A function that is written out, as GELU by its tanh, is known by its constants, also where they are tensors.
"""

from __future__ import annotations

from typing import Any

import torch

from ..._ext import lazy as _core
from ..._ext import ledger

__all__ = ["made", "noted"]

#: While somebody takes a graph: (how many calls there were before, slot, number) of each, in program order.
made: list[tuple[int, int, bool | int | float | complex]] | None = None


def noted(t: Any, value: torch.Tensor) -> Any:
    """``t``, which is what `value` is."""
    if made is not None and value.numel() == t.numel() == 1 and (handle := _core.get_handle(t)) is not None:
        made.append((ledger.position(), handle.slot, value.item()))
    return t
