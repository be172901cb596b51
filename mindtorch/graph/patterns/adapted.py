"""Products with a weight to which that of two narrow ones is added: where they are, as the calls look.

Whatever asks for products takes the sum for one. Whether it is LoRA is for `low_rank` to check.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from .rerun import Source

if TYPE_CHECKING:
    from .flow import Flow

__all__ = ["CONVOLUTIONS", "TRANSPOSED", "Adapted", "activation", "adapted", "adds_bias", "is_lookup", "is_product"]

#: In one call; a program without gradients may be recorded by the name that it called.
TRANSPOSED = frozenset(f"aten::conv_transpose{sides}" for sides in ("1d", "2d", "3d"))
CONVOLUTIONS = TRANSPOSED | frozenset(f"aten::{name}" for name in ("convolution", "conv1d", "conv2d", "conv3d"))
_SUMS = frozenset({"aten::add", "aten::add_"})
_SCALED = frozenset({"aten::mul", "aten::mul_", "aten::div", "aten::div_"})


class Adapted(NamedTuple):
    """Of a sum that does what one product with a weight does: ``W x + s · B (A x)``.

    products: with W, A and B. nodes: all, from x to the sum.
    """

    products: tuple[int, int, int]
    x: Source
    nodes: set[int]


def adapted(flow: Flow) -> Iterator[tuple[int, Adapted]]:
    """(the sum, its parts) of each, in program order. Each counts as a product once it is in `flow.adapted`."""
    for node in flow.nodes:
        if flow.ops[node] not in _SUMS or len(flow.inputs(node)) != 2:
            continue
        for mine, added in (flow.inputs(node), flow.inputs(node)[::-1]):
            wide, scaled = flow.behind(added, partial(_scales, flow))
            if not is_product(flow, wide[0]) or wide[0] in flow.adapted:
                continue
            narrow, between = flow.behind(activation(flow, wide[0]), partial(_scales, flow))
            if not (is_product(flow, narrow[0]) or is_lookup(flow, narrow[0])) or narrow[0] in flow.adapted:
                continue
            base, moved = flow.behind(mine, partial(adds_bias, flow))
            if not (is_product(flow, base[0]) or is_lookup(flow, base[0])):
                continue
            ways = [_way(flow, activation(flow, n)) for n in (base[0], narrow[0])]
            x = next((source for source in ways[1] if source in ways[0]), None)
            if x is not None:
                nodes = {node, *scaled, wide[0], *between, narrow[0], *moved, *_until(ways[1], x)}
                if base[0] not in flow.adapted:
                    nodes |= {base[0], *_until(ways[0], x)}
                yield node, Adapted((base[0], narrow[0], wide[0]), x, nodes)
                break


def _way(flow: Flow, source: Source) -> list[Source]:
    """A value, what it was moved or cast from, and so on."""
    found = [source]
    for node in flow.behind(source)[1]:
        found.append(flow.inputs(node)[0])
    return found


def _until(way: list[Source], x: Source) -> set[int]:
    return {node for node, _ in way[: way.index(x)]}


def _scales(flow: Flow, node: int) -> bool:
    """Does it multiply by a number?"""
    inputs = flow.inputs(node)
    return flow.ops[node] in _SCALED and (len(inputs) == 1 or (len(inputs) == 2 and flow.shape(inputs[1]) == ()))


def adds_bias(flow: Flow, node: int) -> bool:
    """Does it add a weight?"""
    leaves = [flow.is_leaf(source) for source, _ in flow.inputs(node)]
    return flow.ops[node] in _SUMS and leaves == [False, True]


def is_product(flow: Flow, node: int) -> bool:
    """With a weight: a matrix, or a kernel of any size."""
    if not flow.is_op(node):
        return False
    return flow.is_linear(node) or (
        flow.ops[node] in CONVOLUTIONS and flow.is_leaf(flow.inputs(node)[1][0])
        and not flow.is_leaf(flow.inputs(node)[0][0])
    )  # fmt: skip


def is_lookup(flow: Flow, node: int) -> bool:
    return flow.is_op(node) and flow.ops[node] == "aten::embedding"


def activation(flow: Flow, node: int) -> Source:
    if is_lookup(flow, node):
        return flow.inputs(node)[1]
    sides = flow.sides(node)
    assert sides is not None
    return sides[0]
