"""A value computed once that a program computes twice."""

from __future__ import annotations

from typing import Any

from .optimizer_pass import Pass
from .segment_graph import RecordedCall, SegmentGraph, Unproven

__all__ = ["CommonSubexpressions"]

#: Their results are not told by what they are given.
_ANY_CONTENT = frozenset({"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty",
                          "aten::new_empty_strided"})  # fmt: skip
MOST_BYTES = 1 << 20  # of a value that lives longer because of it


class CommonSubexpressions(Pass):
    """The second of two equal calls, on equal versions of what they read, gives the first one's tensor."""

    name = "common subexpressions"

    def run(self, graph: SegmentGraph) -> None:
        first: dict[Any, int] = {}
        for call in graph.calls:
            if not call.single or not call.pure or call.op in _ANY_CONTENT:
                continue
            key = self._key(graph, call)
            (out,) = call.outputs
            value = first.setdefault(key, out)
            if value == out:
                continue
            found = graph.values[value]
            if not call.view and max(found.readers, default=0) < call.number and found.nbytes > MOST_BYTES:
                first[key] = out  # it would live longer: memory for time
                continue
            try:
                graph.share(call, value)
            except Unproven:
                first[key] = out
                continue
            self.note(graph, call, 0 if call.view else found.nbytes)

    @staticmethod
    def _key(graph: SegmentGraph, call: RecordedCall) -> Any:
        read = tuple(graph.alike.get(value, value) for value in call.inputs)
        versions = () if call.view else tuple(graph.version(value, call.number) for value in call.inputs)
        return call.sig, call.floats, call.grad, read, versions
