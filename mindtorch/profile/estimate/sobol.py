"""Sobol sequences in an estimate: torch draws them in C++ that reads its tensors, and asks nobody."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["replacements"]


def replacements() -> list[tuple[Any, str, Any]]:
    """(owner, attribute, replacement) of what `torch.quasirandom.SobolEngine` calls."""
    functions = {
        "_sobol_engine_initialize_state_": _changed,
        "_sobol_engine_scramble_": _changed,
        "_sobol_engine_ff_": _changed,
        "_sobol_engine_draw": _draw,
    }
    return [(torch, name, stand_in) for name, stand_in in functions.items() if hasattr(torch, name)]


def _changed(state: torch.Tensor, *args: Any) -> torch.Tensor:
    """What it holds from now on, nobody knows."""
    return state.random_()


def _draw(
    quasi: torch.Tensor, n: int, state: torch.Tensor, dimension: int, generated: int, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty((n, dimension), dtype=dtype), quasi.random_()
