"""The optimization engine: what recorded calls run in place of what was recorded, with eager's bits."""

from .optimizer import ask, counts, known_passes, may_overwrite, native_maker, optimizer_on, set_passes
from .optimizer_pass import Pass
from .segment_graph import Input, Number, RecordedCall, SegmentGraph, Unproven, Value

__all__ = [
    "Input",
    "Number",
    "Pass",
    "RecordedCall",
    "SegmentGraph",
    "Unproven",
    "Value",
    "ask",
    "counts",
    "known_passes",
    "may_overwrite",
    "native_maker",
    "optimizer_on",
    "set_passes",
]
