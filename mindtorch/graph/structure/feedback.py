"""What a program does with a model's results so that the model gets them again: it chooses tokens, or it denoises.

Sampling: operations outside every module that make, of what a module gave, the integers that a table in a module is
looked up by later, in the same model; or that choose integers before a step of decode, where they go through Python.
They come from a choice: argmax, a draw, top-k, a sort.

Diffusion steps: calls of a module, outside of any other, that get a state, and then what an update made of that state
and of the module's result, element by element. Each also gets another time: a number for each sample at most, of which
the module makes sines or cosines, or which it looks up in a table. An integrator of an equation whose model has no such
time is none, nor is a recurrent model, whose state is its result itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..graph import PHASES
from ..patterns.flow import Flow
from ..patterns.rerun import Source
from .equal_blocks import Names

__all__ = ["Denoising", "denoising", "sampling"]

_DECODE = PHASES.index("decode")
_GENERATING = frozenset(map(PHASES.index, ("prefill", "decode")))
_CHOICES = frozenset(
    f"aten::{name}" for name in ("argmax", "multinomial", "topk", "sort", "argsort", "max", "searchsorted")
)
_LOOKS_UP = frozenset(
    f"aten::{name}" for name in ("index", "index_select", "gather", "take_along_dim", "take", "embedding")
)
_LOOKUP = "aten::embedding"
_WAVES = frozenset({"aten::sin", "aten::cos"})
_JOINED = frozenset({"aten::cat", "aten::repeat"})  # guidance: two halves of one batch
_RANGES = frozenset({"aten::arange", "aten::linspace"})
_FAR = 256  # nodes of an update


def sampling(flow: Flow, names: list[Names]) -> set[int]:
    """The nodes that choose tokens."""
    made: dict[int, frozenset[str]] = {}  # outside of modules of what they gave: of which models
    for node in flow.nodes:
        if not names[node]:
            models: frozenset[str] = frozenset()
            for source, _ in flow.inputs(node):
                of = names[source]
                models |= frozenset(of[:1]) if of and flow.is_op(source) else made.get(source, frozenset())
            if models:
                made[node] = models
    found: set[int] = set()
    todo = [*_fed_back(flow, names, made)]
    while todo:
        node = todo.pop()
        if node in made and node not in found:
            found.add(node)
            todo += [source for source, _ in flow.inputs(node)]
    return found


def _fed_back(flow: Flow, names: list[Names], made: Mapping[int, frozenset[str]]) -> Iterator[int]:
    """Nodes of `made` that hold chosen integers which the same model gets."""
    for node in flow.nodes:
        if names[node] and flow.ops[node] == _LOOKUP and len(flow.inputs(node)) > 1:
            at = flow.inputs(node)[1][0]
            while at not in made and flow.is_op(at) and flow.moves(at) and flow.inputs(at):
                at = flow.inputs(at)[0][0]
            if names[node][0] in made.get(at, ()) and _is_chosen(flow, made, at):
                yield at
    last = flow.graph._phase.rfind(_DECODE)
    for node in made:
        if node < last and flow.ops[node] in _CHOICES and not flow[node].outputs[-1].dtype.is_floating_point:
            yield node


def _is_chosen(flow: Flow, made: Mapping[int, frozenset[str]], node: int) -> bool:
    """Are its numbers what a choice gave? What is looked up at the places that it gave is another thing."""
    seen, todo = {node}, [node]
    for at in todo:  # grows while it is read
        if flow.ops[at] in _CHOICES:
            return True
        inputs = flow.inputs(at)[:1] if flow.ops[at] in _LOOKS_UP else flow.inputs(at)
        new = {source for source, _ in inputs if source in made} - seen
        seen |= new
        todo += new
    return False


class Denoising(NamedTuple):
    """The module that is called again and again, the nodes of these calls, and those outside that update its state."""

    module: Names
    calls: set[int]
    nodes: set[int]


def denoising(flow: Flow, names: list[Names]) -> list[Denoising]:
    """The loops of that kind, one for each model."""
    models = {names[n][0] for n in flow.nodes if names[n] and (flow.ops[n] in _WAVES or flow.ops[n] == _LOOKUP)}
    return [found for model in sorted(models) if (found := _loop(flow, names, _runs(flow, names, model))) is not None]


def _runs(flow: Flow, names: list[Names], model: str) -> list[list[int]]:
    """The nodes of a model by call, as far as anything is done outside of it in between; none where it generates."""
    found: list[list[int]] = []
    inside = False
    for node in flow.nodes:
        if names[node][:1] != (model,):
            inside = False
            continue
        if flow.graph._phase[node] in _GENERATING:
            return []
        if not inside:
            found.append([])
        inside = True
        found[-1].append(node)
    return found


class _Call(NamedTuple):
    """nodes: its own. made_of: those that its states are, or are made of by an update. times: what it gets besides."""

    nodes: set[int]
    made_of: set[int]
    times: set[Source]


def _loop(flow: Flow, names: list[Names], runs: list[list[int]]) -> Denoising | None:
    """What makes the state of a call from that of an earlier one and its result, if anything does."""
    if len(runs) < 2:
        return None
    calls: list[_Call] = []
    updates: set[int] = set()
    taking_part: set[int] = set()  # nodes of those calls
    for run in runs:
        own = set(run)
        read = {source for node in run for source in flow.inputs(node) if source[0] not in own}
        call = _Call(own, set(), set())
        for state in sorted(source for source in read if _is_state(flow, source)):
            passed, ends = flow.back([state[0]], lambda n: not _passes(flow, names, n), _FAR)
            near, times = {*passed, *ends}, _times(flow, run, own, state)
            for before in calls:
                kept = any(not names[n] and _is_alike(flow, n, state) for n in near & before.made_of)
                if kept and near & before.nodes and times - before.times:
                    updates.update(passed)
                    taking_part |= own | before.nodes
            call.made_of.update(near)
            call.times.update(times)
        calls.append(call)
    if not taking_part:
        return None
    paths = sorted({names[node] for node in taking_part})
    shared = next((n for n, of in enumerate(zip(paths[0], paths[-1], strict=False)) if of[0] != of[1]),
                  min(len(paths[0]), len(paths[-1])))  # fmt: skip
    return Denoising(paths[0][:shared], taking_part, updates)


def _passes(flow: Flow, names: list[Names], node: int) -> bool:
    if not flow.is_op(node) or flow.is_weight(node) or names[node]:
        return False
    return flow.is_pointwise(node) or flow.moves(node) or flow.ops[node] in _JOINED


def _is_state(flow: Flow, source: Source) -> bool:
    output = flow[source[0]].outputs[source[1]]
    return output.dtype.is_floating_point and len(output.shape) > 1 and not flow.is_weight(source[0])


def _is_alike(flow: Flow, node: int, state: Source) -> bool:
    """Has it the sizes of the state, the number of samples aside?"""
    return any(output.shape[1:] == flow.shape(state)[1:] for output in flow[node].outputs)


def _times(flow: Flow, run: list[int], own: set[int], state: Source) -> set[Source]:
    """Of a call: the values of one number a sample at most that it makes waves of, or looks up."""
    most = max(1, flow.shape(state)[0])
    found: set[Source] = set()
    for node in run:
        if flow.ops[node] in _WAVES:
            passed, _ = flow.back([node], lambda n: n not in own, _FAR)
            read = {source for n in passed for source in flow.inputs(n) if source[0] not in own}
        elif flow.ops[node] == _LOOKUP and len(flow.inputs(node)) > 1:
            index = flow.inputs(node)[1]
            while index[0] in own and flow.moves(index[0]) and flow.inputs(index[0]):
                index = flow.inputs(index[0])[0]
            read = {index}
        else:
            continue
        found |= {source for source in read if _is_time(flow, source, most)}
    return found


def _is_time(flow: Flow, source: Source, most: int) -> bool:
    is_range = flow.ops[source[0]] in _RANGES
    return math.prod(flow.shape(source)) <= most and not is_range and not flow.is_weight(source[0])
