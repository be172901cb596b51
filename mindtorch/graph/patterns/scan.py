"""State-space scans that are written as a loop: a state that decays, gets something new, and is read, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from .flow import PRODUCTS, Flow
from .pattern import Check, Found, Pattern, Refused, Trial, agree, form_of
from .rerun import Source

__all__ = ["StateSpaceScan"]

_SUMS = frozenset({"aten::add", "aten::add_"})
_MULTIPLIES = frozenset({"aten::mul", "aten::mul_"})
_FAR = 12  # nodes between a state and what reads it


class _Entry(NamedTuple):
    """Of a tensor: where that is, which axis is time, which step it is, and the nodes that take it out."""

    whole: Source
    axis: int
    step: int
    nodes: list[int]


class _Step(NamedTuple):
    """``state = decay · before + new``. node: the sum; product: that it adds to."""

    node: int
    product: int
    before: Source
    decay: Source
    new: Source


class StateSpaceScan(Pattern):
    """``h ← exp(Δ A) h + Δ B x``, ``y = C h`` for one step after the other, as selective state-space models have it."""

    name = "state-space scan"

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        for chain in _chains(flow):
            decays = [_entry(flow, step.decay) for step in chain]
            first = decays[0]
            if first is None or any(
                each is None or (each.whole, each.axis, each.step) != (first.whole, first.axis, first.step + i)
                for i, each in enumerate(decays)
            ):
                continue
            last = chain[-1].node
            if flow.ops[first.whole[0]] not in ("aten::exp", "aten::exp_"):
                yield last, "its state does not decay by an exponential"
                continue
            reads = [read for step in chain if (read := _read(flow, step, chain)) is not None]
            if len(reads) != len(chain):
                yield last, "not every state is read by a product"
                continue
            nodes = {first.whole[0]} | {n for each in decays if each is not None for n in each.nodes}
            nodes |= {n for step in chain for n in (step.node, step.product)} | {n for _, _, on in reads for n in on}
            news = [_entry(flow, step.new) for step in chain]
            nodes |= {n for each in news if each is not None for n in each.nodes}
            yield Found(last, nodes, [], partial(_check, flow, chain, first, news, reads, nodes), form_of(flow, nodes))


def _chains(flow: Flow) -> Iterator[list[_Step]]:
    """Sums whose state is that of the one before: two at least."""
    options: dict[int, list[_Step]] = {}
    for node in flow.nodes:
        if flow.ops[node] not in _SUMS or len(flow.inputs(node)) != 2:
            continue
        for place, (product, _) in enumerate(flow.inputs(node)):
            if not flow.is_op(product) or flow.ops[product] not in _MULTIPLIES or len(flow.inputs(product)) != 2:
                continue
            new = flow.inputs(node)[1 - place]
            for side, before in enumerate(flow.inputs(product)):
                options.setdefault(node, []).append(_Step(node, product, before, flow.inputs(product)[1 - side], new))
    following: dict[int, _Step] = {}
    followed = set()
    for node, steps in options.items():
        for step in steps:
            before = flow.behind(step.before)[0]
            if before[0] in options and before[0] not in following and flow.shape(before) == flow.shape(step.before):
                following[before[0]] = step
                followed.add(node)
                break
    for node, steps in options.items():
        if node in followed or node not in following:
            continue
        second = _entry(flow, following[node].decay)
        first = [step for step in steps if (at := _entry(flow, step.decay)) and second and at.whole == second.whole]
        if not first:
            continue
        chain = first[:1]
        while (after := following.get(chain[-1].node)) is not None:
            chain.append(after)
        yield chain


def _entry(flow: Flow, source: Source) -> _Entry | None:
    """What it is of a tensor with one more axis."""
    nodes: list[int] = []
    while flow.is_op(source[0]) and flow.moves(source[0]) and flow.inputs(source[0]):
        node = source[0]
        nodes.append(node)
        source = flow.inputs(node)[0]
        if flow.ops[node] == "aten::select":
            _, axis, step = flow[node].args
            size = len(flow.shape(source))
            return _Entry(source, axis % size, step % flow.shape(source)[axis], nodes)
        if flow.ops[node] == "aten::unbind":
            return None
    return None


def _read(flow: Flow, step: _Step, chain: list[_Step]) -> tuple[Source, _Entry, list[int]] | None:
    """(what a product gives of a state, by what, the nodes of it)"""
    passed, ends = flow.ahead(step.node, flow.moves, _FAR)
    products = {each.product for each in chain}
    for reader, place in ends:
        if reader in products or len(flow.inputs(reader)) < 2:
            continue
        result, more = reader, [reader]
        if flow.ops[reader] in _MULTIPLIES:
            sums = [n for n, _ in flow.readers[reader] if flow.ops[n] == "aten::sum"]
            if len(sums) != 1:
                continue
            result, more = sums[0], [reader, sums[0]]
        elif flow.ops[reader] not in PRODUCTS:
            continue
        by = _entry(flow, flow.inputs(reader)[1 - place] if place < 2 else flow.inputs(reader)[0])
        if by is not None:
            return (result, 0), by, [*passed, *more, *by.nodes]
    return None


def _check(
    flow: Flow, chain: list[_Step], first: _Entry, news: list[_Entry | None],
    reads: list[tuple[Source, _Entry, list[int]]], nodes: set[int],
) -> Check:  # fmt: skip
    trial = Trial(flow, nodes)
    found = trial.run(*(result for result, _, _ in reads))
    decay = trial.given(flow.inputs(first.whole[0])[0]).exp()
    state = trial.given(chain[0].before)
    for i, (step, new, (_, by, _)) in enumerate(zip(chain, news, reads, strict=True)):
        added = trial.given(step.new) if new is None else trial.given(new.whole).select(new.axis, new.step)
        if by.step != first.step + i or (new is not None and new.step != first.step + i):
            raise Refused("its steps are read in another order")
        state = decay.select(first.axis, first.step + i) * state + added
        weights = trial.given(by.whole).select(by.axis, by.step)
        if weights.shape[-1] != state.shape[-1]:
            raise Refused("it is read by something without one value per element of the state")
        expected = (state * weights.reshape(*weights.shape[:-1], *[1] * (state.dim() - weights.dim()), -1)).sum(-1)
        if not agree(found[i].reshape(-1), expected.reshape(-1)):
            raise Refused("it is not a state-space scan")
    return Check(True, {"state": int(torch.Size(state.shape[-1:]).numel())})
