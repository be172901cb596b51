"""Copies that nobody can tell from what they are copies of."""

from __future__ import annotations

import sys

import torch

from .optimizer_pass import Pass
from .segment_graph import RecordedCall, SegmentGraph, Unproven

__all__ = ["CopyElimination"]

#: With one input, they give a copy of it, in another dtype where that is asked for.
_COPIES = frozenset(
    f"aten::{name}" for name in "_to_copy bfloat16 bool clone contiguous double float half int long short to".split()
)
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_WIDER = {
    torch.bool: {*_INTEGERS, torch.float32, torch.float64},
    torch.uint8: {torch.int16, torch.int32, torch.int64, torch.float32, torch.float64},
    torch.int8: {torch.int16, torch.int32, torch.int64, torch.float32, torch.float64},
    torch.int16: {torch.int32, torch.int64, torch.float32, torch.float64},
    torch.int32: {torch.int64, torch.float64},
    # Not float16 and bfloat16, whose NaNs are others after a conversion.
    torch.float32: {torch.float64},
}
#: Arithmetic gives no signaling NaN, which a conversion would change.
_QUIET = frozenset(f"aten::{name}" for name in "add addmm baddbmm bmm div linear matmul mm mul sqrt sub".split())


class CopyElimination(Pass):
    """What a copy is of is read in its place, where neither is written. So is what was cast to a wider dtype, for the
    result of the cast back.
    """

    name = "copy elimination"

    def run(self, graph: SegmentGraph) -> None:
        for call in graph.calls:
            if not _is_copy(call) or graph.is_changed(call):
                continue
            (value,), (out,) = call.inputs, call.outputs
            maker = graph.values[value].maker
            cast = graph.calls[maker] if maker >= 0 and maker not in graph.steps else None
            if graph.values[out].meta_id == call.meta_ids[0]:
                cast = None
            elif cast is None or not _is_copy(cast) or not self._is_exact(graph, cast, out):
                continue
            else:
                (value,) = cast.inputs
            value = graph.alike.get(value, value)
            try:
                graph.share(call, value)
            except Unproven:
                continue
            self.note(graph, call, graph.values[out].nbytes)
            if cast is not None:
                self._skip(graph, cast)

    @staticmethod
    def _is_exact(graph: SegmentGraph, cast: RecordedCall, back: int) -> bool:
        """Does value `back` have the bits that `cast` was given, if its result was cast to the same dtype again?"""
        (given,) = cast.inputs
        source, wide = graph.values[graph.alike.get(given, given)], graph.values[cast.outputs[0]]
        if cast.meta_ids[0] != graph.values[back].meta_id or wide.dtype not in _WIDER.get(source.dtype, ()):
            return False
        if graph.writes.get(wide.storage) or any(n != wide.number for n in graph.on[wide.storage]):
            return False
        if not source.dtype.is_floating_point:
            return True
        graph.on_settings = True
        quiet = source.maker >= 0 and graph.calls[source.maker].op in _QUIET and not _flushes_denormals()
        return quiet and not graph.is_changed(graph.calls[source.maker])

    def _skip(self, graph: SegmentGraph, cast: RecordedCall) -> None:
        """The first cast need not run where only casts back read it."""
        try:
            graph.skip(cast)
        except Unproven:
            return
        self.note(graph, cast, graph.values[cast.outputs[0]].nbytes)


def _is_copy(call: RecordedCall) -> bool:
    """Does it give its only input's elements in the same order, in memory of their own?"""
    return call.op in _COPIES and call.single and call.pure and not call.view and len(call.inputs) == 1


def _flushes_denormals() -> bool:
    # Torch does not tell. The same unit does Python's multiplication.
    return sys.float_info.min * 0.5 == 0.0
