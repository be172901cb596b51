"""Losses: cross-entropy, those of torch's in one call, and squared or absolute differences that are written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from .flow import Flow
from .pattern import Check, Found, Pattern, Refused, Trial, agree, arguments, fewer, form_of
from .rerun import CannotRun, Source

__all__ = ["Loss"]

_LIKELIHOODS = frozenset({"aten::nll_loss_forward", "aten::nll_loss2d_forward", "aten::nll_loss", "aten::nll_loss2d"})
_LOGARITHMS = frozenset({"aten::_log_softmax", "aten::log_softmax"})
_POWERS = frozenset({"aten::pow", "aten::pow_", "aten::square", "aten::mul", "aten::abs", "aten::abs_"})
_DIFFERENCES = frozenset({"aten::sub", "aten::sub_"})
_FEW = 4  # rows, and places of a picture, of a trial


class _Call(NamedTuple):
    """kind: its name. arguments: those after input and target. terms: each place's, before they are put together."""

    kind: str
    arguments: tuple[str, ...]
    terms: Callable[..., torch.Tensor]


def _huber(x: torch.Tensor, y: torch.Tensor, delta: float | None) -> torch.Tensor:
    off, delta = (x - y).abs(), 1.0 if delta is None else delta
    return torch.where(off < delta, 0.5 * off * off, delta * (off - 0.5 * delta))


def _smooth(x: torch.Tensor, y: torch.Tensor, beta: float | None) -> torch.Tensor:
    off, beta = (x - y).abs(), 1.0 if beta is None else beta
    return torch.where(off < beta, 0.5 * off * off / beta, off - 0.5 * beta) if beta else off


def _binary(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None, positive: torch.Tensor | None
) -> torch.Tensor:
    likely = torch.sigmoid(x.double())
    found = -(y * likely.log() * (1 if positive is None else positive) + (1 - y) * (1 - likely).log())
    return (found if weight is None else found * weight).to(x.dtype)


_CALLS = {
    "aten::mse_loss": _Call("mean squared error", ("reduction",), lambda x, y: (x - y) ** 2),
    "aten::l1_loss": _Call("mean absolute error", ("reduction",), lambda x, y: (x - y).abs()),
    "aten::huber_loss": _Call("huber", ("reduction", "delta"), _huber),
    "aten::smooth_l1_loss": _Call("smooth l1", ("reduction", "beta"), _smooth),
    "aten::binary_cross_entropy_with_logits": _Call(
        "binary cross-entropy", ("weight", "pos_weight", "reduction"), _binary
    ),
}


_TOGETHER = {"aten::mean": 1, "aten::sum": 2}  # as torch's reductions
_WRITTEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean squared error": torch.square,
    "mean absolute error": torch.abs,
}


class Loss(Pattern):
    """How far what was computed is from what was wanted, at each place, put together by a mean or a sum."""

    name = "loss"

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        for node in flow.nodes:
            op = flow.ops[node]
            if op in _CALLS:
                yield Found(node, {node}, [], partial(_check_call, flow, node), form_of(flow, {node}))
            elif op in _LIKELIHOODS:
                before, moves = flow.behind(flow.inputs(node)[0])
                entropy = flow.is_op(before[0]) and flow.ops[before[0]] in _LOGARITHMS
                entropy = entropy and not _of_some(flow, node, before, moves)
                nodes = {node, *moves, before[0]} if entropy else {node}
                check = partial(_check_likelihood, flow, node, before[0] if entropy else None, nodes)
                yield Found(node, nodes, [], check, form_of(flow, nodes))
            elif op in _TOGETHER and not flow.shape((node, 0)) and (written := _written(flow, node)) is not None:
                nodes, sides = written
                yield Found(node, nodes, [], partial(_check_written, flow, node, nodes, sides), form_of(flow, nodes))


def _of_some(flow: Flow, node: int, before: Source, moves: list[int]) -> bool:
    """Does it read rows that are chosen of what that gives? Of a graph's nodes, only some are trained on."""
    chosen = math.prod(flow.shape(flow.inputs(node)[0])) != math.prod(flow.shape(before))
    return chosen or any(flow.ops[move] == "aten::index" for move in moves)


def _written(flow: Flow, node: int) -> tuple[set[int], tuple[Source, Source]] | None:
    """(the nodes, the two sides) of a difference of a computed tensor and another of its size, made one number."""
    root, moves = flow.behind(flow.inputs(node)[0])
    power = root[0]
    if (
        not flow.is_op(power)
        or flow.ops[power] not in _POWERS
        or len({flow.behind(s)[0] for s in flow.inputs(power)}) > 1
    ):
        return None
    (difference, _), more = flow.behind(flow.inputs(power)[0])
    if not flow.is_op(difference) or flow.ops[difference] not in _DIFFERENCES or len(flow.inputs(difference)) != 2:
        return None
    x, y = flow.inputs(difference)
    roots = [flow.behind(source)[0] for source in (x, y)]
    if roots[0] == roots[1] or any(flow.is_weight(n) for n, _ in roots) or all(flow.is_leaf(n) for n, _ in roots):
        return None
    sizes = {math.prod(flow.shape(each)) for each in (x, y, (difference, 0), flow.inputs(node)[0])}
    if len(sizes) > 1 or any(math.prod(flow.shape(each)) < min(sizes) for each in roots):
        return None  # of a mean, say, that was made as large as what it is of
    return {node, *moves, power, *more, difference}, (x, y)


def _together(terms: torch.Tensor, reduction: Any, weights: torch.Tensor | None = None) -> torch.Tensor:
    """torch's reductions: 0 none, 1 or unsaid the mean (by weight), 2 the sum."""
    if reduction == 0:
        return terms
    return terms.sum() if reduction == 2 else terms.sum() / (terms.numel() if weights is None else weights.sum())


def _in_torchs_numbers(given: dict[str, Any]) -> dict[str, Any]:
    """A call of `torch.nn.functional` that was recorded as it is names reductions, and may say them in older words."""
    older = [given.pop(name, None) for name in ("size_average", "reduce")]
    if older != [None, None]:
        given["reduction"] = torch.nn._reduction.legacy_get_enum(*older, emit_warning=False)
    elif isinstance(given["reduction"], str):
        given["reduction"] = torch.nn._reduction.get_enum(given["reduction"])
    return given


def _check_call(flow: Flow, node: int) -> Check:
    call, view = _CALLS[flow.ops[node]], flow[node]
    trial = Trial(flow, {node})
    given = _in_torchs_numbers(arguments(view, "input", "target", *call.arguments))
    if more := [name for name in given.keys() - {"input", "target", *call.arguments} if given[name] is not None]:
        raise Refused(f"{more[0]} is not part of {call.kind}")
    x, y, reduction = given["input"], given["target"], given["reduction"]
    rest = {name: given[name] for name in call.arguments if name != "reduction"}
    rest |= {name: trial.argument(view, value) for name, value in rest.items() if "weight" in name}
    terms = call.terms(*(trial.argument(view, value) for value in (x, y)), *rest.values())
    (found,) = trial.run((node, 0))
    if not agree(found, _together(terms, reduction)):
        raise Refused(f"it does not compute {call.kind}")
    return Check(True, {"kind": call.kind})


def _check_written(flow: Flow, node: int, nodes: set[int], sides: tuple[Source, Source]) -> Check:
    """On fewer rows where it has many, unless views name sizes."""
    try:
        trial = Trial(flow, nodes)
    except CannotRun:
        trial = Trial(flow, nodes, shapes={each: fewer(flow.shape(each), 1) for each in sides})
    (found,) = trial.run((node, 0))
    x, y = (trial.given(source) for source in sides)
    for kind, terms in _WRITTEN.items():
        if agree(found, _together(terms(x - y), _TOGETHER[flow.ops[node]])):
            return Check(True, {"kind": kind})
    raise Refused("it is not a mean of squared or absolute differences")


def _check_likelihood(flow: Flow, node: int, logarithm: int | None, nodes: set[int]) -> Check:
    """Of a few rows, their classes one after the other, the last of them one that does not count."""
    kind = "negative log-likelihood" if logarithm is None else "cross-entropy"
    source = flow.inputs(node)[0] if logarithm is None else flow.inputs(logarithm)[0]
    target = flow.inputs(node)[1]
    shape, whole = flow.shape(source), flow.shape(target)
    moved = any(flow.moves(n) for n in nodes)
    axis = 1 if len(flow.shape(flow.inputs(node)[0])) == 4 else -1  # of an image, else of rows
    if axis == 1 and moved and logarithm is not None:  # of a sequence, say, whose classes were last in the softmax
        axis = arguments(flow[logarithm], "input", "dim")["dim"] % len(shape)
    if math.prod(shape) != math.prod(whole) * shape[axis]:
        raise Refused("its classes are on another axis than its softmax")
    small, wanted = shape, whole
    if not moved:  # else views name sizes
        small = (min(shape[0], _FEW), shape[1], *(min(n, _FEW) for n in shape[2:])) if len(shape) > 1 else shape
        wanted = tuple(min(n, _FEW) for n in whole)
    trial = Trial(flow, nodes, shapes={} if small == shape else {source: small, target: wanted})
    given = arguments(flow[node], "input", "target", "weight", "reduction", "ignored")
    weight, ignored = trial.argument(flow[node], given["weight"]), given["ignored"]
    classes = torch.arange(int(torch.Size(wanted).numel()), device="cpu")
    # Where axes change places, rows and classes do not count alike: one axis would pass for another as long.
    classes = (classes // 2 + 1 if moved else classes) % small[axis]
    if classes.numel() > 1:
        classes[-1] = ignored
    (found,) = trial.run((node, 0), given={target: classes.reshape(wanted)})
    x = trial.given(source)
    if logarithm is not None:
        x = x - x.exp().sum(axis, keepdim=True).log()
    rows = x.movedim(axis, -1).reshape(-1, small[axis])
    weights = torch.ones(small[axis], device="cpu") if weight is None else weight
    counted = classes != ignored
    there = torch.where(counted, classes, 0)  # what is ignored may be no class: -100, 255
    counts = torch.where(counted, weights[there], torch.zeros((), device="cpu"))
    terms = -rows[torch.arange(len(rows), device="cpu"), there] * counts
    if not agree(found, _together(terms, given["reduction"], counts).reshape(found.shape)):
        raise Refused(f"it does not compute {kind}")
    return Check(True, {"kind": kind})
