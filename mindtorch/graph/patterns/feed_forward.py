"""Feed-forward: ``W₂ f(W₁ x)``, or gated ``W₂ (f(W₁ x) · W₃ x)``, added to what it got."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn import functional as F

from .flow import Flow
from .pattern import FEW, Check, Found, Pattern, Refused, Trial, agree, begin_alike, fewer, form_of
from .rerun import CannotRun, Source

__all__ = ["FeedForward"]

_FAR = 40  # nodes of a walk
_WIDE = 8.0  # times as large as normal ones are numbers that reach the bounds of a relu6
_SPLITS = frozenset({"aten::split", "aten::chunk", "aten::split_with_sizes", "aten::slice", "aten::glu"})
_NORMS = frozenset(f"aten::{name}" for name in (
    "native_layer_norm", "layer_norm", "_fused_rms_norm", "rms_norm", "native_batch_norm", "native_group_norm",
    "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "mean", "rsqrt", "pow", "sum",
    "linalg_vector_norm", "cudnn_batch_norm",
))  # fmt: skip
_JOINED = frozenset(
    f"aten::{name}" for name in ("index_add_", "index_add", "scatter_add_", "index_put_", "sum", "bmm", "cat")
)

_SUMS = frozenset({"aten::add", "aten::add_"})

_Function = Callable[..., torch.Tensor]
ACTIVATIONS: dict[str, _Function] = {
    "gelu": F.gelu,
    "gelu (tanh)": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "squared relu": lambda x: F.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "mish": F.mish,
    "elu": F.elu,
    "leaky relu": F.leaky_relu,
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "softplus": F.softplus,
    "softsign": F.softsign,
}
#: Of two halves, where it is more than f(a) · b.
GATES: dict[str, _Function] = {
    "clamped swiglu": lambda a, b: (
        (b.clamp(-7.0, 7.0) + 1) * a.clamp(max=7.0) * torch.sigmoid(1.702 * a.clamp(max=7.0))
    ),
    "bilinear": lambda a, b: a * b,
}


def _times(activation: _Function) -> _Function:
    return lambda a, b: activation(a) * b


_GATED = {name: _times(activation) for name, activation in ACTIVATIONS.items()} | GATES


class FeedForward(Pattern):
    name = "feed-forward"

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        for node in flow.nodes:
            if flow.is_linear(node) and flow.whole(node) == node:
                sides = flow.sides(node)
                assert sides is not None
                start = flow.behind(sides[0])[0][0]
                if (
                    flow.is_op(start)
                    and (flow.is_pointwise(start) or flow.ops[start] in _SPLITS)
                    and not (flow.is_linear(start))
                ):
                    try:
                        found = _match(flow, node, sides[0])
                    except Refused as error:
                        yield node, str(error)
                    else:
                        if found is not None:
                            yield found


def _match(flow: Flow, last: int, hidden: Source) -> Found | None:
    def stops(node: int) -> bool:
        return (
            not flow.is_op(node)
            or flow.is_linear(node)
            or not (flow.is_pointwise(node) or flow.moves(node) or flow.ops[node] in _SPLITS)
        )

    inner, ends = flow.back([hidden[0]], stops, _FAR)
    firsts = [n for n in ends if flow.is_op(n) and flow.is_linear(n)]
    if not firsts:
        return None  # a product of something else: nobody would take it for one
    if len(firsts) > 2:
        return None  # what several blocks gave, and a residual stream sums up
    if any(flow.is_op(n) and not flow.is_linear(n) and not flow.is_leaf(n) for n in ends):
        return None  # a norm, a table: what comes before another block
    got = [flow.behind(sides[0])[0] for n in firsts if (sides := flow.sides(n)) is not None]
    if len(set(got)) > 1:
        raise Refused("its projections are of two tensors")
    nodes = {n for n in inner if not flow.is_leaf(n)}
    outputs = [_with_bias(flow, n, nodes) for n in firsts]
    nodes -= {n for output in outputs for n in output[1:]}
    if not any(flow.is_pointwise(n) for n in nodes):
        return None  # two linear maps, one after the other
    for n in sorted(nodes):
        outside = [reader for reader, _ in flow.readers[n] if reader not in nodes and flow.whole(reader) != last
                   and not _leads(flow, reader, last)]  # fmt: skip
        if outside:
            raise Refused(f"something else reads its {flow.ops[n]}")
    _, ends_ = flow.ahead(last, lambda n: _carries(flow, n) and not _is_join(flow, n, got[0]), 3 * _FAR)
    joins = next((n for n, _ in ends_ if _is_join(flow, n, got[0])), -1)
    if joins < 0:
        raise Refused("nothing adds its result to its input")
    everything = {last, *nodes, *(n for output in outputs for n in output)}
    everything |= {flow.base(n) for n in everything}
    everything |= flow.own([*inner, *flow.behind(hidden)[1]], everything)
    weights = [flow.behind(sides[1])[0][0] for n in (*firsts, last) if (sides := flow.sides(n)) is not None]
    given = [(output[-1], 0) for output in outputs]
    check = partial(_check, flow, nodes, given, flow.behind(hidden)[0] if hidden[0] not in nodes else hidden)
    return Found(flow.base(last), everything, weights, check, form_of(flow, nodes), joins)


def _with_bias(flow: Flow, linear: int, nodes: set[int]) -> list[int]:
    """The nodes that give a projection: the product, and the sum with its bias where that is one by itself."""
    chain = [linear]
    at = linear
    while len(flow.readers[at]) == 1:
        at = flow.readers[at][0][0]
        if at not in nodes:
            break
        inputs = flow.inputs(at)
        if flow.ops[at] in ("aten::add", "aten::add_") and len(inputs) == 2 and flow.is_leaf(inputs[1][0]):
            return [*chain, at]
        if not flow.moves(at):
            break
        chain.append(at)
    return [linear]


def _leads(flow: Flow, node: int, last: int) -> bool:
    while flow.moves(node) and len(flow.readers[node]) == 1:
        node = flow.readers[node][0][0]
        if node == last:
            return True
    return False


def _carries(flow: Flow, node: int) -> bool:
    """Does what it gives still hold what it got?"""
    return (flow.moves(node) or flow.ops[node] in ("aten::add", "aten::mul", "aten::add_", "aten::mul_", "aten::div")
            or flow.ops[node] in _JOINED or flow.ops[node] in _NORMS)  # fmt: skip


def _is_join(flow: Flow, node: int, got: Source) -> bool:
    """Does it add to what the block got, or to what that was made from by a norm?"""
    if flow.ops[node] not in _SUMS or len(flow.inputs(node)) != 2:
        return False
    others = {flow.behind(source)[0] for source in flow.inputs(node)}
    others |= {flow.behind(source)[0] for at, _ in others if _is_scaled(flow, at) for source in flow.inputs(at)}
    for _ in range(3):  # what else it adds may be a sum: of what was got, and of another block's
        others |= {flow.behind(source)[0] for at, _ in others if flow.ops[at] in _SUMS for source in flow.inputs(at)}
    if got in others:
        return True
    before, _ = flow.back(
        [got[0]],
        lambda n: not flow.is_op(n) or not (flow.moves(n) or flow.is_pointwise(n) or flow.ops[n] in _NORMS),
        _FAR,
    )
    known = {source for n in before for source in flow.inputs(n)} | {got}
    known |= {flow.behind(source)[0] for source in known}
    return bool(others & known)


def _is_scaled(flow: Flow, node: int) -> bool:
    """Is it a tensor times a number, or a weight? Deep networks scale what goes past a block (DeepNorm)."""
    if not flow.is_op(node) or flow.ops[node] not in ("aten::mul", "aten::mul_", "aten::div"):
        return False
    return sum(not flow.is_leaf(source[0]) for source in flow.inputs(node)) == 1


def _check(flow: Flow, nodes: set[int], given: list[Source], hidden: Source) -> Check:
    try:
        trial = Trial(flow, nodes)
    except CannotRun:  # too large: with fewer rows, unless the calls name sizes
        trial = Trial(flow, nodes, shapes={each: fewer(flow.shape(each), 1) for each in given})
    agreeing = _agreeing(trial, given, hidden, 1.0)
    if len(agreeing) > 1:  # some are nearly the same, or the same between bounds
        agreeing = {key: far for key, far in _agreeing(trial, given, hidden, _WIDE).items() if key in agreeing}
    if not agreeing:
        raise Refused("it has no known activation between its projections")
    name, gated = min(agreeing, key=agreeing.__getitem__)
    return Check(True, {"activation": name, "gated": gated})


def _agreeing(trial: Trial, given: list[Source], hidden: Source, factor: float) -> dict[tuple[str, bool], float]:
    """The functions that give what the nodes do, of numbers that are so many times as large; how far off each is."""
    try:
        halves = {source: trial.given(source) * factor for source in given}
    except KeyError:  # a view of it is what the nodes read
        raise Refused("its projection is read through a view") from None
    (found,) = trial.run(hidden, given=halves)
    found = found.reshape(-1)
    agreeing: dict[tuple[str, bool], float] = {}
    if not found.numel():
        return agreeing
    largest = float(found.abs().max())
    for read, gated, functions in _functions(list(halves.values())):
        if read[0].numel() != found.numel():
            continue
        beginning = tuple(map(_beginning, read))
        for name, function in functions.items():
            if not begin_alike(found, function(*beginning), largest):
                continue  # most that differ do so at once, and most functions do
            flat = function(*read).reshape(-1)
            if agree(found, flat):
                key = name, gated
                agreeing[key] = min(agreeing.get(key, math.inf), float((found - flat).abs().max()))
    return agreeing


def _beginning(numbers: torch.Tensor) -> torch.Tensor:
    rows = numbers.reshape(-1, numbers.shape[-1])
    return rows[: 1 + FEW // numbers.shape[-1]].reshape(-1)[:FEW]


def _functions(given: list[torch.Tensor]) -> Iterator[tuple[tuple[torch.Tensor, ...], bool, dict[str, _Function]]]:
    """(what the functions read, whether they are gated, the functions), of one projection or of two.

    Each function computes every number by itself.
    """
    if len(given) == 1:
        (whole,) = given
        yield (whole,), False, ACTIVATIONS
        if whole.shape[-1] % 2:
            return
        pairs = [whole.chunk(2, -1), (whole[..., ::2], whole[..., 1::2])]
    else:
        first, second = given
        if first.shape != second.shape and first.shape[-1] == second.shape[-1]:  # one call takes all rows as one list
            first, second = first.flatten(end_dim=-2), second.flatten(end_dim=-2)
        if first.shape != second.shape:
            return
        pairs = [(first, second)]
    for a, b in pairs:
        yield (a, b), True, _GATED
        yield (b, a), True, _GATED
