"""Calls made ready: arguments built once, and the shortest way into torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .dispatched import comes_to, put_in
from .optimizer_pass import Pass
from .segment_graph import Input, RecordedCall, SegmentGraph, Unproven

__all__ = ["DirectCalls", "direct"]

_known: dict[Any, Callable[..., Any] | None] = {}


class DirectCalls(Pass):
    """Arguments are built once for all segments of a form; an operator that autograd called is called by torch's
    function for Python, which finds its way sooner, where that is proven to be the same call.
    """

    name = "direct calls"

    def run(self, graph: SegmentGraph) -> None:
        for call in graph.calls:
            if graph.is_changed(call):
                continue
            try:
                graph.replace(call, direct(call) or call.function, call.args, call.kwargs)
            except Unproven:
                continue
            self.note(graph, call)


def direct(call: RecordedCall) -> Callable[..., Any] | None:
    """Torch's function for Python that makes this very call of the dispatcher, with the same arguments."""
    if not isinstance(call.overload, torch._ops.OpOverload) or call.overload.namespace != "aten":
        return None
    key = (call.overload, _kinds(call, call.args), tuple((k, _kinds(call, v)) for k, v in call.kwargs.items()))
    if key not in _known:
        _known[key] = next((f for f in _named(call.overload) if is_same(call, f)), None)
    return _known[key]


def _named(overload: Any) -> Iterator[Callable[..., Any]]:
    name = overload._schema.name.removeprefix("aten::")
    for holder in (torch._C.TensorBase, torch._C._VariableFunctions, torch._C._nn):
        found = getattr(holder, name, None)
        if found is not None:
            yield found


def is_same(call: RecordedCall, function: Callable[..., Any]) -> bool:
    """Does `function` make the call as it was recorded, and no other?"""
    inputs = stand_ins(call)
    args, kwargs = put_in(call.args, inputs, Input), {k: put_in(v, inputs, Input) for k, v in call.kwargs.items()}
    made = comes_to(function, args, kwargs)
    return len(made) == 1 and _equal(made[0], (call.overload, args, kwargs))


def stand_ins(call: RecordedCall) -> list[torch.Tensor]:
    """Tensors without data, laid out as the call's inputs."""
    found = []
    for dtype, size, strides, _offset, _device in call.metas:
        made = torch.empty(size, dtype=dtype, device="meta") if strides is None else torch.empty_strided(
            size, strides, dtype=dtype, device="meta")  # fmt: skip
        found.append(made)
    return found


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    if isinstance(a, (tuple, list)):
        return isinstance(b, (tuple, list)) and len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(value, b[key]) for key, value in a.items())
    return type(a) is type(b) and bool(a == b)


def _kinds(call: RecordedCall, value: Any) -> Any:
    """What torch's choice among the functions of one name can depend on."""
    if isinstance(value, Input):
        dtype, size, *_ = call.metas[value]
        return dtype, len(size)
    if isinstance(value, (tuple, list)):
        return tuple(_kinds(call, item) for item in value)
    return type(value)
