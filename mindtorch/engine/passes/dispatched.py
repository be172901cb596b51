"""What a function of torch's comes to in the dispatcher: proven by calling it on tensors without data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..._ext.guards import Unseen
from ..._ext.signals import by_signal_handler
from .segment_graph import Input, RecordedCall

__all__ = ["arguments", "comes_to", "equal", "kinds", "stand_ins"]


class _Seen(TorchDispatchMode):
    """Notes the calls and computes them on meta tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def arguments(call: RecordedCall, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of a call with these inputs."""
    return _put_in(call.args, inputs), {name: _put_in(value, inputs) for name, value in call.kwargs.items()}


def _put_in(value: Any, inputs: Sequence[Any]) -> Any:
    if isinstance(value, Input):
        return inputs[value]
    if isinstance(value, (tuple, list)):
        return type(value)(_put_in(item, inputs) for item in value)
    return value


def stand_ins(call: RecordedCall) -> list[torch.Tensor]:
    """Tensors without data, laid out as the call's inputs."""
    found = []
    for dtype, size, strides, _offset, _device in call.metas:
        if strides is None:
            found.append(torch.empty(size, dtype=dtype, device="meta"))
        else:
            found.append(torch.empty_strided(size, strides, dtype=dtype, device="meta"))
    return found


def kinds(call: RecordedCall) -> Any:
    """All that torch's choice among the functions of one name depends on."""
    return _kinds(call, call.args), tuple((name, _kinds(call, value)) for name, value in call.kwargs.items())


def _kinds(call: RecordedCall, value: Any) -> Any:
    if isinstance(value, Input):
        dtype, size, *_ = call.metas[value]
        return dtype, len(size)
    if isinstance(value, (tuple, list)):
        return tuple(_kinds(call, item) for item in value)
    return type(value)


def equal(a: Any, b: Any) -> bool:
    """Are the arguments of two calls the same?"""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    if isinstance(a, (tuple, list)):
        return isinstance(b, (tuple, list)) and len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(value, b[key]) for key, value in a.items())
    return type(a) is type(b) and bool(a == b or (a != a and b != b))


def comes_to(call: RecordedCall, function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    """The dispatcher's calls that `function` makes with the arguments of `call`, [(overload, args, kwargs)]; none where
    it takes no such arguments.
    """
    args, kwargs = arguments(call, inputs)
    seen = _Seen()
    try:
        with Unseen(), seen:
            function(*args, **kwargs)
    except Exception as error:
        if by_signal_handler(error):
            raise
        return []
    return seen.calls
