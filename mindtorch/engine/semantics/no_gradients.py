"""Modules whose own ``forward`` switches gradients off, wherever they are called."""

from __future__ import annotations

from typing import Any

import torch

#: Of a function that ``torch.no_grad()``, or another such manager, decorates.
_DECORATED: Any = torch.no_grad()(lambda: None)


def without_gradients(kind: type[torch.nn.Module]) -> bool:
    """Is their ``forward`` decorated to run without gradients, as Llama's own is by ``torch.inference_mode()``?"""
    forward: Any = getattr(kind, "forward", None)
    if getattr(forward, "__code__", None) is not _DECORATED.__code__:
        return False
    return any(_switches_off(getattr(cell.cell_contents, "__self__", None)) for cell in forward.__closure__)


def _switches_off(manager: Any) -> bool:
    if isinstance(manager, torch.set_grad_enabled):
        return not manager.mode
    return isinstance(manager, torch.no_grad) or (isinstance(manager, torch.inference_mode) and manager.mode)
