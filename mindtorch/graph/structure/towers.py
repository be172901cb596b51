"""Towers: encoder and decoder, and what computes with images, with text or with sound.

A tower holds a stack (`equal_blocks`), and is the largest module around it that holds nothing of another tower. What
it is called follows from what its stack reads, never from the names of modules or of their classes:

- A stack is a decoder if each of its blocks attends to one value that another stack made, and no further stack reads
  what it makes; the other one is the encoder.
- Otherwise, text comes from a table looked up by integers that the program gives, vision from a convolution in two or
  three dimensions over at least three channels that the program gives, audio from several convolutions in one
  dimension over such values, of which one has a stride. A stack that reads several of these has no name, nor has one
  that reads none. What passed through another stack first does not count, but where a stack reads nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..patterns.adapted import CONVOLUTIONS, TRANSPOSED
from ..patterns.flow import PRODUCTS, Flow
from ..patterns.rerun import Source
from .equal_blocks import Names, Product, Stack, find_stacks, holds, products

__all__ = ["DECODER", "ENCODER", "Seen", "look", "towers"]

ENCODER, DECODER = "encoder", "decoder"
TEXT, VISION, AUDIO = "text tower", "vision tower", "audio tower"
_KINDS = (TEXT, VISION, AUDIO)
_FAR = 32  # nodes from a product to the attention that reads it
_CHANNELS = 3  # of an image at least: what has one may be a spectrogram
_JOINED = frozenset(
    f"aten::{name}" for name in ("cat", "index_copy", "index_copy_", "copy_", "index_put", "index_put_")
)
_RANGES = frozenset({"aten::arange", "aten::linspace"})  # places, not tokens
_NORMALIZED = frozenset(f"aten::{name}" for name in ("sub", "sub_", "div", "div_", "mul", "mul_", "add"))


class Seen(NamedTuple):
    """Of one graph: the stacks in it, what each reads (None: several kinds, or it cannot be told), and where each kind
    of data enters a model."""

    stacks: dict[Names, str | None]
    entries: set[tuple[Names, str]]


def look(flow: Flow, names: list[Names]) -> Seen:
    """What one graph shows. names: of each node's module."""
    every = products(flow, names)
    stacks = find_stacks(flow, names, every)
    region = _regions(flow, names, stacks)
    entries = _entries(flow, names, every)
    reads = _reads(flow, stacks, region, entries)
    said = _relations(flow, stacks, region, reads)
    kinds = _kinds(reads)
    for number, stack in enumerate(stacks):
        # Blocks of two forms that take turns are two stacks of one module: what tells something says it.
        said[stack.names] = said.get(stack.names) or kinds[number]
    return Seen(said, {(names[node], kind) for node, kind in entries.items()})


def _regions(flow: Flow, names: list[Names], stacks: Sequence[Stack]) -> dict[int, int]:
    """{node: number of the stack that has it in a block}"""
    of_module: dict[Names, int] = {}
    found = {}
    for node in flow.nodes:
        module = names[node]
        if module not in of_module:
            inside = (n for n, stack in enumerate(stacks) if any(holds(block, module) for block in stack.blocks))
            of_module[module] = next(inside, -1)
        if of_module[module] >= 0:
            found[node] = of_module[module]
    return found


# ---- encoder and decoder


def _relations(
    flow: Flow, stacks: Sequence[Stack], region: dict[int, int], reads: Sequence[int]
) -> dict[Names, str | None]:
    found: dict[Names, str | None] = {}
    for number, stack in enumerate(stacks):
        memory = _memory(flow, number, stack, region)
        if memory is None or any(of & _bit(number) for of in reads):
            continue
        made = _stacks_behind(flow, memory, region) - {number}
        if len(made) == 1:
            found[stacks[made.pop()].names] = ENCODER
            found[stack.names] = DECODER
    return found


def _memory(flow: Flow, number: int, stack: Stack, region: dict[int, int]) -> Source | None:
    """What all blocks attend to: each multiplies it by a weight of its own, and an attention reads that."""
    shared: set[Source] | None = None
    for block in stack.products:
        read = set()
        for product in block:
            source = flow.behind(product.x)[0]
            if region.get(source[0]) != number and not flow.is_weight(source[0]) and len(flow.shape(source)) >= 2:
                read.add(source)
        shared = read if shared is None else shared & read
        if not shared:
            return None
    for source in sorted(shared or ()):
        if all(
            any(flow.behind(p.x)[0] == source and _attends(flow, p.node) for p in block) for block in stack.products
        ):
            return source
    return None


def _attends(flow: Flow, node: int) -> bool:
    """Does an attention read that product, as keys or as values?"""

    def passes(n: int) -> bool:
        return flow.moves(n) or flow.is_pointwise(n) or flow.ops[n] in _JOINED

    for reader, place in flow.ahead(node, passes, _FAR)[1]:
        if "scaled_dot_product" in flow.ops[reader] and place in (1, 2):
            return True
        sides = flow.sides(reader) if flow.ops[reader] in PRODUCTS else None
        if sides is not None and not any(flow.is_weight(flow.behind(side)[0][0]) for side in sides):
            return True
    return False


def _stacks_behind(flow: Flow, source: Source, region: dict[int, int]) -> set[int]:
    """Numbers of the stacks that a value comes from, not through another one."""
    found, seen, todo = set(), {source[0]}, [source[0]]
    for node in todo:  # grows while it is read
        if node in region:
            found.add(region[node])
        elif flow.is_op(node):
            new = {n for n, _ in flow.inputs(node)} - seen
            seen |= new
            todo += new
    return found


# ---- what is computed with


def _entries(flow: Flow, names: list[Names], every: Iterable[Product]) -> dict[int, str]:
    """{node at which data of a kind enters a model: that kind}"""
    given = _Given(flow, names)
    found = {}
    for node in flow.nodes:
        if flow.ops[node] == "aten::embedding" and names[node] and len(flow.inputs(node)) > 1:
            ids = flow.inputs(node)[1]
            if len(flow.shape(ids)) > 1 and given.holds(ids):
                found[node] = TEXT
    strided: set[str] = set()  # models
    in_one: dict[str, list[Product]] = defaultdict(list)
    for product in every:
        if flow.ops[product.node] not in CONVOLUTIONS or flow.ops[product.node] in TRANSPOSED:
            continue
        sides, x = len(product.sizes) - 2, flow.shape(product.x)
        if sides == 1:
            in_one[product.names[0]].append(product)
            if any(of > 1 for of in _strides(flow, product.node)):
                strided.add(product.names[0])
        elif len(x) == sides + 2 and x[1] >= _CHANNELS and given.holds(product.x):
            found[product.node] = VISION
    for model in strided:
        of = in_one[model]
        if len({product.weight for product in of}) > 1:
            found |= {product.node: AUDIO for product in of if given.holds(product.x)}
    return found


def _strides(flow: Flow, node: int) -> Sequence[int]:
    view = flow[node]
    stride: Any = view.kwargs.get("stride", view.args[3] if len(view.args) > 3 else 1)
    return stride if isinstance(stride, (tuple, list)) else (stride,)


class _Given:
    """What the program gives to its models, and nothing made by them but chosen tokens."""

    def __init__(self, flow: Flow, names: list[Names]) -> None:
        self._flow, self._names = flow, names
        self._made: set[int] = set()  # outside of modules, of what they gave
        for node in flow.nodes:
            if not names[node]:
                inputs = (source for source, _ in flow.inputs(node))
                if any(source in self._made or (flow.is_op(source) and names[source]) for source in inputs):
                    self._made.add(node)

    def holds(self, source: Source) -> bool:
        """Is it that, moved or scaled by numbers or buffers at most?"""
        flow = self._flow
        node, output = source
        while flow.is_op(node) and self._names[node] and self._passes(node):
            node, output = flow.inputs(node)[0]
        if flow.is_weight(node) or flow.ops[flow.behind((node, output))[0][0]] in _RANGES:
            return False
        if not flow.is_op(node):
            return True
        chosen = not flow[node].outputs[output].dtype.is_floating_point
        return not self._names[node] and (chosen or node not in self._made)

    def _passes(self, node: int) -> bool:
        flow = self._flow
        if not flow.inputs(node):
            return False
        others = flow.inputs(node)[1:]
        return flow.moves(node) or (flow.ops[node] in _NORMALIZED and all(flow.is_leaf(other) for other, _ in others))


def _bit(stack: int) -> int:
    return 1 << len(_KINDS) + stack


def _reads(flow: Flow, stacks: Sequence[Stack], region: dict[int, int], entries: dict[int, str]) -> list[int]:
    """What each stack reads, as bits: of the kinds, then of the other stacks, not through further ones."""
    made_of = [0] * len(flow.ops)
    found = [0] * len(stacks)
    for node in flow.nodes:
        behind = 1 << _KINDS.index(entries[node]) if node in entries else 0
        for source, _ in flow.inputs(node):
            behind |= made_of[source]
        number = region.get(node, -1)
        if number >= 0:
            found[number] |= behind & ~_bit(number)
            behind = _bit(number)
        made_of[node] = behind
    return found


def _kinds(reads: Sequence[int]) -> list[str | None]:
    """Of each stack; None where it reads several, or none."""
    found: list[str | None] = []
    for number, of in enumerate(reads):
        kinds: list[str | None] = [kind for n, kind in enumerate(_KINDS) if of >> n & 1]
        if not kinds:
            kinds = list({found[n] for n in range(number) if of & _bit(n)})
        found.append(kinds[0] if len(kinds) == 1 else None)
    return found


# ---- of a whole run


def towers(seen: Iterable[Seen]) -> dict[Names, str]:
    """{module: what it is}: no module lies in another one of them; empty where there are not two that differ."""
    said: dict[Names, set[str]] = defaultdict(set)
    entries: set[tuple[Names, str]] = set()
    for each in seen:
        entries |= each.entries
        for names, name in each.stacks.items():
            said[names] |= {name} if name else set()
    named: dict[Names, str | None] = {}
    for names, found in said.items():
        related = found & {ENCODER, DECODER} or found
        named[names] = related.pop() if len(related) == 1 else None
    grown = {_grown(stack, name, named, entries): name for stack, name in named.items() if name}
    outermost = {module: name for module, name in grown.items()
                 if not any(other != module and holds(other, module) for other in grown)}  # fmt: skip
    return outermost if len(set(outermost.values())) > 1 else {}


def _grown(stack: Names, name: str, named: dict[Names, str | None], entries: set[tuple[Names, str]]) -> Names:
    """The largest module around a stack that holds no other tower's, and no other kind of data."""
    others = [other for other, its in named.items() if its != name]
    others += [at for at, kind in entries if name in _KINDS and kind != name]
    for depth in range(1, len(stack)):
        if not any(holds(stack[:depth], other) for other in others):
            return stack[:depth]
    return stack
