"""Embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch

from .flow import Flow
from .pattern import Check, Found, Pattern, Refused, agree, form_of
from .rerun import run

__all__ = ["Embedding"]


class Embedding(Pattern):
    """Rows of a table, one for each id."""

    name = "embedding"

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        for node in flow.nodes:
            if flow.ops[node] == "aten::embedding":
                table = flow.behind(flow.inputs(node)[0])[0][0]
                yield Found(node, {node}, [table], partial(_check_embedding, flow, node), form_of(flow, {node}))


def _check_embedding(flow: Flow, node: int) -> Check:
    """On a table of a thousand rows at most."""
    table, ids = flow.inputs(node)
    rows, width = flow.shape(table)
    values = {
        table: torch.randn(min(rows, 1000), width, generator=torch.Generator("cpu").manual_seed(0), device="cpu"),
        ids: torch.arange(math.prod(flow.shape(ids)), device="cpu").reshape(flow.shape(ids)) % min(rows, 1000),
    }
    run(flow.graph, {node}, values)
    if not agree(values[node, 0], values[table][values[ids]]):
        raise Refused("it is no embedding")
    return Check(True, {})
