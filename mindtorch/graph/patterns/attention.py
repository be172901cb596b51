"""Attention: ``softmax(s · q kᵀ + bias) v``, as one call or written out, with the projections around it.

Written out, it is a softmax between two products. That the scores become ``s · q kᵀ + bias`` on their way to it is not
read off the operations there but tried: the way is run with the scores, twice the scores, and none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from .flow import CONVOLUTIONS, Flow
from .pattern import Check, Found, Pattern, Refused, Trial, agree, form_of
from .rerun import CannotRun, Source
from .softmax import Softmax, softmax_at

__all__ = ["Attention"]

_FUSED = frozenset(f"aten::{name}" for name in (
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_attention_math",
    "_scaled_dot_product_attention_math_for_mps",
))  # fmt: skip
_WHOLE = frozenset({"aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd"})
_PRODUCTS = frozenset({"aten::bmm", "aten::baddbmm", "aten::matmul", "aten::mm", "aten::addmm"})
_WITH_SINK = frozenset({"aten::cat", "aten::max", "aten::amax"})  # a column more, and its largest subtracted
_ONE_CALL = "one call"
_FAR = 48  # nodes of a walk
_PROJECTIONS = 2  # one after the other, of queries or of keys
_LOW = -1e4  # a score below that is masked


class Attention(Pattern):
    name = "attention"

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        for node in flow.nodes:
            op = flow.ops[node]
            if op in _FUSED:
                yield _fused(flow, node)
            elif op in _WHOLE:
                weights = [s for s, _ in flow.inputs(node)[3:]]
                yield Found(node, {node}, weights, _by_name, op, attributes={"form": _ONE_CALL})
            elif (softmax := softmax_at(flow, node)) is not None:
                try:
                    yield _written_out(flow, node, softmax)
                except Refused as error:
                    yield node, str(error)


def _by_name() -> Check:
    return Check(False, {})


# ---- as one call


def _fused(flow: Flow, node: int) -> Found:
    q, k, v = flow.inputs(node)[:3]
    core = {node}
    nodes, weights = _around(flow, core, (q, k, v), node)
    arguments = _named(flow, node)
    shapes = list(flow.read_shapes(node)[:3])
    about = _about(flow, q, k, shapes)
    about |= {"form": _ONE_CALL, "causal": bool(arguments.get("is_causal"))}
    scale = arguments.get("scale")
    before = _scaled_before(flow, q) * _scaled_before(flow, k)
    about["scale"] = _scale((1 / math.sqrt(shapes[0][-1]) if scale is None else scale) * before, shapes[0][-1])
    form = (flow.ops[node], *shapes, bool(arguments.get("is_causal")), scale)
    return Found(node, nodes, weights, partial(_check_fused, shapes, arguments), form, attributes=about)


def _named(flow: Flow, node: int) -> dict[str, Any]:
    from ...ops import schema
    from .rerun import function

    view = flow[node]
    func = function(view.call.overload) or getattr(torch.ops.aten, view.op.removeprefix("aten::")).default
    return {**dict(zip(schema.argument_names(func), view.args, strict=False)), **view.kwargs}


def _check_fused(shapes: list[tuple[int, ...]], arguments: dict[str, Any]) -> Check:
    """Torch's function by that name beside the formula, on fewer batches where those are many.

    What a GPU's kernels of that function compute is theirs to prove.
    """
    if math.prod(shapes[0][1:-1]) * shapes[1][-2] > 1 << 24:
        raise CannotRun("more than 16,777,216 scores")
    generator = torch.Generator("cpu").manual_seed(0)
    q, k, v = (torch.randn(1, *shape[1:], generator=generator, device="cpu") for shape in shapes)
    causal, scale = bool(arguments.get("is_causal")), arguments.get("scale")
    gqa = q.shape[-3] != k.shape[-3]
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=gqa)
    if gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for t in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cpu").triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if not agree(found, scores.softmax(-1) @ v):
        raise Refused("it does not compute softmax(s · q kᵀ + bias) v")
    return Check(True, {})


# ---- written out


def _written_out(flow: Flow, softmax: int, parts: Softmax) -> Found:
    last = len(flow[softmax].outputs[0].shape) - 1
    if parts.axis not in (-1, last):
        raise Refused(f"its softmax goes over axis {parts.axis}, not the last")
    before, ends = flow.back([parts.source[0]], lambda n: not _to_softmax(flow, n), _FAR)
    scores = next((n for n in ends if _is_scores(flow, n)), None)
    if scores is None:
        raise Refused("no product of two computed tensors leads to its softmax")
    after, readers = flow.ahead(softmax, lambda n: flow.moves(n), _FAR)
    context = [(n, place) for n, place in readers if flow.ops[n] in _PRODUCTS]
    if len(context) != 1:
        raise Refused("no product reads its probabilities" if not context else "two products read its probabilities")
    # Their mean over the heads is for whoever looks at them (nn.MultiheadAttention gives it unless told not to).
    others = [n for n, _ in readers if n != context[0][0] and flow.ops[n] != "aten::mean"]
    if others:
        raise Refused(f"{flow.ops[others[0]]} reads its probabilities, too")
    node, place = context[0]
    sides = flow.sides(node)
    assert sides is not None
    inputs = flow.inputs(node)
    values = sides[1] if inputs[place] == sides[0] else sides[0]
    if flow.is_leaf(values[0]) and not flow.is_op(values[0]):
        raise Refused("its values are an input, not computed")
    _, way = flow.behind(inputs[place])
    aside = {n for n, _ in readers if n != node} | (after - {*way})  # of the mean
    nodes = _between(flow, scores, {*parts.nodes, *before, *way, node})
    if any(flow.drops(n) for n in nodes & set(before)):
        raise Refused("it drops scores")
    others = [n for n in nodes - {node} for reader, _ in flow.readers[n] if reader not in nodes | aside]
    if others:
        raise Refused(f"something else reads its {flow.ops[others[0]]}")
    q, k = flow.sides(scores) or ((0, 0), (0, 0))
    _check_tokens(flow, q)
    everything, weights = _around(flow, nodes, (q, k, values), node)
    shapes = [flow.shape(q), (*flow.shape(k)[:-2], flow.shape(k)[-1], flow.shape(k)[-2]), flow.shape(values)]
    about = _about(flow, q, k, shapes)
    scaled = _scaled_before(flow, q) * _scaled_before(flow, k)
    check = partial(_check_written_out, flow, nodes, scores, parts.source, node, values, scaled)
    if any(flow.is_leaf(side[0]) for side in (q, k)):  # learned queries; or scores that are no products of two tokens
        check = partial(_only_if_run, check)
    form = form_of(flow, nodes), scaled
    if flow.ops[softmax] == "aten::_safe_softmax":  # which only torch's own function calls, where no kernel fits
        return Found(node, everything, weights, check, form, attributes={**about, "form": _ONE_CALL})
    return Found(node, everything, weights, check, form, attributes={**about, "form": "written out"}, core=nodes)


def _on_the_way(flow: Flow, node: int) -> bool:
    return flow.is_pointwise(node) or flow.moves(node)


def _to_softmax(flow: Flow, node: int) -> bool:
    return _on_the_way(flow, node) or flow.ops[node] in _WITH_SINK


def _is_scores(flow: Flow, node: int) -> bool:
    sides = flow.sides(node) if flow.is_op(node) and flow.ops[node] in _PRODUCTS else None
    return sides is not None and not any(flow.is_leaf(side[0]) and not flow.is_op(side[0]) for side in sides)


def _between(flow: Flow, first: int, nodes: set[int]) -> set[int]:
    """Those of the nodes that depend on the first one, and that."""
    found = {first}
    for node in sorted(nodes):
        if any(source in found for source, _ in flow.inputs(node)):
            found.add(node)
    return found


def _check_tokens(flow: Flow, q: Source) -> None:
    """Queries are of tokens: the numbers that a projection makes of one are summed over, not those of all tokens.

    Raises Refused. What cannot be followed back to a projection passes.
    """
    way: list[tuple[Source, Source]] = []
    at = q
    while flow.is_op(at[0]) and not flow.is_linear(at[0]):
        if not flow.inputs(at[0]) or not _on_the_way(flow, at[0]) or len(way) > _FAR:
            return
        source = next((s for s in flow.inputs(at[0]) if len(flow.shape(s)) and not flow.is_leaf(s[0])), None)
        if source is None:
            return
        if flow.moves(at[0]):
            way.append((at, source))
        elif flow.shape(source) != flow.shape(at):
            return
        at = source
    if not flow.is_op(at[0]) or flow.ops[at[0]] in CONVOLUTIONS:
        return
    from .rerun import run

    width = flow.shape(at)[-1]
    place: torch.Tensor = torch.arange(width, dtype=torch.float32, device="cpu").expand(flow.shape(at)).contiguous()
    for node, source in reversed(way):
        view = flow[node[0]]
        values = {s: place if s == source else torch.zeros(flow.shape(s), device="cpu") for s in view.inputs}
        try:
            run(flow.graph, [node[0]], values)
        except CannotRun:
            return
        place = values[node]
    if place.dim() < 2 or place.shape[-1] < 2 or place.shape[-2] < 2:
        return
    if bool((place[..., :1] == place).all()) and not bool((place[..., :1, :] == place).all()):
        raise Refused("its scores are between channels: they sum over tokens")


def _check_written_out(
    flow: Flow, nodes: set[int], scores: int, softmax: Source, last: int, values: Source, before: float
) -> Check:
    """before: what the sides of the scores were multiplied by already."""
    sides = flow.sides(scores)
    assert sides is not None
    trial = Trial(flow, nodes, {*sides, values})
    q, k = (trial.given(side) if flow[scores].readings[flow.inputs(scores).index(side)] is None else None
            for side in sides)  # fmt: skip
    if q is None or k is None:
        raise CannotRun("its scores are of views of memory that was written since")
    wanted = [softmax, (last, 0)]
    none, _ = trial.run(*wanted, given={sides[0]: torch.zeros_like(q)})
    once, context = trial.run(*wanted)
    much, _ = trial.run(*wanted, given={sides[0]: q * 1e6})
    product = q @ k
    sink = once.shape[-1] == product.shape[-1] + 1  # a column of its own: scores are beside that
    if sink:
        none, once, much = (t[..., :-1] - t[..., -1:] for t in (none, once, much))
    if product.numel() != once.numel():
        raise Refused("its softmax is not of its scores")
    product = product.reshape(once.shape)
    open_ = (none > _LOW) & torch.isfinite(none)
    slope = torch.where(open_ & (product.abs() > 0.3), (once - none) / product, math.nan)
    capped = float(torch.where(open_, much - none, 0.0).abs().max())
    if capped < 1e4:  # a tanh holds them
        small, _ = trial.run(*wanted, given={sides[0]: q * 1e-3})
        small = small[..., :-1] - small[..., -1:] if sink else small
        slope = torch.where(open_ & (product.abs() > 0.3), (small - none) / (product * 1e-3), math.nan)
        cap: float | None = capped
    else:
        cap = None
    scale = slope.nanmean((-2, -1), keepdim=True).nan_to_num(0.0)
    expected = product * scale if cap is None else cap * torch.tanh(product * scale / cap)
    expected = torch.where(open_, expected + none, none)
    seen = torch.where(open_, once, none)
    if not torch.allclose(seen, expected, rtol=2e-3, atol=2e-3 * max(1.0, float(expected[open_].abs().max()))):
        raise Refused("its scores are not s · q kᵀ + bias before the softmax")
    if not bool((scale[open_.any((-2, -1), keepdim=True)] > 0).all()):
        raise Refused("its scale is not positive: the lowest scores weigh most")
    rows = open_.any(-1)
    if not bool(rows.any()):
        raise CannotRun("the test numbers were all masked")
    several = scale.numel() > 1 and float(scale.max() - scale.min()) > 1e-3 * float(scale.max())
    heads = slope.shape[1] if slope.dim() == 4 else 1
    said = "learned" if several and heads else _scale(float(scale.max()) * before, q.shape[-1])
    about = {"scale": said} | ({"soft_cap": round(cap, 3)} if cap is not None else {})
    if not _is_weighted_sum(torch.where(open_, seen, -math.inf), sink, trial.given(values), context, rows):
        raise Refused("its result is not the probabilities times the values")
    return Check(True, about | ({"sink": True} if sink else {}))


def _is_weighted_sum(seen: Any, sink: bool, v: Any, context: Any, rows: Any) -> bool:
    """Whether that is the values, weighted by the softmax of these scores, in the rows that see any."""
    weights = (torch.cat([seen, torch.zeros_like(seen[..., :1])], -1).softmax(-1)[..., :-1] if sink
               else seen.softmax(-1).nan_to_num(0.0))  # fmt: skip
    flat = weights.reshape(*_like_product(weights, v))
    for give, take in ((flat, v), (v, flat.mT)) if flat.dim() == v.dim() else ():
        if give.shape[-1] != take.shape[-2]:
            continue
        own = give @ take
        mask = rows.reshape(flat.shape[:-1])
        kept = mask.unsqueeze(-1) if give is flat else mask.unsqueeze(-2)
        if own.shape == context.shape and agree(torch.where(kept, context, 0.0), torch.where(kept, own, 0.0)):
            return True
    return False


def _only_if_run(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except CannotRun as error:
        raise Refused(f"one operand of its scores is a weight, and it cannot be run to check: {error}") from None


def _like_product(weights: torch.Tensor, v: torch.Tensor) -> tuple[int, ...]:
    """The sizes of `weights`, with as many before the last two as `v` has."""
    lead = v.shape[:-2]
    if math.prod(lead) == math.prod(weights.shape[:-2]):
        return (*lead, *weights.shape[-2:])
    return tuple(weights.shape)


# ---- around it


def _scale(scale: float, width: int) -> Any:
    """As a label says it."""
    usual = 1 / math.sqrt(width)
    if abs(scale - usual) < 1e-2 * usual:
        return "1/sqrt(d)"
    return "none" if abs(scale - 1) < 1e-3 else round(float(scale), 6)


def _scaled_before(flow: Flow, source: Source) -> float:
    """What queries or keys were multiplied by since their projection."""
    found = 1.0
    while flow.is_op(source[0]) and not flow.is_linear(source[0]):
        inputs = flow.inputs(source[0])
        op = flow.ops[source[0]].rstrip("_")
        if op in ("aten::mul", "aten::div") and len(flow[source[0]].args) == 2 and not flow[source[0]].kwargs:
            number = flow[inputs[1][0]].number if len(inputs) == 2 else flow[source[0]].args[1]
            if not isinstance(number, (int, float)) or not number:
                break
            found *= number if op == "aten::mul" else 1 / number
        elif not inputs or not flow.moves(source[0]):
            break
        source = inputs[0]
    return found


def _about(flow: Flow, q: Source, k: Source, shapes: list[tuple[int, ...]]) -> dict[str, Any]:
    about: dict[str, Any] = {}
    apart = next((shape for node in (q[0], *flow.behind(q)[1]) if len(shape := flow.shape((node, 0))) == 4), None)
    if apart is not None:
        heads = _one_each(flow, q) or apart[1]
        kinds = {1: "multi-query"} if heads > 1 else {}
        held = _heads_behind(flow, k, shapes[1][1] if len(shapes[0]) == len(shapes[1]) == 4 else heads)
        about |= {"heads": heads, "kv_heads": held,
                  "kind": "multi-head" if held == heads else kinds.get(held, "grouped-query")}  # fmt: skip
    of_queries, of_keys = (_projected(flow, source, _PROJECTIONS) for source in (q, k))
    if of_queries and of_keys:
        about["of"] = "itself" if of_queries & of_keys else "another"
    return about


def _one_each(flow: Flow, q: Source) -> int:
    """How many heads there are, where their queries, one each, lie as the rows of fewer: those that keys have; else 0.

    So torch reads each key once.
    """
    shape = flow.shape(q)
    before = flow.shape(flow.inputs(q[0])[0]) if flow.is_op(q[0]) and flow.moves(q[0]) and flow.inputs(q[0]) else ()
    regrouped = len(shape) == len(before) == 4 and before[2] == 1 and before[1] == shape[1] * shape[2] > shape[1]
    return before[1] if regrouped and before[::3] == shape[::3] else 0


def _heads_behind(flow: Flow, k: Source, heads: int) -> int:
    """How many heads keys, which have so many, had before they were repeated for all queries."""
    least = whole = math.prod(flow.shape(k))
    # Torch's attention that is composed of operations scales its keys, too.
    for node in flow.behind(k, partial(_is_scaled, flow))[1]:
        if flow.ops[node] in ("aten::expand", "aten::repeat_interleave"):
            least = min(least, math.prod(flow.shape(flow.inputs(node)[0])))
    return max(1, heads * least // whole) if whole else heads


def _is_scaled(flow: Flow, node: int) -> bool:
    """Is it something times a number?"""
    inputs = flow.inputs(node)
    by_number = len(inputs) == 1 or (len(inputs) == 2 and flow[inputs[1][0]].number is not None)
    return flow.ops[node].rstrip("_") in ("aten::mul", "aten::div") and by_number


def _projected(flow: Flow, source: Source, times: int) -> set[Source]:
    """What a side is a projection of, and what that is a projection of: weights of low rank are two of them."""
    _, ends = flow.back([source[0]], lambda n: not flow.is_op(n) or flow.is_linear(n), _FAR)
    found = {flow.behind(sides[0])[0] for n in ends if flow.is_op(n) and (sides := flow.sides(n)) is not None}
    for got in list(found) if times > 1 else ():
        found |= _projected(flow, got, times - 1)
    return found


def _around(flow: Flow, core: set[int], sides: tuple[Source, ...], last: int) -> tuple[set[int], list[int]]:
    """(the nodes with its projections, the weights of those)."""
    passed, linears = flow.back(
        [source[0] for source in sides], lambda n: not flow.is_op(n) or flow.is_linear(n), 3 * _FAR
    )
    nodes = flow.own([*passed, *(n for n in linears if flow.is_op(n))], core)
    if not any(n in nodes for n in linears if flow.is_op(n)):
        nodes = flow.own([n for n in passed if flow.moves(n)], core)  # without projections: only what is its own
    after, ends = flow.ahead(last, lambda n: flow.moves(n), 8)
    outer = list({flow.whole(n) for n, _ in ends})
    if len(outer) == 1 and flow.is_linear(outer[0]):
        nodes |= after | set(outer)
    weights = [sides_[1][0] for n in sorted(nodes) if flow.is_linear(n) and (sides_ := flow.sides(n)) is not None]
    return nodes | {flow.base(n) for n in nodes}, [flow.behind((n, 0))[0][0] for n in weights]
