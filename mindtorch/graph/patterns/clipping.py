"""Clipping of gradients: by their norm, or each number by itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ..graph import ComputationGraph
from .after_backward import AFTER_BACKWARD, Gradients, Key, has_gradients
from .flow import Flow
from .pattern import Check, Found, Pattern, Refused, Trial, form_of
from .rerun import Source

__all__ = ["GradientClipping"]

_SHAPE = (4, 4)  # of each gradient in a trial
_CLOSE = 1e-4
_NORMS = (2.0, float("inf"), 1.0)
_FAR = 4  # nodes that a coefficient is computed by, of each gradient, and as many more
_VALUES = ("clamp", "clip", "minimum", "maximum")
#: Of one gradient, a number; of several, one.
_TOGETHER = frozenset(f"aten::{name}" for name in (
    "_foreach_norm", "linalg_vector_norm", "norm", "stack", "cat", "sum", "max", "amax", "pow", "square", "sqrt", "add",
    "add_", "mul", "abs", "div", "reciprocal", "clamp", "clamp_", "clamp_max", "minimum", "where", "lt", "gt", "le",
    "ge", "_foreach_pow", "_foreach_sqrt", "_foreach_max", "_foreach_abs", "_foreach_powsum",
))  # fmt: skip


class GradientClipping(Pattern):
    """``g · min(1, most / norm)`` of all gradients together, or ``min(max(g, -most), most)`` of each number."""

    name = "gradient clipping"
    phases = AFTER_BACKWARD

    def may_be_in(self, graph: ComputationGraph) -> bool:
        return has_gradients(graph)

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        gradients = Gradients(flow)
        for writes in _stretches(flow, gradients):
            last: dict[Source, Source] = {}
            for node in writes:
                last.update((origin, value) for value, origin in gradients.written(node))
            nodes = _nodes(flow, gradients, writes)
            leaves = _leaves(flow, gradients, nodes)
            if set(last) != set(leaves) or any(len(keys) != 1 for keys in leaves.values()):
                continue
            pairs = [(leaves[origin][0], after) for origin, after in last.items()]
            by_value = any(word in flow.ops[n] for n in writes for word in _VALUES)
            check = _check_values if by_value else _check_norm
            if not by_value and not any("norm" in flow.ops[n] or "sum" in flow.ops[n] or "max" in flow.ops[n]
                                        for n in nodes):  # fmt: skip
                continue  # a scale that does not depend on them, as of a sum of several batches
            yield Found(writes[-1], nodes, [], partial(check, flow, nodes, pairs), form_of(flow, nodes))


def _stretches(flow: Flow, gradients: Gradients) -> Iterator[list[int]]:
    """Nodes that write to gradients, by function, backward pass and coefficient."""
    found: list[int] = []
    last: object = None
    for node in flow.nodes:
        view = flow[node]
        if (
            view.phase == "optimizer"
            or not view.writes
            or not (flow.is_pointwise(node) or flow.ops[node].startswith("aten::_foreach_"))
        ):
            continue
        if not all(gradients.is_gradient(value) for value, _ in gradients.written(node)):
            continue
        place = view.location or ("", 0, "")
        counts = tuple(flow.behind(source)[0] for source in flow.inputs(node) if not flow.shape(source))
        where = (gradients.start(node), place[0], place[2], _is_scale(flow, node), counts)
        if where != last and found:
            yield found
            found = []
        last = where
        found.append(node)
    if found:
        yield found


def _is_scale(flow: Flow, node: int) -> bool:
    return "mul" in flow.ops[node] or "div" in flow.ops[node]


def _nodes(flow: Flow, gradients: Gradients, writes: list[int]) -> set[int]:
    """These, and what computes their coefficient of gradients."""
    start, found = gradients.start(writes[0]), set(writes)
    todo = [n for write in writes for n, _ in flow.inputs(write)]
    most = len(writes) + _FAR * sum(len(flow[write].writes) for write in writes) + 40
    for node in todo:  # grows while it is read
        if node <= start or node in found or not flow.is_op(node) or len(found) > most:
            continue
        if not flow.moves(node) and flow.ops[node] not in _TOGETHER:
            continue
        found.add(node)
        todo += [n for n, _ in flow.inputs(node)]
    return found


def _leaves(flow: Flow, gradients: Gradients, nodes: set[int]) -> dict[Source, list[Key]]:
    """By gradient, as what the nodes read it from elsewhere; what is of more than one number counts, too."""
    found: dict[Source, dict[Key, None]] = {}
    for node in sorted(nodes):
        view = flow[node]
        for source, reading in zip(view.inputs, view.readings, strict=True):
            if source[0] not in nodes and (gradients.is_gradient(source) or len(flow.shape(source))):
                key: Key = source if reading is None else (*source, reading)
                found.setdefault(gradients.origin(source), {})[key] = None
    return {origin: list(keys) for origin, keys in found.items()}


class _Clipping:
    """The nodes, to be run on gradients that are larger by a factor than others."""

    def __init__(self, flow: Flow, nodes: set[int], pairs: list[tuple[Key, Source]]) -> None:
        self.pairs = pairs
        self.trial = Trial(flow, nodes, shapes={key[:2]: _SHAPE for key, _ in pairs})

    def __call__(self, factor: float, uneven: int = 1) -> tuple[Tensor, Tensor]:
        """(gradients before, gradients after)"""
        given = {key: self.trial.given(key) * factor * (1 + i % uneven) for i, (key, _) in enumerate(self.pairs)}
        after = self.trial.run(*(source for _, source in self.pairs), given=given)
        return torch.stack(list(given.values())), torch.stack(after)


def _check_norm(flow: Flow, nodes: set[int], pairs: list[tuple[Key, Source]]) -> Check:
    run = _Clipping(flow, nodes, pairs)
    before, after = run(1e-9)
    if not torch.allclose(after, before, rtol=_CLOSE, atol=0):
        raise Refused("small gradients are changed, too")
    norms: dict[float, list[float]] = {order: [] for order in _NORMS}
    for factor, uneven in ((1e4, 1), (1e7, 1), (1e6, 3)):  # others are the large ones
        before, after = run(factor, uneven)
        part = float((before * after).sum() / (before * before).sum())
        if not torch.allclose(after, part * before, rtol=_CLOSE, atol=_CLOSE * float(after.abs().max())):
            raise Refused("gradients do not keep their direction")
        for order, found in norms.items():
            found.append(float(torch.linalg.vector_norm(after, order)))
    for order, found in norms.items():
        if max(found) - min(found) <= 1e-3 * max(found):
            return Check(True, {"by": "norm", "most": float(f"{found[1]:.3g}"), "norm": order})
    raise Refused("large gradients do not get the same norm")


def _check_values(flow: Flow, nodes: set[int], pairs: list[tuple[Key, Source]]) -> Check:
    run = _Clipping(flow, nodes, pairs)
    _, after = run(1e9)
    most = float(after.max())
    for factor in (1e-9, most, 1e9):
        before, after = run(factor)
        if not torch.allclose(after, before.clamp(-most, most), rtol=_CLOSE, atol=0):
            raise Refused("gradients are not clipped at the same value on both sides")
    return Check(True, {"by": "value", "most": float(f"{most:.3g}")})
