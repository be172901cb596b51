"""Calls made ready: arguments built once, and the shortest way into torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .dispatched import arguments, comes_to, equal, kinds, stand_ins
from .optimizer_pass import Pass
from .segment_graph import RecordedCall, SegmentGraph, Unproven

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
    key = call.overload, kinds(call)
    if key not in _known:
        _known[key] = next((f for f in _named(call.overload) if _is_same(call, f)), None)
    return _known[key]


def _named(overload: Any) -> Iterator[Callable[..., Any]]:
    name = overload._schema.name.removeprefix("aten::")
    for holder in (torch._C.TensorBase, torch._C._VariableFunctions, torch._C._nn):
        found = getattr(holder, name, None)
        if found is not None:
            yield found


def _is_same(call: RecordedCall, function: Callable[..., Any]) -> bool:
    """Does `function` make the call as it was recorded, and no other?"""
    inputs = stand_ins(call)
    made = comes_to(call, function, inputs)
    return len(made) == 1 and equal(made[0], (call.overload, *arguments(call, inputs)))
