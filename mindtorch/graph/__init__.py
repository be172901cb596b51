"""Views on what a program did: the pending tape, or everything while it ran, as nodes and edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .capture import capture, set_tracking, stop
from .graph import ComputationGraph, Node
from .parts import Call, Edge, Hole, Opaque, Output, Segment

if TYPE_CHECKING:
    from .analysis import Analyzer

__all__ = [
    "Call",
    "ComputationGraph",
    "Edge",
    "Hole",
    "Node",
    "Opaque",
    "Output",
    "Segment",
    "capture",
    "set_default_analyzer",
    "set_tracking",
    "stop",
]

make_analyzer: Callable[[], Analyzer] | None = None


def set_default_analyzer(make: Callable[[], Analyzer]) -> None:
    """What makes the analyzer that is asked where none was set (called once: imports go one way)."""
    global make_analyzer
    make_analyzer = make
