"""Choosing the next token by its logits: the likeliest one, or one drawn, among all or those that are likely enough."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..graph import PHASES
from .flow import Flow
from .pattern import Check, Found, Pattern, Refused, Trial, arguments, form_of
from .rerun import Source

__all__ = ["Sampling"]

_SOFTMAX = frozenset({"aten::_softmax", "aten::softmax", "aten::_safe_softmax", "aten::exp"})
_SORTED = frozenset({"aten::topk", "aten::sort"})
_KEPT = frozenset(f"aten::{name}" for name in (
    "view", "_unsafe_view", "reshape", "expand", "unsqueeze", "squeeze", "clone", "_to_copy", "to", "contiguous",
    "detach", "alias", "lift_fresh",
))  # fmt: skip
#: What is done to logits between the model and the draw.
_STEPS = _SOFTMAX | _SORTED | _KEPT | frozenset(f"aten::{name}" for name in (
    "div", "div_", "mul", "mul_", "sub", "sub_", "add", "log", "log_softmax", "_log_softmax", "logsumexp", "sum",
    "amax", "max",
    "masked_fill", "masked_fill_", "where", "lt", "le", "gt", "ge", "index_put", "index_put_", "cumsum", "fill_",
    "scatter", "scatter_", "select", "slice", "index", "copy_", "scalar_tensor", "full_like", "full", "zeros_like",
    "bitwise_not", "logical_not", "clamp", "clamp_min", "roll", "neg", "zero_",
))  # fmt: skip
_PARTS = frozenset({"aten::select", "aten::slice", "aten::index"})  # of logits: what is before is another tensor
_FILLED = frozenset(f"aten::{name}" for name in ("index_put", "index_put_", "masked_fill", "masked_fill_"))
_DECODE = PHASES.index("decode")
_FAR = 60  # nodes between logits and the draw
_SPREADS = (0.01, 0.5, 1.0, 2.0, 4.0)  # of made-up logits
_CLOSE = 2e-3
_ROUNDING = 1e-5


class _Draw(NamedTuple):
    """node: what draws. chosen: what gives the token. noise: what likelihoods are divided by; None: none."""

    node: int
    chosen: int
    likely: Source
    noise: Source | None


class Sampling(Pattern):
    """A token drawn by softmax(logits / temperature), of all, the k likeliest (top-k), or those that together are more
    likely than p (top-p); or the likeliest one, which the model then gets."""

    name = "sampling"

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        for node in flow.nodes:
            op = flow.ops[node]
            if op == "aten::multinomial":
                likely = flow.inputs(node)[0]
                draw = _Draw(node, _token(flow, node), likely, None)
            elif op == "aten::argmax" and arguments(flow[node], "input", "dim")["dim"] is not None:
                draw = _best(flow, node)
            else:
                continue
            logits, nodes = _logits(flow, draw.likely)
            greedy = op == "aten::argmax" and draw.noise is None
            if greedy:
                if not _is_fed_back(flow, node):
                    continue
            elif all(flow.ops[n] not in _SOFTMAX for n in nodes):
                continue  # weights from outside
            inside = nodes | {draw.node, draw.chosen}
            check = partial(_check_best if greedy else _check, flow, draw, logits, nodes)
            if flow.is_op(logits[0]) and flow.is_weight(logits[0]):
                continue
            yield Found(node, inside, [], check, form_of(flow, inside))


def _token(flow: Flow, draw: int) -> int:
    """What tells, of a draw among sorted ones, which token that is; the draw itself where there is none."""
    _, ends = flow.ahead(draw, lambda n: flow.ops[n] in _KEPT, 8)
    return next(
        (n for n, place in ends if flow.ops[n] in ("aten::gather", "aten::take_along_dim") and place == 1), draw
    )


def _best(flow: Flow, node: int) -> _Draw:
    """The likeliest; where they were divided by exponential noise before, that is a draw."""
    source = flow.inputs(node)[0]
    quotient, _ = flow.behind(source)
    if flow.ops[quotient[0]] in ("aten::div", "aten::div_") and len(flow.inputs(quotient[0])) == 2:
        likely, noise = flow.inputs(quotient[0])
        if flow.ops[flow.behind(noise)[0][0]] in ("aten::exponential_", "aten::exponential"):
            return _Draw(node, node, likely, noise)
    return _Draw(node, node, source, None)


def _is_fed_back(flow: Flow, node: int) -> bool:
    """Does a model get it: by its table, or in a step of decode that follows?"""
    fits = frozenset({"aten::cat", "aten::where", "aten::mul", "aten::add", "aten::unsqueeze", "aten::copy_",
                      "aten::stack", "aten::index_put_", "aten::squeeze"})  # fmt: skip
    _, ends = flow.ahead(node, lambda n: flow.moves(n) or flow.ops[n] in fits, _FAR)
    if any(flow.ops[n] == "aten::embedding" and place == 1 for n, place in ends):
        return True
    later = flow.graph._phase.find(_DECODE, node) >= 0
    return later and any(flow.ops[n] == "aten::_local_scalar_dense" for n, _ in ends)


def _logits(flow: Flow, likely: Source) -> tuple[Source, set[int]]:
    """(what likelihoods are computed of alone, by which nodes): as far back as there is such a value."""
    at, found = likely, (likely, set[int]())
    for _ in range(_FAR):
        node = at[0]
        if not flow.is_op(node) or flow.ops[node] not in _STEPS - _PARTS or not flow.inputs(node):
            break
        wide = [source for source in flow.inputs(node) if len(flow.shape(source)) and _is_real(flow, source)]
        if not wide:
            break
        at = max(wide, key=lambda source: torch.Size(flow.shape(source)).numel())
        nodes = _between(flow, likely, at)
        if nodes is not None:
            found = at, nodes
    return found


def _is_real(flow: Flow, source: Source) -> bool:
    return flow[source[0]].outputs[source[1]].dtype.is_floating_point


def _between(flow: Flow, likely: Source, logits: Source) -> set[int] | None:
    """The nodes that compute the one of the other; None where that takes something else."""
    found: set[int] = set()
    todo = [likely]
    for source in todo:  # grows while it is read
        node = source[0]
        if source == logits or node in found:
            continue
        if not flow.is_op(node) or flow.ops[node] not in _STEPS:
            if flow.shape(source) and flow[flow.behind(source)[0][0]].number is None:
                return None
            continue  # a number
        if node < logits[0] and flow.inputs(node) and flow.shape(source):
            return None
        found.add(node)
        todo += flow.inputs(node)
    return found if len(found) <= _FAR else None


# ---- checks ----------------------------------------------------------------------------------------------------------
class _Row(NamedTuple):
    """scores: logits, the highest first. parts: how likely each is. kept: how many have any chance."""

    scores: Tensor
    parts: Tensor
    kept: int


def _check(flow: Flow, draw: _Draw, logits: Source, nodes: set[int]) -> Check:
    trial = Trial(flow, nodes)
    in_order = draw.chosen != draw.node
    rows = [row for spread in _SPREADS for row in _rows(trial, draw.likely, logits, spread, in_order)]
    if in_order:
        _check_token(flow, draw, nodes, logits)
    if draw.noise is not None:
        _check_noise(flow, draw)
    inverse = _inverse_temperature(rows)
    if flow.is_op(logits[0]) and flow.ops[logits[0]] in _FILLED:
        return Check(True, {"kind": "drawn"})  # what is done before that cannot be run by itself
    counts = {row.kept for row in rows}
    whole = len(rows[0].scores)
    about: dict[str, Any] = {"kind": "drawn", "temperature": float(f"{1 / inverse:.4g}")}
    if counts == {whole}:
        return Check(True, about)
    if len(counts) == 1:
        return Check(True, {**about, "top_k": max(counts)})
    numbers = list(_constants(flow, nodes))
    for k in (*(n for n in numbers if isinstance(n, int) and max(counts) <= n < whole), whole):
        least, most = _bounds(rows, inverse, k)
        if least > most:
            continue
        near = (c for n in numbers if isinstance(n, float) for c in (n, 1 - n) if least <= c <= most)
        p = float(f"{next(near, most):.4g}")
        return Check(True, {**about, "top_k": k, "top_p": p} if k < whole else {**about, "top_p": p})
    raise Refused("it does not keep the tokens that top-k or top-p would")


def _bounds(rows: list[_Row], inverse: float, k: int) -> tuple[float, float]:
    """Between which p is, if of the k likeliest those are kept that together are more likely than p."""
    least, most = 0.0, 1.0
    for row in rows:
        parts = (row.scores[:k] * inverse).softmax(-1).cumsum(-1)
        if row.kept > 1:
            least = max(least, float(parts[row.kept - 2]) - _ROUNDING)
        if row.kept < k:
            most = min(most, float(parts[row.kept - 1]) + _ROUNDING)
    return least, most


def _rows(trial: Trial, likely: Source, logits: Source, spread: float, in_order: bool) -> Iterator[_Row]:
    given = trial.given(logits) * spread
    (found,) = trial.run(likely, given={logits: given})
    scores, order = given.reshape(-1, given.shape[-1]).double().sort(-1, descending=True)
    parts = found.reshape(-1, found.shape[-1]).double()
    if len(parts) != len(scores):
        raise Refused("it does not draw once for each row of logits")
    if not in_order and parts.shape != scores.shape:
        raise Refused("it draws from something other than the logits")
    for row, (score, part) in enumerate(zip(scores, parts, strict=True)):
        shares = part if in_order else part[order[row]]
        shares = torch.nn.functional.pad(shares, (0, len(score) - len(shares)))
        kept = int((shares > 0).sum())
        if not kept or bool((shares[:kept] <= 0).any()):
            raise Refused("it does not keep the likeliest tokens")
        yield _Row(score, shares / shares.sum(), kept)


def _inverse_temperature(rows: list[_Row]) -> float:
    """How steep logarithms of likelihoods are in the logits: the same in all rows."""
    found = []
    for row in rows:
        few = min(row.kept, 20)
        if few < 2:
            continue
        x, y = row.scores[:few], row.parts[:few].log()
        slope = float((y[0] - y[-1]) / (x[0] - x[-1]))
        if not torch.allclose(y - y[0], slope * (x - x[0]), rtol=_CLOSE, atol=_CLOSE):
            raise Refused("it does not draw by a softmax of logits")
        if float(x[0] - x[-1]) > 0.1:
            found.append(slope)
    if not found:
        raise Refused("it can draw only the likeliest token")
    if min(found) <= 0 or max(found) - min(found) > 0.01 * max(found):
        raise Refused("it uses a different temperature for each row")
    return sorted(found)[len(found) // 2]


def _check_token(flow: Flow, draw: _Draw, nodes: set[int], logits: Source) -> None:
    """Of a draw among sorted ones: the second is the token with the second highest logit."""
    after, _ = flow.behind((draw.chosen, 0))
    passed = flow.behind(flow.inputs(draw.chosen)[1])[1]
    trial = Trial(flow, {*nodes, *passed, after[0]})
    one = torch.ones(flow.shape((draw.node, 0)), dtype=torch.int64, device="cpu")
    (token,) = trial.run((draw.chosen, 0), given={(draw.node, 0): one})
    x = trial.given(logits)
    if not torch.equal(token.reshape(-1), x.reshape(-1, x.shape[-1]).argsort(-1, descending=True)[:, 1]):
        raise Refused("its result is not the token that was drawn")


def _check_noise(flow: Flow, draw: _Draw) -> None:
    passed = [n for n in flow.behind(flow.inputs(draw.node)[0])[1] if n > draw.likely[0]]
    quotient = flow.behind(flow.inputs(draw.node)[0])[0][0]
    trial = Trial(flow, {*passed, quotient, draw.node}, signed=())
    assert draw.noise is not None
    (token,) = trial.run((draw.node, 0))
    expected = (trial.given(draw.likely) / trial.given(draw.noise)).argmax(-1)
    if not torch.equal(token.reshape(-1), expected.reshape(-1)):
        raise Refused("it does not draw as its noise says")


def _check_best(flow: Flow, draw: _Draw, logits: Source, nodes: set[int]) -> Check:
    trial = Trial(flow, {*nodes, draw.node})
    (token,) = trial.run((draw.node, 0))
    if not torch.equal(token.reshape(-1), trial.given(logits).argmax(-1).reshape(-1)):
        raise Refused("it is not the likeliest")
    return Check(True, {"kind": "greedy"})


def _constants(flow: Flow, nodes: Iterable[int]) -> Iterator[int | float]:
    for node in nodes:
        view = flow[node]
        yield from (value for value in (*view.args, *view.kwargs.values()) if type(value) in (int, float))
        if view.op == "aten::topk":
            yield arguments(view, "input", "k")["k"]
