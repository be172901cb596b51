"""Sobol sequences in an estimate: torch draws them in C++ that reads its tensors, and asks nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ...base.patching import Patch, existing

__all__ = ["patches"]


def patches() -> Iterator[Patch]:
    """Of what `torch.quasirandom.SobolEngine` calls."""
    changing = ("_sobol_engine_initialize_state_", "_sobol_engine_scramble_", "_sobol_engine_ff_")
    return existing(torch, {**dict.fromkeys(changing, _changed), "_sobol_engine_draw": _draw})


def _changed(state: torch.Tensor, *args: Any) -> torch.Tensor:
    """What it holds from now on, nobody knows."""
    return state.random_()


def _draw(
    quasi: torch.Tensor, n: int, state: torch.Tensor, dimension: int, generated: int, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty((n, dimension), dtype=dtype), quasi.random_()
