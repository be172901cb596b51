"""What a pass is (SPEC L13)."""

from __future__ import annotations

from .segment_graph import RecordedCall, SegmentGraph

__all__ = ["Pass"]


class Pass:
    """A change to segments that repeat themselves, which keeps eager's bits.

    A subclass gives `name` and `run`. To make it known to everybody, name an instance of it as an entry point of the
    group ``mindtorch.passes``.
    """

    name = ""
    #: Is it used unless somebody says otherwise?
    on = True

    def run(self, graph: SegmentGraph) -> None:
        """Change what the calls of `graph` run, by its methods, which refuse what might show.

        What a function computes is the pass's to prove: the same bits, the same errors.
        """
        raise NotImplementedError

    def note(self, graph: SegmentGraph, call: RecordedCall, nbytes: int = 0) -> None:
        """Count a change. nbytes: memory that is not taken because of it."""
        calls, saved = graph.notes.get(self.name, (0, 0))
        graph.notes[self.name] = (calls + 1, saved + nbytes)
