"""Embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch

from ..parts import Hole
from .flow import Flow
from .pattern import Check, Found, Pattern, Refused, agree, form_of
from .rerun import run

__all__ = ["Embedding"]


class Embedding(Pattern):
    """Rows of a table, one for each id."""

    name = "embedding"

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        for node in flow.nodes:
            if flow.ops[node] == "aten::embedding" or _picks_rows(flow, node):
                table = flow.behind(flow.inputs(node)[0])[0][0]
                yield Found(node, {node}, [table], partial(_check_embedding, flow, node), form_of(flow, {node}))


def _picks_rows(flow: Flow, node: int) -> bool:
    """Is it ``table[ids]``, or the same by `index_select`, of a table of weights?"""
    inputs, args = flow.inputs(node), flow[node].args
    if len(inputs) != 2 or len(flow.shape(inputs[0])) != 2 or not flow.is_weight(flow.behind(inputs[0])[0][0]):
        return False
    ids, numbers = (flow[source].outputs[output].dtype for source, output in inputs[::-1])
    if not numbers.is_floating_point or ids not in (torch.int32, torch.int64):
        return False
    picks = flow.ops[node] == "aten::index" and isinstance(args[1], (list, tuple)) and isinstance(args[1][0], Hole)
    return picks or (flow.ops[node] == "aten::index_select" and args[1] == 0)


def _check_embedding(flow: Flow, node: int) -> Check:
    """On a small table, and few ids: each row is picked by itself, whole."""
    table, ids = flow.inputs(node)
    rows, width = (min(n, 64) for n in flow.shape(table))
    shape = (*(min(n, 2) for n in flow.shape(ids)[:-1]), *(min(n, 64) for n in flow.shape(ids)[-1:]))
    values = {
        table: torch.randn(rows, width, generator=torch.Generator("cpu").manual_seed(0), device="cpu"),
        ids: torch.arange(math.prod(shape), device="cpu").reshape(shape) % rows,
    }
    run(flow.graph, {node}, values)
    if not agree(values[node, 0], values[table][values[ids]]):
        raise Refused("it is not an embedding")
    return Check(True, {})
