"""``torch.jit.trace`` watches C++ handle tensors with memory, which lazy ones do not have: refused in one clear error.

A program traced on the CPU runs on lazy tensors as any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ._ext import lazy as _core
from .errors import UnsupportedOperationError

__all__ = ["patches"]


def _refusing(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def trace(func: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(func, "__self__", func)  # a module, or a method of one
        held = (*owner.parameters(), *owner.buffers()) if isinstance(owner, torch.nn.Module) else ()
        lazy = next((t for t in (*held, *tree_leaves((args, kwargs))) if _core.get_handle(t) is not None), None)
        if lazy is not None:
            raise UnsupportedOperationError(
                f"[torch.jit.trace] expected tensors and modules on the CPU, got one on {lazy.device}: trace there, "
                f"then move the traced module with .to('{lazy.device}') or call it on tensors of that device"
            )
        return original(func, *args, **kwargs)

    return trace


_stand_ins = [(torch.jit._trace, "_trace_impl", _refusing(torch.jit._trace._trace_impl)),
              *((owner, "trace_module", _refusing(torch.jit._trace.trace_module))
                for owner in (torch.jit._trace, torch.jit))]


def patches() -> list[tuple[Any, str, Any]]:
    """(owner, name, stand-in) of torch's ways to trace."""
    return list(_stand_ins)
