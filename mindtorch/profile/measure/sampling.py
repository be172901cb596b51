"""Graphs of a few calls of each model, taken while they run: what they compute is told from those (`find_patterns`)."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from mindtorch._ext import context
from mindtorch._ext.collect import Collector
from mindtorch._ext.signals import by_signal_handler
from mindtorch.engine.semantics import modules
from mindtorch.graph import ComputationGraph
from mindtorch.graph.capture import Beginning, Recorder

__all__ = ["Key", "Sample", "Sampling", "SamplingProfile", "prefix_of"]

log = logging.getLogger(__name__)

CALLS = 2  # of each model, with gradients and without: of a generation, prefill and a step of decode
MOST_CALLS, MOST_NODES = 48, 200_000  # in all


Key = tuple[int, Any, str]  # path id of the module, line, op


@dataclass
class Sample:
    """Of one call: its graph. calls: of each op in it, where it is in the log of calls, from and until, if any."""

    graph: ComputationGraph
    calls: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    logged: Sequence[Key] = ()  # that log, once it is complete

    def keys(self) -> dict[int, list[Key]]:
        """By node, what its rows are known by in a profile."""
        if self.calls:
            return {
                node: [key for key in self.logged[first:last] if key[2]] for node, (first, last) in self.calls.items()
            }
        graph = self.graph
        ids: dict[int, list[int]] = {}
        for known, index in graph._known_modules.items():
            if isinstance(known, int):
                ids.setdefault(index, []).append(known)
        return {
            node: [
                (module, graph._places[graph._place[node]], graph._calls[graph._call[node]].op)
                for module in ids.get(graph._module[node], ())
            ]
            for node, kind in enumerate(graph._kind) if not kind
        }  # fmt: skip


class Sampling:
    """Told of outermost calls, it takes graphs of the first ones; where nobody says how, none."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._seen: Counter[tuple[int, bool]] = Counter()
        self._nodes = 0
        self._thread: int | None = None

    def mark(self, kind: str, which: int) -> None:
        """A mark of the program's (see `Collector`)."""
        if kind == "enter":
            key = which, torch.is_grad_enabled()
            full = len(self.samples) >= MOST_CALLS or self._nodes >= MOST_NODES
            if self._thread is None and self._seen[key] < CALLS and not full and not torch.compiler.is_compiling():
                self._seen[key] += 1
                self._thread = threading.get_ident()
                self._begin()
        elif kind == "exit" and threading.get_ident() == self._thread:
            self.close()

    def close(self) -> None:
        """The call is over, or the run."""
        if self._thread is None:
            return
        self._thread = None
        found = self._end()
        if found is not None:
            self._nodes += len(found.graph)
            self.samples.append(found)

    def saw_root(self, root: torch.nn.Module, path: int) -> None:
        """A model, or a module of it, is called for the first time."""

    def _begin(self) -> None:
        """Watch from now on what reads what."""

    def _end(self) -> Sample | None:
        """The graph of what was done since then, if there is one."""
        return None


def prefix_of(path: int) -> str:
    """What the names of a model's weights begin with: no other model's do, though it be of the same class."""
    return f"{context.module_path(path)} {path}"


class SamplingProfile(Sampling):
    """Of a measured run, whose collector hands over each op, in time that is none of the program's."""

    def __init__(self, collector: Collector) -> None:
        super().__init__()
        self._collector = collector
        self._recorder: Recorder | None = None

    def _begin(self) -> None:
        recorder = self._recorder = Recorder(ComputationGraph())
        for root, at in modules.roots():
            recorder.saw_root(root, at, prefix_of(at))
        self._collector.noted = self

    def _end(self) -> Sample | None:
        recorder, self._recorder = self._recorder, None
        self._collector.noted = None
        if recorder is None:
            return None
        return Sample(recorder.graph)

    def saw_root(self, root: torch.nn.Module, path: int) -> None:
        if self._recorder is not None:
            self._recorder.saw_root(root, path, prefix_of(path))

    def begins(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Beginning | None:
        recorder = self._recorder
        if recorder is None or threading.get_ident() != self._thread or any(map(is_lazy, args)):
            return None
        try:
            return recorder.begins(func, args, kwargs or {})
        except Exception as error:  # noqa: BLE001 - of tensors of all kinds, which must not fail the program's call
            self._failed(error)
        return None

    def ended(self, call: Beginning, args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        try:
            recorder.ended(call, args, kwargs or {}, out)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)
        if self._nodes + len(recorder.graph) > MOST_NODES:
            self.close()

    def _failed(self, error: Exception) -> None:
        """Of tensors that have no sizes or strides, there is no graph."""
        if by_signal_handler(error):
            raise error
        log.debug("no graph is taken of this call: %r", error)
        self._recorder = self._collector.noted = None
