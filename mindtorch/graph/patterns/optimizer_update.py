"""Steps of optimizers: torch's own in all their forms, and written by hand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ... import ops
from ..graph import ComputationGraph
from .after_backward import AFTER_BACKWARD, Gradients, Key, has_gradients
from .flow import Flow
from .pattern import Check, Found, Pattern, Refused, Trial, Undecided, form_of
from .rerun import Source

__all__ = ["OptimizerUpdate"]

_MADE_ANEW = frozenset(f"aten::{name}" for name in (
    "zeros_like", "full_like", "ones_like", "empty_like", "zeros", "full", "empty", "lift_fresh",
))  # fmt: skip
_SHAPE = (8, 8)  # of each weight in a trial
_CLOSE = 1e-4


class _Update(NamedTuple):
    """Of one weight. after: its last write. leaves: what that is computed of: the weight, its gradient, its state."""

    after: Source
    values: list[Source]
    weight: Key
    gradient: Key
    state: list[Key]


class OptimizerUpdate(Pattern):
    """Weights moved against their gradients in place: by SGD, Adam, AdamW, Adagrad or RMSprop."""

    name = "optimizer update"
    phases = AFTER_BACKWARD

    def may_be_in(self, graph: ComputationGraph) -> bool:
        return has_gradients(graph)

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        gradients = Gradients(flow)
        for nodes in _steps(flow, gradients):
            updates = _updates(flow, gradients, nodes)
            if not updates:
                continue
            run = {source[0] for update in updates for source in update.values}
            anchor = max(update.after[0] for update in updates)
            weights = [gradients.named(update.after) for update in updates]
            form = _form_name(flow, anchor)
            yield Found(anchor, (nodes if flow[anchor].phase == "optimizer" else set()) | run, weights,
                        partial(_check, flow, updates, run, form), form_of(flow, run))  # fmt: skip


def _form_name(flow: Flow, anchor: int) -> str:
    op = flow.ops[anchor].removeprefix("aten::")
    return "fused" if op.startswith("_fused_") else "foreach" if op.startswith("_foreach_") else "one by one"


def _steps(flow: Flow, gradients: Gradients) -> Iterator[set[int]]:
    """What may be one step each: all that an optimizer does up to the end of its step, on whatever lines, whatever a
    closure does in between; else, and where a graph does not know when steps ended, as one that was JSON, a stretch of
    nodes of one line within an optimizer, or of one function after a backward pass."""
    ends = flow.graph._steps
    of_optimizers: dict[int, set[int]] = {}
    found: set[int] = set()
    last: object = None
    for node in flow.nodes:
        view = flow[node]
        inside = view.phase == "optimizer"
        if inside and ends:
            of_optimizers.setdefault(bisect_right(ends, node), set()).add(node)
            continue
        place = view.location or ("", 0, "")
        where = ("optimizer", *place) if inside else (gradients.start(node), place[0], place[2])
        if where != last and found:
            yield found
            found = set()
        last = where
        if inside or gradients.start(node) >= 0:
            found.add(node)
    if found:
        yield found
    yield from of_optimizers.values()


def _updates(flow: Flow, gradients: Gradients, nodes: set[int]) -> list[_Update]:
    """Of all weights that these write to and that depend on gradients."""
    last: dict[Source, Source] = {}
    for node in sorted(nodes):
        if flow.is_pointwise(node) or flow.ops[node].startswith(("aten::_foreach_", "aten::_fused_")):
            last.update((origin, value) for value, origin in gradients.written(node))
    inside = {n for n in nodes if flow.ops[n] not in _MADE_ANEW}
    read = {source for n in nodes for source in flow.inputs(n)}
    found = []
    for origin, value in last.items():
        of_optimizer = flow[value[0]].phase == "optimizer"
        if gradients.is_gradient(value) or not _is_weight(flow, gradients, origin, value):
            continue
        if of_optimizer and value in read:
            continue  # what it remembers until the next step

        def within(node: int, of_optimizer: bool = of_optimizer) -> bool:
            if node not in inside or not (
                flow.is_pointwise(node) or flow.moves(node) or flow.ops[node].startswith("aten::_f")
            ):
                return False
            return of_optimizer or not any(gradients.is_gradient(each) for each, _ in gradients.written(node))

        values, leaves = gradients.walk(value, within)
        weight = [key for key, source in leaves if gradients.origin(source) == origin]
        of_it = [key for key, source in leaves if gradients.is_gradient(source) and key not in weight]
        state = [key for key, source in leaves if key not in (*weight, *of_it) and flow.shape(source)]
        if len(of_it) != 1 or len(weight) != 1 or any(_is_drawn(flow, key[0]) for key in state):
            continue
        values += [each for key in state if (each := last.get(gradients.origin(key[:2]))) and each not in values]
        found.append(_Update(value, values, weight[0], of_it[0], state))
    return found


def _is_weight(flow: Flow, gradients: Gradients, origin: Source, value: Source) -> bool:
    node, output = value
    if flow.ops[node].startswith("aten::_fused_"):
        return output < len(flow[node].args[0])
    return gradients.is_stepped(origin)


def _is_drawn(flow: Flow, node: int) -> bool:
    return ops.about(flow.ops[node]).tag == "random"


# ---- which function it is --------------------------------------------------------------------------------------------
def _check(flow: Flow, updates: list[_Update], nodes: set[int], form: str) -> Check:
    """Weights of zero show the step itself; gradients and state of zero what becomes of the weights alone."""
    signed = {key[:2] for update in updates for key in (update.gradient, update.weight)}
    sized = [update for update in updates if flow.shape(update.weight[:2])]  # else its state and its steps look alike
    trial = Trial(flow, nodes, signed, {key[:2]: _SHAPE for u in sized for key in (u.weight, u.gradient, *u.state)})
    wanted = list(dict.fromkeys(source for update in updates for source in (*update.values, update.after)))

    def zero(keys: Iterable[Key]) -> dict[Source, Tensor]:
        given = {key: torch.zeros_like(trial.given(key)) for key in keys}
        return dict(zip(wanted, trial.run(*wanted, given=given), strict=True))

    moved, both = zero(u.weight for u in updates), zero(())
    if all(torch.equal(both[u.after], trial.given(u.weight)) for u in updates):
        raise Undecided("it moves no weight: its rate is 0")
    kept = zero(key for u in updates for key in (u.gradient, *u.state))
    alike: dict[object, list[_Update]] = {}

    def call(n: int) -> tuple[str, str, str]:
        return flow.ops[n], repr(flow[n].args), repr(flow[n].kwargs)

    shown = {call(update.after[0]) for update in sized}
    for update in updates:
        if update not in sized and call(update.after[0]) in shown:
            continue  # what does so with a weight of several numbers is looked at
        calls = [call(n) for n in sorted({v[0] for v in update.values})]
        alike.setdefault(repr(calls) if form == "one by one" else tuple(n for n, _ in update.values), []).append(update)
    kinds: set[str] = set()
    for group in alike.values():
        found = _kind(trial, group, moved)
        for update in group:
            kind = found or _kind(trial, [update], moved)
            before = trial.given(update.weight)
            if kind is None or not _stays(before, both[update.after] - moved[update.after]):
                raise Refused("its step is not that of SGD, Adam, Adagrad or RMSprop")
            kinds.add("AdamW" if kind == "Adam" and _decays(before, kept[update.after]) else kind)
    if "AdamW" in kinds:
        kinds.discard("Adam")  # what it does to weights that do not decay
    return Check(True, {"kind": ", ".join(sorted(kinds)), "form": form})


def _part(before: Tensor, after: Tensor) -> float:
    return float((before.double() * after).sum() / (before.double() * before).sum())


def _stays(before: Tensor, after: Tensor) -> bool:
    """Is it the weight, but for its decay?"""
    part = _part(before, after)
    return 0.5 < part < 1.01 and torch.allclose(after, part * before, rtol=0, atol=0.05)


def _decays(before: Tensor, after: Tensor) -> bool:
    """Does a weight become smaller without a gradient, in proportion to itself?"""
    part = _part(before, after)
    return part < 1 - 1e-7 and torch.allclose(after, part * before, rtol=1e-6, atol=1e-7)


def _kind(trial: Trial, updates: list[_Update], values: dict[Source, Tensor]) -> str | None:
    """Of updates that make the same calls; their weights were zero."""
    if len({(len(u.state), len(u.values)) for u in updates}) != 1:
        return None

    def joined(tensors: list[Tensor]) -> Tensor:
        return torch.cat([t.reshape(-1).double() for t in tensors])

    step = -joined([values[u.after] for u in updates])
    g = joined([trial.given(u.gradient) for u in updates])
    state = [joined([trial.given(u.state[i]) for u in updates]) for i in range(len(updates[0].state))]
    if float(step.abs().max()) == 0:
        return None
    made = [
        joined(parts) for i in range(len(updates[0].values))
        if (parts := [values[u.values[i]] for u in updates])[0].shape == _SHAPE
    ]  # fmt: skip
    counts = _solved([g, *state], step)
    if counts is not None and counts[0] and all(not n or any(_mixes(x, s, g) for x in made)
                                                for n, s in zip(counts[1:], state, strict=True)):  # fmt: skip
        return "SGD"
    averages = [x for x in made if any(_mixes(x, s, g) for s in state)]
    squares = [(x, s) for x in made for s in state if _mixes(x, s, g * g)]
    squares += [(x, s) for x in made for s in state for y, _ in squares if torch.equal(x, torch.maximum(s, y))]
    for upper in (*averages, g):
        ratio = upper / step
        if not bool(ratio.isfinite().all()):
            continue
        for square, before in squares:
            found = _solved([square.sqrt(), torch.ones_like(square)], ratio)
            if found is not None and found[0]:
                if upper is not g:
                    return "Adam"
                grows = _solved([before, g * g], square)
                return "Adagrad" if grows is not None and abs(grows[0] - 1) < _CLOSE else "RMSprop"
    if any(_gathers(x, s, g, square.sqrt()) for square, _ in squares for x in made if _solved([x], step) is not None
           for s in state):  # fmt: skip
        return "RMSprop"
    return None


def _gathers(x: Tensor, before: Tensor, g: Tensor, root: Tensor) -> bool:
    """Is it some of the state before, as momentum is, and g / (root + a constant)?"""
    found = _solved([x * root, x, before * root, before], g)
    return found is not None and abs(found[0] - 1) < _CLOSE and found[2] < -1e-7


def _mixes(x: Tensor, before: Tensor, new: Tensor) -> bool:
    """Is it the state before, some of it, and some of what is new?"""
    found = _solved([before, new], x)
    return found is not None and found[0] > 0 and abs(found[1]) > 1e-7


def _solved(columns: list[Tensor], wanted: Tensor) -> list[float] | None:
    """What each column counts, where they add up to what is wanted."""
    a = torch.stack(columns, 1)
    if not bool(a.isfinite().all() & wanted.isfinite().all()):
        return None  # a root of made-up numbers, of which the program's are never negative
    found = torch.linalg.lstsq(a, wanted[:, None], driver="gelsd").solution[:, 0]
    if not bool(found.isfinite().all()) or float((a @ found - wanted).abs().max()) > _CLOSE * float(wanted.abs().max()):
        return None
    size: list[float] = found.tolist()
    return size
