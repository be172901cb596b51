"""Normalizations that are written out: by the mean and the variance, the standard deviation, or the mean of squares."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from .flow import Flow
from .pattern import Check, Found, Refused, Trial, agree, arguments, fewer, form_of
from .rerun import CannotRun, Source

__all__ = ["nearby", "written_out"]

_PRODUCTS = frozenset({"aten::mul", "aten::mul_"})
_QUOTIENTS = frozenset({"aten::div", "aten::div_"})
_SUMS = frozenset({"aten::add", "aten::add_"})
_ROOTS = frozenset({"aten::rsqrt", "aten::rsqrt_", "aten::sqrt", "aten::sqrt_", "aten::std"})
_MOMENTS = frozenset({"aten::mean", "aten::var", "aten::std", "aten::var_mean", "aten::std_mean", "aten::sum"})
_FAR = 16  # nodes of a walk
_LARGE = 100.0  # of numbers so large, what is added to the variance is nothing


class _Parts(NamedTuple):
    """x: what is normalized. last: what has been. axes: counted from the last. scales, offsets: weights and biases."""

    x: Source
    last: int
    nodes: set[int]
    axes: tuple[int, ...]
    scales: list[Source]
    offsets: list[Source]


def written_out(flow: Flow, root: int) -> Found | None:
    """Around a root, if its calls look like one."""
    op = flow.ops[root]
    if op not in _ROOTS and not (op == "aten::pow" and flow[root].args[1:] in ((0.5,), (-0.5,))):
        return None
    parts = _parts(flow, root)
    if parts is None:
        return None
    parts = _scaled_after(flow, parts)
    weights = [flow.behind(source)[0][0] for source in (*parts.scales, *parts.offsets)]
    weights = [n for n in weights if flow.is_weight(n)] or nearby(flow, parts.last, parts.x)
    return Found(parts.last, parts.nodes, weights, partial(_check, flow, parts), form_of(flow, parts.nodes))


def nearby(flow: Flow, last: int, x: Source) -> list[int]:
    """Weights of the products that read it, else of those that gave it: they tell it from others without weights."""
    _, ends = flow.ahead(last, lambda n: flow.moves(n) or (flow.is_pointwise(n) and len(flow.inputs(n)) == 1), _FAR)
    linears = sorted({flow.whole(n) for n, _ in ends if flow.is_linear(n)})
    if not linears:
        _, before = flow.back([x[0]], lambda n: not flow.is_op(n) or flow.is_linear(n) or not flow.moves(n), _FAR)
        linears = [n for n in before if flow.is_op(n) and flow.is_linear(n)]
    return [flow.behind(sides[1])[0][0] for n in linears if (sides := flow.sides(n)) is not None]


def _parts(flow: Flow, root: int) -> _Parts | None:
    _, ends = flow.ahead(root, lambda n: flow.moves(n) or (flow.is_pointwise(n) and len(flow.inputs(n)) == 1), 4)
    if len(ends) != 1 or flow.ops[ends[0][0]] not in _PRODUCTS | _QUOTIENTS or len(flow.inputs(ends[0][0])) != 2:
        return None
    last = ends[0][0]
    scales: list[Source] = []
    nodes: set[int] = set()
    x = _common(flow, {(last, 0)}, nodes, scales, root)
    if x is None:
        return None
    if flow.is_op(x[0]) and flow.ops[x[0]] in ("aten::sub", "aten::sub_"):  # less its mean
        more: set[int] = set()
        whole = _common(flow, {x}, more, scales, x[0])
        if whole is not None and any(flow.ops[n] == "aten::mean" for n in more):
            x, nodes = whole, nodes | more
    moments = [n for n in nodes if flow.ops[n] in _MOMENTS]
    sizes = len(flow.shape(x))
    axes = {_axes(flow, n, sizes) for n in moments}
    kinds = {flow.ops[n] for n in moments}
    if len(axes) != 1 or kinds == {"aten::sum"} or flow.is_weight(flow.behind(x)[0][0]):
        return None
    return _Parts(x, last, nodes, axes.pop(), scales, [])


def _common(flow: Flow, todo: set[Source], nodes: set[int], scales: list[Source], least: int) -> Source | None:
    """The one value that all of it is made of, with what makes it in `nodes`, `least` among them; else None."""
    while len(todo) > 1 or least not in nodes:
        at = max(todo)
        op = flow.ops[at[0]]
        if not flow.is_op(at[0]) or len(nodes) > _FAR or not (
            flow.moves(at[0]) or flow.is_pointwise(at[0]) or op in _MOMENTS
        ):  # fmt: skip
            return None
        todo = {source for source in todo if source[0] != at[0]}
        nodes.add(at[0])
        inputs = flow.inputs(at[0])
        for source in inputs[:1] if flow.moves(at[0]) else inputs:
            if not (flow.is_leaf(source[0]) and flow.is_weight(flow.behind(source)[0][0])):
                todo.add(source)
            elif op in _PRODUCTS:
                scales.append(source)
            else:
                return None
        if not todo:
            return None
    return todo.pop()


def _axes(flow: Flow, node: int, sizes: int) -> tuple[int, ...]:
    """Of a mean or a variance, counted from the last."""
    found = arguments(flow[node], "self", "dim")["dim"]
    axes = range(sizes) if found in (None, []) else (found,) if isinstance(found, int) else found
    return tuple(sorted(n - sizes if n >= 0 else n for n in axes))


def _scaled_after(flow: Flow, parts: _Parts) -> _Parts:
    """With the product by a weight, or by one and a weight, and the sum with a bias, that it alone leads to."""
    last, nodes, scales, offsets = parts.last, set(parts.nodes), list(parts.scales), list(parts.offsets)
    for ops, kept in ((_PRODUCTS, scales), (_SUMS, offsets)):
        after, ends = flow.ahead(last, flow.moves, 4)
        if len(ends) != 1 or flow.ops[ends[0][0]] not in ops or (kept is scales and scales):
            continue
        inputs = flow.inputs(ends[0][0])
        if len(inputs) != 2 or not _is_weight(flow, inputs[1 - ends[0][1]]):
            continue
        kept.append(inputs[1 - ends[0][1]])
        last = ends[0][0]
        nodes |= after | {last}
    return parts._replace(last=last, nodes=nodes, scales=scales, offsets=offsets)


def _is_weight(flow: Flow, source: Source) -> bool:
    root = flow.behind(source)[0][0]
    if flow.is_op(root) and flow.ops[root] == "aten::add" and not flow.is_weight(root):
        return flow.is_leaf(flow.inputs(root)[0][0])
    return flow.is_leaf(source[0])


def _check(flow: Flow, parts: _Parts) -> Check:
    shape, rows = flow.shape(parts.x), parts.axes == (-1,)
    tried = [{parts.x: fewer(shape, 1)}, {}] if rows and torch.Size(shape).numel() > 1 << 16 else [{}]
    why: Exception = Refused("it is not a normalization")
    for shapes in tried:
        try:
            return Check(True, {"kind": _kind(Trial(flow, parts.nodes, shapes=shapes), parts)})
        except (Refused, CannotRun) as error:
            why = error
        except KeyError:
            why = CannotRun("it reads a view of memory that was written since")
        except RuntimeError:  # torch's, of sizes
            why = Refused("its weights are on other axes than what they scale")
    raise why


def _kind(trial: Trial, parts: _Parts) -> str:
    x = trial.given(parts.x) * _LARGE
    (found,) = trial.run((parts.last, 0), given={parts.x: x})
    for kind, expected in _normalized(x, parts.axes):
        if expected.numel() != found.numel():
            continue
        expected = expected.reshape(found.shape)  # as the weights lie
        for scale in parts.scales:
            expected = expected * trial.given(scale)
        for offset in parts.offsets:
            expected = expected + trial.given(offset)
        if agree(found, expected):
            return kind
    raise Refused("it is not a normalization")


def _normalized(x: torch.Tensor, axes: tuple[int, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    first = -x.dim() in axes and x.dim() > 1
    kind = "batch norm" if first else "layer norm" if len(axes) == 1 else "instance norm"
    for correction in (0, 1):
        variance, mean = torch.var_mean(x, axes, correction=correction, keepdim=True)
        yield kind, (x - mean) * variance.rsqrt()
    yield "RMS norm", x * x.square().mean(axes, keepdim=True).rsqrt()
