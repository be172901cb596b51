"""What a pass is (SPEC L13)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .segment_graph import RecordedCall, SegmentGraph

__all__ = ["Pass", "first_of"]


def first_of(holders: Iterable[Any], name: str) -> Any:
    """What the first of these that has the name gives by it; None where none has."""
    return next((found for holder in holders if (found := getattr(holder, name, None)) is not None), None)


class Pass:
    """A change to what recorded calls run, which keeps eager's bits.

    A subclass gives `name`, and `function` or `run`. To make it known to everybody, name an instance of it as an entry
    point of the group ``mindtorch.passes``.
    """

    name = ""
    #: Is it used unless somebody says otherwise?
    on = False

    def function(self, info: Any) -> None:
        """Asked once for each function that was recorded: `info` is its `mindtorch._ext.intern.OpInfo`.

        It may give it another ``replay`` (what is called for it), and an ``in_place`` (what computes the same in the
        memory of its first argument: called where nothing else can read that any more).
        """

    def run(self, graph: SegmentGraph) -> None:
        """Asked once for each form of segments that came several times.

        It changes what the calls of `graph` run, by its methods, which refuse what might show. What a function computes
        is the pass's to prove: the same bits, the same errors.
        """

    def note(self, graph: SegmentGraph, call: RecordedCall, nbytes: int = 0) -> None:
        """Count a change of `run`'s. nbytes: memory that is not taken because of it."""
        calls, saved = graph.notes.get(self.name, (0, 0))
        graph.notes[self.name] = (calls + 1, saved + nbytes)
