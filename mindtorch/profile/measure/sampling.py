"""Graphs of a few calls of each model, taken while they run: what they compute is told from those (`find_patterns`)."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from mindtorch._ext import context
from mindtorch._ext.collect import Collector
from mindtorch._ext.signals import by_signal_handler
from mindtorch.engine.semantics import modules, owners, phases
from mindtorch.graph import ComputationGraph
from mindtorch.graph.capture import Beginning, Recorder

__all__ = ["Key", "Sample", "Sampling", "SamplingProfile", "prefix_of"]

log = logging.getLogger(__name__)

CALLS = 2  # of each model with gradients, and steps of each optimizer
GENERATING = 3  # without gradients: prefill, a step of decode, and one that gets what that gave
MOST_CALLS, MOST_NODES = 48, 200_000  # in all
MOST_IN_VAIN = 16  # passes backward without a step that was looked for
MOST_FOR_LOSSES = 6  # calls beyond those, while no graph has a loss that is a module
MOST_GROWN = 16  # calls beyond those, of models that have got further modules since
MOST_AFTER = 1_000  # after a call: a loss, or the choice of a token, is shorter; a loop of the program's may be long
BY_HAND = -1  # in place of an optimizer
_BACKWARD = context.PHASES.index("backward")


Key = tuple[int, Any, str]  # path id of the module, line, op


@dataclass
class Sample:
    """Of one call: its graph. calls: of each op in it, where it is in the log of calls, from and until, if any.

    steps: numbers of the optimizers that stepped, in the order in which they did.
    """

    graph: ComputationGraph
    calls: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    logged: Sequence[Key] = ()  # that log, once it is complete
    steps: Sequence[int] = ()

    def keys(self) -> dict[int, list[Key]]:
        """By node, what its rows are known by in a profile."""
        if self.calls:
            found: dict[int, list[Key]] = {}
            logged = self.logged
            for node, (first, last) in self.calls.items():
                if last == first + 1:
                    found[node] = [key] if (key := logged[first])[2] else []
                else:  # what another line does before the next node, as torch.tensor() does, is no part of this one
                    keys = [key for key in logged[first:last] if key[2]]
                    found[node] = [key for key in keys if key[:2] == keys[0][:2]]
            return found
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
    """Told of outermost calls and passes backward, it takes graphs of the first ones; where nobody says how, none.

    A graph is of a call with gradients and what is done with its result until the pass backward (a loss), calls of
    other models included; of some calls without and what is done between them (a token is chosen); or of a pass
    backward and what is done with its gradients until the next call.
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._named_first: MutableMapping[Any, str] = WeakIdKeyDictionary()  # of parameters and buffers
        self._seen: Counter[tuple[int, bool]] = Counter()
        self._passes = 0  # backward, of which there may be a graph
        self._taken: Counter[int] = Counter()  # graphs of its steps, by optimizer
        self._in_step: list[int] = []  # optimizers that the graph has a step of, as they came
        self._missed: set[int] = set()  # those whose steps no graph has yet
        self._in_vain = 0  # graphs without a step that was looked for
        self._looking = True
        self._models: set[int] = set()  # that the graph has calls of
        self._losses: dict[int, bool] = {}  # by path id of such a model that is called in training: a graph has it
        self._for_losses = 0  # calls in graphs for their sake
        self.registered: Callable[[], int] = lambda: 0  # how many modules were put into others so far
        self._modules_at: dict[int, int] = {}  # by model, when a call of it was in a graph last
        self._for_growth = 0  # calls in graphs as the model may have grown
        self._weightless: set[int] = set()  # path ids of models without parameters, as losses are
        self._key = (0, False)  # of the call
        self._of = ""  # what it is being taken of: a call, what comes after it, or a step
        self._nodes = 0
        self._thread: int | None = None

    def mark(self, kind: str, which: int) -> None:
        """A mark of the program's (see `Collector`)."""
        own = threading.get_ident() == self._thread
        if kind == "enter":
            key = which, torch.is_grad_enabled()
            if key[1] and which in self._weightless:
                if own and self._of == "after" and self._key[1]:
                    self._losses[which] = True
                    return  # what is done with the result goes on
                if self._thread is None and self._passes:
                    self._losses.setdefault(which, False)
            few = self._seen[key] < (CALLS if key[1] else GENERATING)
            grown = not few and self._for_growth < MOST_GROWN and self._modules_at.get(which, 0) < self.registered()
            wanted = (few or grown or (key[1] and self._is_loss_missed())) and not torch.compiler.is_compiling()
            goes_on = own and self._of == "after" and wanted and self._is_with_others(key)
            if own and self._of != "call" and not goes_on:
                self.close()
            if wanted and (goes_on or self._may_begin()):
                self._seen[key] += 1
                self._of, self._key = "call", key
                self._models.add(which)
                self._for_losses += not few and not grown
                self._for_growth += grown
                self._modules_at[which] = self.registered()
        elif kind == "exit" and own and self._of == "call":
            if not torch.is_grad_enabled() and self._seen[which, False] >= GENERATING:
                self.close()
            else:
                self._of = "after"
                self._called()
        elif kind == "step" and own:
            self._in_step.append(which)
            self._stepped(phases.stepper(which))
        elif kind == "step" and not self._taken[which]:
            self._missed.add(which)
            self._looking = self._in_vain < MOST_IN_VAIN
        elif kind == "backward":
            if own and self._of == "after":
                self.close()
            if self._looking and self._passes < MOST_CALLS and self._may_begin():
                self._passes += 1
                self._of = "step"

    def _is_with_others(self, key: tuple[int, bool]) -> bool:
        """Is a call part of the graph of earlier ones? With gradients, those of several models are, whose losses
        follow; without, those of one, and of modules of it, as of an encoder before the whole."""
        if key[1] != self._key[1]:
            return False
        return key[0] not in self._models if key[1] else context.path_root(key[0]) == context.path_root(self._key[0])

    def _is_loss_missed(self) -> bool:
        """Was one called only after calls of which there is no graph? An iteration may call a model often."""
        return self._for_losses < MOST_FOR_LOSSES and not all(self._losses.values())

    def _may_begin(self) -> bool:
        """Watch from now on, if nothing else is watched and there is room."""
        if self._thread is not None or len(self.samples) >= MOST_CALLS or self._nodes >= MOST_NODES:
            return False
        self._thread = threading.get_ident()
        self._in_step, self._models = [], set()
        self._begin()
        return True

    def close(self) -> None:
        """The call is over, or the run."""
        if self._thread is None:
            return
        self._thread = None
        found = self._end()
        if found is None:
            return
        if self._of == "step" and not self._is_wanted(found.graph):
            return
        found.steps = self._in_step
        self._nodes += len(found.graph)
        self.samples.append(found)

    def _is_wanted(self, graph: ComputationGraph) -> bool:
        """Has it a step of which there are too few? A program may have several optimizers, each with a pass backward of
        its own: it is looked for until one comes again, and for one that came while nobody looked."""
        stepped = set(self._in_step) or {BY_HAND}
        changes = _changes(graph)  # else gradients are summed up first
        wanted = changes and any(self._taken[optimizer] < CALLS for optimizer in stepped)
        if changes:
            self._taken.update(stepped)
            self._missed -= stepped
        self._in_vain += not wanted and (changes or bool(self._missed))
        if wanted:
            self._looking = bool(self._missed) or min(self._taken.values()) < CALLS
        elif changes or self._missed:
            self._looking = bool(self._missed) and self._in_vain < MOST_IN_VAIN
        return wanted

    def saw_root(self, root: torch.nn.Module, path: int) -> None:
        """A model, or a module of it, is called for the first time."""
        if owners.first_parameter(root) is None:
            self._weightless.add(path)
        else:
            self._weightless.discard(path)

    def _begin(self) -> None:
        """Watch from now on what reads what."""

    def _called(self) -> None:
        """The call is over, and its model may be gone before what comes after it is."""

    def _stepped(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Its step is over: one on the same line may follow."""

    def _end(self) -> Sample | None:
        """The graph of what was done since then, if there is one."""
        return None


def _changes(graph: ComputationGraph) -> bool:
    """Does anything after a pass backward write to what was there before it, as steps do?"""
    return any(
        graph._phase[node] != _BACKWARD and any(graph._kind[graph.nodes[node].inputs[place][0]] for place in written)
        for node, written in graph._writes.items()
    )


def prefix_of(path: int) -> str:
    """What the names of a model's weights begin with: no other model's do, though it be of the same class."""
    return f"{context.module_path(path)} {path}"


class SamplingProfile(Sampling):
    """Of a measured run, whose collector hands over each op, in time that is none of the program's."""

    def __init__(self, collector: Collector) -> None:
        super().__init__()
        self._collector = collector
        self._recorder: Recorder | None = None
        self._called_at = 0  # nodes

    def _begin(self) -> None:
        self._recorder = Recorder(ComputationGraph())
        self._recorder.graph._models_apart = True
        for root, at in modules.roots():
            self.saw_root(root, at)
        self._collector.noted = self

    def _called(self) -> None:
        self._called_at = 0 if self._recorder is None else len(self._recorder.graph)

    def _stepped(self, optimizer: torch.optim.Optimizer | None) -> None:
        if self._recorder is not None:
            self._recorder.stepped(optimizer)

    def _end(self) -> Sample | None:
        recorder, self._recorder = self._recorder, None
        self._collector.noted = None
        if recorder is None:
            return None
        return Sample(recorder.graph)

    def saw_root(self, root: torch.nn.Module, path: int) -> None:
        super().saw_root(root, path)
        if self._recorder is None:
            return
        try:
            self._recorder.saw_root(root, path, prefix_of(path), self._named_first)
        except Exception as error:  # noqa: BLE001 - as below
            self._failed(error)

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
        if recorder is None or threading.get_ident() != self._thread:  # another one's, since the call began
            return
        try:
            recorder.ended(call, args, kwargs or {}, out)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)
        nodes = len(recorder.graph)
        if self._nodes + nodes > MOST_NODES or (self._of == "after" and nodes - self._called_at > MOST_AFTER):
            self.close()

    def _failed(self, error: Exception) -> None:
        """Of tensors that have no sizes or strides, there is no graph."""
        if by_signal_handler(error):
            raise error
        log.debug("no graph is taken of this call: %r", error)
        self._recorder = self._collector.noted = None
