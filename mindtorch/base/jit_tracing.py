"""``torch.jit.trace`` in programs that are measured or captured."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from .patching import Patch


def without_our_modes(tracing: Callable[[bool], None]) -> Iterator[Patch]:
    """``torch.jit.trace``, and what exporters call in its place, without the dispatch modes of ours.

    Through any mode the tracer loses what numbers of the program were made of, and fails.

    tracing: called with True before, and with False after it.
    """
    for owner in (torch.jit._trace, torch.jit):
        for name in ("_trace_impl", "trace_module", "_get_trace_graph"):
            if hasattr(owner, name):
                yield owner, name, _apart(getattr(owner, name), tracing)


def _apart(original: Callable[..., Any], tracing: Callable[[bool], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def trace(*args: Any, **kwargs: Any) -> Any:
        modes = _get_current_dispatch_mode_stack()
        if not modes or not all(type(mode).__module__.startswith("mindtorch.") for mode in modes):
            return original(*args, **kwargs)  # a mode of the program's stays on
        tracing(True)
        try:
            with _disable_current_modes():
                return original(*args, **kwargs)
        finally:
            tracing(False)

    return trace
