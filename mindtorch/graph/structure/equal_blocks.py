"""Stacks: modules that hold equal blocks, each of which computes with what the one before it gave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from ..patterns.flow import PRODUCTS, Flow
from ..patterns.rerun import Source

__all__ = ["Names", "Product", "Stack", "find_stacks", "holds", "products"]

Names = tuple[str, ...]  # of a module: its model's, then those of the attributes that lead to it

#: One call that has the products of a whole block, or of its attention, in it.
_MANY_PRODUCTS = frozenset({"aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd"})
_LEAST = 2  # equal blocks, and weights of each that something is multiplied by
_FAR = 64  # nodes between a block and the next


@dataclass
class Product:
    """A product with a weight: its node, what the weight is (the node that brings it in; sizes), what is multiplied."""

    node: int
    names: Names
    weight: int
    sizes: tuple[int, ...]
    x: Source


@dataclass(eq=False)
class Stack:
    """The module that holds the blocks, and the blocks in the order in which they run."""

    names: Names
    blocks: list[Names]
    products: list[list[Product]]  # by block


def holds(module: Names, other: Names) -> bool:
    """Is the other one in the module, or is it the same?"""
    return other[: len(module)] == module


def products(flow: Flow, names: list[Names]) -> list[Product]:
    """Those in modules, in program order. names: of each node's module."""
    found = []
    for node in flow.nodes:
        if not names[node]:
            continue
        if flow.ops[node] in _MANY_PRODUCTS:
            inputs = flow.inputs(node)
            weights = [flow.behind(source)[0][0] for source in inputs[1:]]
            found += [
                Product(node, names[node], weight, flow.shape((weight, 0)), inputs[0])
                for weight in weights
                if flow.is_weight(weight)
            ]
        elif flow.ops[node] in PRODUCTS and (sides := flow.sides(node)) is not None:
            for x, weight in (sides, sides[::-1]):
                behind = flow.behind(weight)[0][0]
                if flow.is_weight(behind):
                    found.append(Product(node, names[node], behind, flow.shape((behind, 0)), x))
                    break
    return found


def find_stacks(flow: Flow, names: list[Names], every: Iterable[Product]) -> list[Stack]:
    """The outermost ones: no stack that lies in another one's block."""
    children: dict[Names, dict[Names, list[Product]]] = defaultdict(lambda: defaultdict(list))
    for product in every:
        for depth in range(1, len(product.names)):
            children[product.names[:depth]][product.names[: depth + 1]].append(product)
    found: list[Stack] = []
    chains = _Chains(flow, names, children)
    for module in sorted(children, key=len):
        if any(holds(block, module) for stack in found for block in stack.blocks):
            continue
        for blocks in chains.of(module):
            if not chains.holds_one(module, blocks[0]):
                found.append(Stack(module, blocks, [children[module][block] for block in blocks]))
    return found


def _weights(child: Names, inside: Iterable[Product]) -> dict[int, tuple[Names, tuple[int, ...]]]:
    """Where in a module each weight is, and its sizes. Each once: a step of decode reads fewer of them than prefill."""
    return {product.weight: (product.names[len(child) :], product.sizes) for product in inside}


class _Chains:
    """Modules in one module that have equal weights, and run one after the other."""

    def __init__(self, flow: Flow, names: list[Names], children: dict[Names, dict[Names, list[Product]]]) -> None:
        self._flow, self._names, self._children = flow, names, children
        self._known: dict[Names, list[list[Names]]] = {}

    def of(self, module: Names) -> list[list[Names]]:
        if module not in self._known:  # few are asked for: each takes a look at all nodes
            alike: dict[tuple[object, ...], list[Names]] = defaultdict(list)
            for child, inside in self._children[module].items():
                weights = _weights(child, inside)
                if len(weights) >= _LEAST:
                    alike[tuple(sorted(weights.values()))].append(child)
            self._known[module] = [
                blocks for blocks in alike.values()
                if len(blocks) >= _LEAST and _is_chain(self._flow, self._names, blocks)
            ]  # fmt: skip
        return self._known[module]

    def holds_one(self, module: Names, block: Names) -> bool:
        """Are most weights of what looks like a block in a list of blocks of its own? Two models may have the same
        sizes. What is in a list itself is a block: its two attentions may have the same sizes, too."""
        if block[-1].isdecimal():
            return False
        most = len(_weights(block, self._children[module][block])) / 2
        lists = [inner for inner, inside in self._children.items()
                 if holds(block, inner) and next(iter(inside))[-1].isdecimal()]  # fmt: skip
        return any(
            sum(len(_weights(child, self._children[inner][child])) for child in blocks) > most
            for inner in lists
            for blocks in self.of(inner)
        )


def _is_chain(flow: Flow, names: list[Names], blocks: list[Names]) -> bool:
    """Does each block compute with what the one before it gave? Branches side by side do not."""
    read: dict[Names, set[int]] = {block: set() for block in blocks}
    depth = len(blocks[0])
    for node in flow.nodes:
        block = names[node][:depth]
        if block in read:
            read[block].update(source for source, _ in flow.inputs(node) if names[source][:depth] != block)
    for before, block in pairwise(blocks):

        def is_end(node: int, before: Names = before) -> bool:
            return holds(before, names[node]) or not flow.is_op(node)

        ends = {node for node in read[block] if flow.is_op(node)}
        if not any(holds(before, names[node]) for node in ends):
            ends = {*flow.back(ends, is_end, _FAR)[1]}
        if not any(holds(before, names[node]) for node in ends):
            return False
    return True
