"""What torch's transforms (torch.func, the older vmap) put around a tensor, and the tensor of ours inside."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

from ..._ext import lazy as _core

__all__ = [
    "below_functionalization",
    "differentiates",
    "hides",
    "index_inside",
    "lifted",
    "traced",
    "tracing_mode",
    "wrapped",
]
_functorch = torch._C._functorch


def index_inside(t: Any) -> int | None:
    """The index of a lazy tensor's device, also where transforms of torch.func have wrapped it; else None."""
    if not isinstance(t, torch.Tensor):
        return None
    while _functorch.is_functorch_wrapped_tensor(t):
        t = _functorch.get_unwrapped(t)
    return None if _core.get_handle(t) is None else _core.device_index(t)


def hides(t: Any) -> bool:
    """Is this a tensor of torch's own around a recorded one? C++ takes it for one that is on the CPU already."""
    if _functorch.peek_interpreter_stack() is None or _core.get_handle(t) is not None:
        return False
    index = index_inside(t)
    return index is not None and index >= 0


def lifted(made: Any) -> Any:
    """What was created within transforms, as theirs: else they take it for a tensor from outside, not to be written."""
    if _functorch.peek_interpreter_stack() is None or wrapped(made) or made.layout is not torch.strided:
        return made
    with torch._C.DisableTorchFunctionSubclass():
        return torch.ops.aten.lift_fresh.default(made)


def traced(made: Any) -> Any:
    """What came to a device of ours while ``make_fx`` traces: a constant of its graph, copied in each of its runs."""
    if tracing_mode() is None:
        return made
    with torch._C.DisableTorchFunctionSubclass():
        return torch.ops.aten.lift_fresh.default(made)


PROXY = torch._C._TorchDispatchModeKey.PROXY  # type: ignore[attr-defined]


def tracing_mode() -> Any:
    """The mode by which ``make_fx`` traces the program's calls; None: they are not traced, or this is one of ours."""
    return torch._C._get_dispatch_mode(PROXY)  # type: ignore[attr-defined]


def wrapped(t: torch.Tensor) -> bool:
    """True for the tensors of a torch.func transform or of torch's older vmap: what they stand for is inside."""
    return _functorch.is_functorch_wrapped_tensor(t) or in_older_vmap(t)


_BATCHED = torch._C._parse_dispatch_key("Batched")


def in_older_vmap(t: torch.Tensor) -> bool:
    """Is this a batch of gradients (``is_grads_batched=True``), which is taken for one of them?"""
    return _BATCHED is not None and torch._C._dispatch_keys(t).has(_BATCHED)


def below_older_vmap(move: Move, t: torch.Tensor) -> Any:
    """``move`` of the whole batch, as such a batch again: that vmap asks autograd functions for no rule."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    whole = torch._remove_batch_dim(t, level, -1, 0)  # -1: its size is known
    return torch._add_batch_dim(move(whole), 0, level)


Move = Callable[[torch.Tensor], Any]


def below(t: torch.Tensor) -> Callable[[Move, torch.Tensor], Any] | None:
    """What moves ``t`` to another device, where that is to be done with what is inside."""
    if _functorch.is_functionaltensor(t):
        return below_functionalization
    return below_older_vmap if in_older_vmap(t) else None


def below_functionalization(move: Move, t: torch.Tensor) -> Any:
    """``move`` of what a tensor of ``torch.func.functionalize`` stands for, as such a tensor again.

    Autograd functions have no rule for functionalization: a copy to another device needs none.
    """
    level = _functorch.maybe_get_level(t)
    torch._sync(t)  # type: ignore[attr-defined]
    with retrieve_current_functorch_interpreter().lower():
        moved = move(_functorch.get_unwrapped(t))
    return _functorch._wrap_functional_tensor(moved, level)


def differentiates(outputs: Iterable[Any]) -> bool:
    """Does anybody differentiate again what a backward pass of `outputs` finds that keeps its graph?

    torch.func's passes always keep it, for a transform around them; there is none if nothing but their own level
    needs gradients of the outputs.
    """
    return any(_needed_outside(t) for t in outputs)


def _needed_outside(t: Any) -> bool:
    if not _functorch.is_functorch_wrapped_tensor(t):
        return True
    while _functorch.is_functorch_wrapped_tensor(t):
        t = _functorch.get_unwrapped(t)
        if t.requires_grad:
            return True
    return False
