"""Modules whose own ``forward`` switches gradients off, wherever they are called."""

from __future__ import annotations

from typing import Any

import torch

#: Of a function that ``torch.no_grad()``, or another such manager, decorates.
_DECORATED: Any = torch.no_grad()(lambda: None)


def without_gradients(kind: type[torch.nn.Module]) -> bool:
    """Is their ``forward`` decorated to run without gradients, as Llama's own is by ``torch.inference_mode()``?"""
    forward: Any = getattr(kind, "forward", None)
    if _written_at(forward) != _written_at(_DECORATED):
        return False
    return any(_switches_off(getattr(cell.cell_contents, "__self__", None)) for cell in forward.__closure__)


def _written_at(function: Any) -> tuple[str, int] | None:
    """The same for all that one decorator returns: torch 2.15 gives each a code of its own, with another name."""
    code = getattr(function, "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno)


def _switches_off(manager: Any) -> bool:
    if isinstance(manager, torch.set_grad_enabled):
        return not manager.mode
    return isinstance(manager, torch.no_grad) or (isinstance(manager, torch.inference_mode) and manager.mode)
