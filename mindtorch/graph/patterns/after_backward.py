"""What happens to gradients after a backward pass: which values are gradients, and what depends on them, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..graph import PHASES, ComputationGraph
from ..parts import Hole, Reading
from .flow import Flow
from .rerun import Source

__all__ = ["AFTER_BACKWARD", "Gradients", "Key", "has_gradients"]

#: Phases of what is done with gradients.
AFTER_BACKWARD = ("optimizer", "other", "forward", "prefill", "decode")

_BACKWARD = PHASES.index("backward")

Key = tuple[Any, ...]  # as of `rerun.run`: a source, or a source and how it lies there

_VIEWS = frozenset(f"aten::{name}" for name in (
    "view", "_unsafe_view", "t", "transpose", "permute", "detach", "alias", "reshape", "_reshape_alias", "squeeze",
    "unsqueeze", "select", "slice", "expand", "as_strided", "split", "unbind", "chunk", "split_with_sizes", "numpy_T",
    "lift_fresh", "view_as_real",
)) | {"genie::data"}  # fmt: skip


def has_gradients(graph: ComputationGraph) -> bool:
    """Is any value one (`Gradients.is_gradient`)?"""
    return _BACKWARD in graph._phase or bool(graph._gradients)


class Gradients:
    """Of one graph: where values come from, element by element of lists."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._backward = bytes(phase == _BACKWARD for phase in flow.graph._phase)
        self._origins: dict[Source, Source] = {}
        self._read: set[Source] | None = None
        self._taken = {self.origin(source) for source in flow.graph._gradients}

    def origin(self, source: Source) -> Source:
        """The tensor whose memory it is: behind views and writes."""
        trail = []
        while source not in self._origins:
            trail.append(source)
            if (behind := self._behind(source)) is None:
                self._origins[source] = source
            else:
                source = behind
        found = self._origins[source]
        self._origins.update(dict.fromkeys(trail, found))
        return found

    def named(self, source: Source) -> int:
        """The node that has the weight's name, of all that have its memory, else the first of them: a graph that begins
        after a forward pass may meet a transposed view of the weight before the weight."""
        at: Source | None = source
        while at is not None:
            if self.flow.is_weight(at[0]):
                return at[0]
            at = self._behind(at)
        return self.origin(source)[0]

    def _behind(self, source: Source) -> Source | None:
        """What has the same memory, before a write or a view."""
        node, output = source
        view = self.flow[node]
        if self._is_written(source):
            return view.inputs[view.writes[output - len(view.outputs) + len(view.writes)]]
        return view.inputs[0] if self.flow.ops[node] in _VIEWS and view.inputs else None

    def is_gradient(self, source: Source) -> bool:
        """Did a backward pass make it, or add to what it holds, if need be before the graph began?"""
        while (behind := self._behind(source)) is not None:
            if self._backward[source[0]] and self._is_written(source):
                return True
            source = behind
        return bool(self._backward[source[0]]) or source in self._taken

    def _is_written(self, source: Source) -> bool:
        view = self.flow[source[0]]
        return bool(view.writes) and source[1] >= len(view.outputs) - len(view.writes)

    def is_stepped(self, origin: Source) -> bool:
        """Is it a weight: a parameter, or what a pass forward or backward reads?"""
        if self.flow.is_weight(origin[0]):
            return True
        if self._read is None:
            nodes = self.flow.graph.nodes
            self._read = {
                self.origin(source) for n, phase in enumerate(self._backward)
                if phase or (nodes[n].module and nodes[n].phase != "optimizer") for source in nodes[n].inputs
            }  # fmt: skip
        return origin in self._read

    def start(self, node: int) -> int:
        """The last backward node before it; -1 for none."""
        return self._backward.rfind(1, 0, node)

    def written(self, node: int) -> Iterator[tuple[Source, Source]]:
        """(what it wrote, the tensor whose memory that is)"""
        view = self.flow[node]
        fresh = len(view.outputs) - len(view.writes)
        for output in range(fresh, len(view.outputs)):
            yield (node, output), self.origin((node, output))

    def made_of(self, value: Source) -> list[tuple[Source, Reading | None]]:
        """What it is computed of: of a list, the entries at the same place."""
        node, output = value
        view = self.flow[node]
        every = list(zip(view.inputs, view.readings, strict=True))
        if not self.flow.ops[node].startswith(("aten::_foreach_", "aten::_fused_")):
            return every
        found: list[tuple[Source, Reading | None]] = []
        fresh = len(view.outputs) - len(view.writes)
        place = output if output < fresh else output - fresh
        for argument in (*view.args, *view.kwargs.values()):
            if isinstance(argument, Hole):
                found.append(every[argument.index])
            elif isinstance(argument, (list, tuple)) and argument and all(isinstance(a, Hole) for a in argument):
                found.append(every[argument[place % len(argument)].index])
        return found

    def walk(self, value: Source, within: Callable[[int], bool]) -> tuple[list[Source], list[tuple[Key, Source]]]:
        """(values that it is computed of, itself included, in program order; those from elsewhere, as keys and sources)

        within: whether a node is looked behind.
        """
        seen: set[Source] = set()
        leaves: dict[Key, Source] = {}
        todo = [value]
        for at in todo:  # grows while it is read
            if at in seen:
                continue
            seen.add(at)
            for source, reading in self.made_of(at):
                if within(source[0]) and self.flow.is_op(source[0]) and reading is None:
                    todo.append(source)
                else:
                    leaves[source if reading is None else (*source, reading)] = source
        return sorted(seen), list(leaves.items())
