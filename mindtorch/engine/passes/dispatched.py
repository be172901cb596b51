"""What a function of torch's comes to in the dispatcher: proven by calling it on tensors without data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..._ext.guards import Unseen
from ..._ext.signals import by_signal_handler

__all__ = ["comes_to", "put_in"]


class _Seen(TorchDispatchMode):
    """Notes the calls and computes them on meta tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def put_in(value: Any, inputs: Sequence[Any], kind: type) -> Any:
    """An argument with `inputs` in place of the numbers of class `kind`."""
    if isinstance(value, kind):
        return inputs[value]  # type: ignore[call-overload]
    if isinstance(value, (tuple, list)):
        return type(value)(put_in(item, inputs, kind) for item in value)
    return value


def comes_to(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The dispatcher's calls that it makes, [(overload, args, kwargs)]; none where it takes no such arguments."""
    seen = _Seen()
    try:
        with Unseen(), seen:
            function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever a function says to arguments that are not for it
        if by_signal_handler(error):
            raise
        return []
    return seen.calls
