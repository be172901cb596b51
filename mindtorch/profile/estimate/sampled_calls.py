"""Graphs of a few calls of each model, in an estimate: from what its ledger logs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch

from mindtorch._ext import context, ledger
from mindtorch._ext import lazy as _core
from mindtorch._ext import tape as _tape
from mindtorch.engine.semantics import modules
from mindtorch.engine.semantics.owners import named_tensors
from mindtorch.graph import ComputationGraph
from mindtorch.graph.capture import gradients_of
from mindtorch.graph.pending import LogBuilder
from mindtorch.profile.estimate import known_values, numbers
from mindtorch.profile.measure.sampling import Sample, Sampling, prefix_of

__all__ = ["SamplingEstimate"]


class SamplingEstimate(Sampling):
    """Of an estimate, whose ledger logs what reads what."""

    _named: Mapping[int, str] = MappingProxyType({})  # as of the end of a call or a step
    _ends_of_steps: Sequence[int] = ()  # in the log of calls
    _gradients: Collection[int] = ()  # slots of those that steps took, which were there before
    _newest = 0  # handle of those that were there before

    def _begin(self) -> None:
        ledger.follow(True)
        self._named, self._ends_of_steps, self._gradients, self._newest = {}, [], set(), _tape.newest_id()
        known_values.unrecorded, numbers.made = [], []

    def _called(self) -> None:
        self._named = self._names()

    def _stepped(self, optimizer: torch.optim.Optimizer | None) -> None:
        self._ends_of_steps = [*self._ends_of_steps, ledger.position()]
        handles = filter(None, map(_core.get_handle, gradients_of(optimizer)))
        self._gradients = {*self._gradients, *(each.slot for each in handles if each.id <= self._newest)}
        self._named = {**self._named, **self._names()}  # the program may be over before the graph is

    def _end(self) -> Sample | None:
        flow, position = ledger.follow(False), ledger.position()
        unrecorded, known_values.unrecorded = known_values.unrecorded or [], None
        made, numbers.made = numbers.made or [], None
        graph = ComputationGraph()
        builder = LogBuilder(graph, {**self._names(), **self._named}, self._gradients)
        builder.read(flow, unrecorded, made)
        starts = list(builder.positions.items())
        positions = [start for _, start in starts]
        graph._steps = [starts[n][0] if n < len(starts) else len(graph)
                        for n in (bisect_left(positions, end) for end in self._ends_of_steps)]  # fmt: skip
        ends = [*positions[1:], position][: len(starts)]  # none, if nothing was recorded
        return Sample(graph, {node: (start, end) for (node, start), end in zip(starts, ends, strict=True)})

    def _names(self) -> dict[int, str]:
        """Of the models' parameters and buffers, by slot."""
        found: dict[int, str] = {}
        for root, path in modules.roots():
            prefix = prefix_of(path)
            for name, tensor in named_tensors(root):
                handle = _core.get_handle(tensor)
                if handle is not None:
                    found.setdefault(handle.slot, self._named_first.setdefault(tensor, f"{prefix}.{name}"))
        return found

    def name(self, complete: bytes, op: Callable[[int], str]) -> None:
        """The log of calls is complete. op: the name of a call by its number; empty for what is none."""
        calls = np.frombuffer(complete, ledger.CALL)
        for sample in self.samples:
            if not sample.calls:
                continue
            first, last = min(start for start, _ in sample.calls.values()), max(end for _, end in sample.calls.values())
            log = calls[first:last]
            lines = {location: context.location(location) for location in np.unique(log["location"]).tolist()}
            ops = {sig: op(sig) for sig in np.unique(log["sig"]).tolist()}
            sample.logged = [(module, lines[location], ops[sig]) for sig, module, location, _ in log.tolist()]
            sample.calls = {node: (start - first, end - first) for node, (start, end) in sample.calls.items()}
