"""The optimization engine: what recorded calls run in place of what was recorded, with eager's bits."""

from .optimizer import (
    add_again,
    add_elsewhere,
    ask,
    choose,
    chosen,
    counts,
    forget_settings,
    in_use,
    known_passes,
    may_overwrite,
    native_maker,
    native_prover,
    optimizer_on,
    repeatable,
    rest_on_settings,
    set_passes,
)
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
    "add_again",
    "add_elsewhere",
    "ask",
    "choose",
    "chosen",
    "counts",
    "forget_settings",
    "in_use",
    "known_passes",
    "may_overwrite",
    "native_maker",
    "native_prover",
    "optimizer_on",
    "repeatable",
    "rest_on_settings",
    "set_passes",
]
