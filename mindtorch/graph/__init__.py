"""Views on what a program did: the pending tape, or everything while it ran, as nodes and edges."""

from .capture import capture, set_tracking, stop
from .graph import ComputationGraph, Node
from .parts import Call, Edge, Hole, Opaque, Output, Segment

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
    "set_tracking",
    "stop",
]
