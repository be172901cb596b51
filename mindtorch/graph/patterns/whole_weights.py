"""Weights whose first values were last written in parts, as in ``embedding.weight[0] = 0``, as if nothing had been.

After a write to a storage, all that share it are read from the writer, which may give one row of a table. What weights
hold is no part of a pattern, but their sizes are: here they are read from what last gave all of them.
"""

from __future__ import annotations

import copy

from ..._ext.strides import contiguous
from ..graph import ComputationGraph, Node
from .rerun import Source

__all__ = ["whole_weights"]


def whole_weights(graph: ComputationGraph) -> ComputationGraph:
    """That graph, with the same numbers of nodes; itself where there is no such weight."""
    readers = [place for place in graph._readings if graph._source[place] in graph._names]
    if not readers:
        return graph
    found = copy.copy(graph)
    found._source, found._output = graph._source[:], graph._output[:]
    found._readings, found._names = dict(graph._readings), dict(graph._names)
    for place in readers:
        part, reading = graph._source[place], graph._readings[place]
        whole = _whole(graph, part, reading.shape)
        if whole is None or reading.offset or reading.strides != contiguous(reading.shape):
            continue
        found._source[place], found._output[place] = whole
        del found._readings[place]
        found._names.setdefault(whole[0], graph._names[part])
    return found


def _whole(graph: ComputationGraph, part: int, shape: tuple[int, ...]) -> Source | None:
    """What gave all of it, before any module ran; `part` wrote one part."""
    source: Source = (part, 0)
    while True:
        node = Node(graph, source[0])
        if node.module or node.kind != "op":
            return None
        if source[0] != part and node.outputs[source[1]].shape == shape:
            return source
        if not node.inputs:
            return None
        source = node.inputs[node.writes[0] if node.writes else 0]
