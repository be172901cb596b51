"""The optimization engine: segments that repeat themselves run fewer calls, and shorter ones, with eager's bits."""

from .optimizer import counts, known_passes, optimizer_on, set_passes
from .optimizer_pass import Pass
from .segment_graph import Input, RecordedCall, SegmentGraph, Unproven, Value

__all__ = [
    "Input",
    "Pass",
    "RecordedCall",
    "SegmentGraph",
    "Unproven",
    "Value",
    "counts",
    "known_passes",
    "optimizer_on",
    "set_passes",
]
