"""The execution phase of every op: forward, backward, optimizer or other.

- forward: inside an outermost module call; also, in grad mode, after such a call until the next backward or optimizer
  step, because that is where the loss is computed.
- backward: while autograd's engine runs, whatever it calls (hooks, and forward code run again by checkpointing).
- optimizer: inside ``Optimizer.step`` of any optimizer, the user's own included. A closure's forward and backward
  count as such.
- other: the rest (data preparation, sampling, ``zero_grad``).

A step that raises ends when the same optimizer steps again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from mindtorch._ext import context

_original: Callable[..., Any] | None = None
_handles: list[RemovableHandle] = []
# torch.autograd imported the function by name, so it has a copy of its own.
_places = (torch.autograd.graph, torch.autograd)


def patch() -> None:
    global _original
    _original = torch.autograd.graph._engine_run_backward
    context.set_run_backward(_original)
    for place in _places:
        if place._engine_run_backward is _original:  # type: ignore[attr-defined]
            place._engine_run_backward = context.tracked_backward  # type: ignore[attr-defined]
    _handles.append(register_optimizer_step_pre_hook(_begin))
    _handles.append(register_optimizer_step_post_hook(_end))


def unpatch() -> None:
    for place in _places:
        if place._engine_run_backward is context.tracked_backward:  # type: ignore[attr-defined]
            place._engine_run_backward = _original  # type: ignore[attr-defined]
    while _handles:
        _handles.pop().remove()


def _begin(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    context.optimizer_begin(optimizer)


def _end(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    context.optimizer_end(optimizer)
