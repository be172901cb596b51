"""Values that are the same each time a segment repeats, computed once."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Container
from typing import Any

import torch

from ..._ext import lazy as _core
from ..._ext.signals import by_signal_handler
from .native import NATIVE
from .optimizer_pass import Pass
from .segment_graph import Input, RecordedCall, SegmentGraph, Unproven

__all__ = ["ConstantFolding"]

#: What makes a tensor, of another's metadata or of none's.
_MADE = frozenset(
    f"aten::{name}"
    for name in (
        "arange eye full full_like linspace new_full new_ones new_zeros ones ones_like scalar_tensor zeros zeros_like"
    ).split()
)
#: What they give depends on nothing but their arguments and torch's settings. They are no writes and no draws.
_FOLDABLE = _MADE | {name for name in NATIVE if not name.endswith("_")}
MOST_BYTES = 1 << 20  # of one value
MOST_BYTES_KEPT = 16 << 20  # of all values that are kept


class ConstantFolding(Pass):
    """A call whose inputs are made of constants within the segment gives a tensor that is kept: masks, positions."""

    name = "constant folding"

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._kept: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()

    def nbytes(self) -> int:
        """Of the values that are kept, views not counted."""
        return sum(each.nbytes for each in self._kept.values() if each._base is None)

    def run(self, graph: SegmentGraph) -> None:
        known: dict[int, torch.Tensor] = {}
        folded = []
        left = MOST_BYTES_KEPT - self.nbytes()
        for call in graph.calls:
            if not self._is_constant(graph, call, known) or (nbytes := self._nbytes(graph, call)) > left:
                continue
            result = self._computed(graph, call, known)
            if result is None:
                continue
            try:
                graph.fold(call, result)
            except Unproven:
                continue
            known[call.outputs[0]] = result
            self._kept[next(self._numbers)] = result
            left -= nbytes
            folded.append(call)
            self.note(graph, call)
        graph.on_settings |= bool(folded)
        for call in reversed(folded):
            _skipped(graph, call)

    @staticmethod
    def _is_constant(graph: SegmentGraph, call: RecordedCall, known: Container[int]) -> bool:
        return (
            call.op in _FOLDABLE
            and call.single
            and call.pure
            and not call.floats
            and not graph.is_changed(call)
            and all(value in known for value in call.inputs)
        )

    @staticmethod
    def _nbytes(graph: SegmentGraph, call: RecordedCall) -> int:
        """Of memory that keeping the result takes; more than there can be where that is too much."""
        nbytes = graph.values[call.outputs[0]].nbytes
        return 0 if call.view else nbytes if nbytes <= MOST_BYTES else MOST_BYTES_KEPT + 1

    @staticmethod
    def _computed(graph: SegmentGraph, call: RecordedCall, known: dict[int, torch.Tensor]) -> torch.Tensor | None:
        """The result, as it was predicted; None where the call fails, which it does again where it was made."""
        out = graph.values[call.outputs[0]]
        dtype, sizes, strides, offset, _device = out.meta
        inputs = [known[value] for value in call.inputs]
        try:
            with torch.no_grad():
                result = call.function(
                    *(_given(a, inputs) for a in call.args), **{k: _given(a, inputs) for k, a in call.kwargs.items()}
                )
        except Exception as error:  # the call's own, which it raises once more where it was made
            if by_signal_handler(error):
                raise
            return None
        as_told = (
            isinstance(result, torch.Tensor)
            and result.dtype is dtype
            and result.shape == sizes
            and _core.canonical(result.shape, result.stride()) == strides
            and result.storage_offset() == offset
        )
        return result if as_told else None


def _given(a: Any, inputs: list[torch.Tensor]) -> Any:
    if isinstance(a, Input):
        return inputs[a]
    return type(a)([_given(item, inputs) for item in a]) if type(a) in (tuple, list) else a


def _skipped(graph: SegmentGraph, call: RecordedCall) -> None:
    """Where no call reads the result, it need not be there."""
    try:
        graph.skip(call)
    except Unproven:
        return
