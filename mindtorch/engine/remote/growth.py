"""What parameters that are trained come to need besides: a gradient, and the states of their optimizer (SPEC R5)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from ..._ext import lazy as _core
from ..semantics import modules, phases

__all__ = ["GRADIENT", "MOST", "STATES", "frozen", "of_phases", "slot_of", "states"]

GRADIENT = 1  # times the size of its parameter
STATES, MOST = 2, 3  # the same, where nobody knows the optimizer: those of Adam; and of any that is known

# By class: how many states of a parameter's size it keeps, by the options of the parameter's group. What an optimizer
# keeps that is smaller, such as the number of its step, does not count.
_KEPT: dict[type[torch.optim.Optimizer], Callable[[Mapping[str, Any]], int]] = {
    torch.optim.SGD: lambda group: bool(group["momentum"]),
    torch.optim.Adam: lambda group: 2 + bool(group["amsgrad"]),
    torch.optim.AdamW: lambda group: 2 + bool(group["amsgrad"]),
    torch.optim.RMSprop: lambda group: 1 + bool(group["centered"]) + (group["momentum"] > 0),
    torch.optim.Adafactor: lambda group: 0,  # a row and a column of each matrix
    **dict.fromkeys((torch.optim.Adagrad, torch.optim.ASGD, torch.optim.Muon), lambda group: 1),
    **dict.fromkeys(
        (torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adadelta, torch.optim.Rprop),
        lambda group: 2,
    ),
}


def of_phases(ran: Collection[str]) -> tuple[int, int]:
    """(times for gradients, times for states) that parameters still come to need, when these phases have begun."""
    return GRADIENT * ("backward" not in ran), STATES * ("optimizer" not in ran)


def states() -> dict[int, int]:
    """Slot of a storage -> how many states of its size its optimizer keeps, of all optimizers that the program has."""
    found: dict[int, int] = {}
    for optimizer in phases.constructed():
        kept = _KEPT.get(type(optimizer))
        if kept is None:
            continue
        for group in getattr(optimizer, "param_groups", ()):  # none while it is being made
            for parameter in group["params"]:
                if (slot := slot_of(parameter)) is not None:
                    found[slot] = kept(group)
    return found


def frozen() -> set[int]:
    """Slots of the storages of buffers, and of parameters that are not trained, of all models that have run."""
    found: set[int] = set()
    trained: set[int] = set()  # a storage may be that of several parameters
    for root, path in modules.roots():
        for module, _path in modules.walk(root, path):
            for _name, tensor in (*modules.held_now(module._parameters), *modules.held_now(module._buffers)):
                if tensor is not None and (slot := slot_of(tensor)) is not None:
                    (trained if tensor.requires_grad else found).add(slot)
    return found - trained


def slot_of(tensor: torch.Tensor) -> int | None:
    """Of its storage; None of a tensor that is not recorded."""
    handle = _core.get_handle(tensor)
    return None if handle is None else _core.root_slot(handle)
