"""Rotary embedding: pairs of numbers of a query or a key, each turned by an angle that depends on its position.

Programs write it in many ways (two halves, neighbours, complex numbers). What they share is tried, not read off: taken
as complex numbers, the pairs that come out are those that went in, times numbers of one length, given by the angles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch

from .flow import PRODUCTS, Flow
from .pattern import Check, Found, Pattern, Refused, Trial, agree, form_of
from .rerun import CannotRun, Source

__all__ = ["Rotary"]

_SUMS = frozenset({"aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::addcmul", "aten::addcmul_"})
_MULTIPLIED = frozenset({"aten::mul", "aten::mul_"})
_JOINED = frozenset({"aten::cat", "aten::stack"})
_COMPLEX = frozenset({"aten::view_as_complex", "aten::view_as_real", "aten::complex", "aten::real", "aten::imag"})
_TURNS = frozenset({"aten::cos", "aten::sin", "aten::polar"})  # of angles
_PICKED = frozenset(f"aten::{name}" for name in ("gather", "index_select", "embedding", "_conj", "ones_like", "repeat"))
_WRITTEN = frozenset({"aten::copy_"})  # of the numbers of several axes, one after the other
_FAR = 40  # nodes of a walk
_MOVES = 6
_MANY = 1 << 16  # numbers of a trial that is tried with fewer rows first
_COMPUTED, _GIVEN, _TURNED = range(3)  # what a value is made of: other things, tables from outside, sines and cosines


class _Parts(NamedTuple):
    """x: what is turned. last: what is made of it. tables, angles: what else its nodes read."""

    x: Source
    last: int
    nodes: set[int]
    tables: set[Source]
    angles: set[Source]


class Rotary(Pattern):
    """``(a + b i) exp(i θ)`` for each pair (a, b) of what it gets."""

    name = "rotary embedding"

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        search = _Search(flow)
        done: set[int] = set()
        for node in flow.nodes:
            last = search.last(node)
            if last is None or last in done:
                continue
            done.add(last)
            parts = search.parts(node, last)
            if isinstance(parts, str):
                yield last, parts
            elif parts is not None:
                yield _found(flow, parts)


class _Search:
    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._kinds: dict[int, int] = {}

    def last(self, node: int) -> int | None:
        """The node that puts together what is turned, if a sum of two products with tables may be part of that."""
        flow = self.flow
        if flow.ops[node] == "aten::view_as_real":
            made = flow.behind(flow.inputs(node)[0])[0][0]
            return node if flow.is_op(made) and flow.ops[made] in _MULTIPLIED and self._factor(made) else None
        if flow.ops[node] not in _SUMS or not self._is_sum(node):
            return None
        for reader, _ in flow.ahead(node, flow.moves, 4)[1]:
            if flow.ops[reader] in _JOINED and len(flow.inputs(reader)) == 2:
                others = [flow.behind(source)[0][0] for source in flow.inputs(reader)]
                if all(flow.is_op(n) and flow.ops[n] in _SUMS and self._is_sum(n) for n in others):
                    return reader if len(set(others)) == 2 else None
        return node

    def _is_sum(self, node: int) -> bool:
        """Of two products, each of them with a table?"""
        flow, inputs = self.flow, self.flow.inputs(node)
        if flow.ops[node].startswith("aten::addcmul"):
            return len(inputs) == 3 and self.kind(inputs[1][0]) != self.kind(inputs[2][0])
        if len(inputs) != 2:
            return False
        products = [flow.behind(source)[0][0] for source in inputs]
        return all(flow.is_op(n) and flow.ops[n] in _MULTIPLIED and self._factor(n) for n in products)

    def _factor(self, product: int) -> int:
        """What kind of table it multiplies by; 0: none."""
        inputs = self.flow.inputs(product)
        kinds = sorted(self.kind(source) for source, _ in inputs)
        return kinds[1] if len(kinds) == 2 and kinds[0] < kinds[1] else 0

    def kind(self, node: int) -> int:
        """What a node's values are made of, which is the least of what its inputs are."""
        todo = [node]
        while todo:
            at = todo[-1]
            if at in self._kinds:
                todo.pop()
                continue
            inputs = self._reads(at)
            missing = [n for n in inputs or () if n not in self._kinds]
            if missing:
                todo += missing
                continue
            if inputs is None:
                found = _COMPUTED
            elif self.flow.is_op(at) and self.flow.ops[at] in _TURNS:
                found = _TURNED
            else:
                kinds = {self._kinds[n] for n in inputs}
                found = _COMPUTED if _COMPUTED in kinds else max(kinds, default=_GIVEN)
            self._kinds[at] = found
            todo.pop()
        return self._kinds[node]

    def _reads(self, node: int) -> list[int] | None:
        """What decides on its kind; None where its own operation does."""
        flow = self.flow
        if not flow.is_op(node) or flow.is_weight(node) or flow.ops[node] in _TURNS:
            return []
        sources = [source for source, _ in flow.inputs(node)]
        if flow.moves(node):
            return sources[:1]
        op = flow.ops[node]
        if not sources or op in _JOINED | _COMPLEX | _PICKED | _WRITTEN or flow.is_pointwise(node):
            return sources
        return None

    def parts(self, start: int, last: int) -> _Parts | str | None:
        """From the last node back to where all that is no table comes from one value."""
        flow = self.flow
        table = max((self.kind(n) for n in self._reach(start)), default=_GIVEN)
        todo, nodes, tables = {(last, 0)}, set[int](), set[Source]()
        while len(todo) > 1 or last not in nodes or _still_complex(flow, todo):
            at = max(todo)
            if not flow.is_op(at[0]) or flow.is_linear(at[0]) or len(nodes) > _FAR:
                return "its halves are of several tensors" if table == _TURNED else None
            todo = {source for source in todo if source[0] != at[0]}
            nodes.add(at[0])
            if not self._passes(at[0]):
                return "its halves are of several tensors" if table == _TURNED else None
            inputs = flow.inputs(at[0])
            for source in inputs[:1] if flow.moves(at[0]) else inputs:
                if self.kind(source[0]) >= table:
                    tables.add(source)
                else:
                    todo.add(source)
            if not todo:
                return None
        (x,) = todo
        if not tables or not all(flow[n].outputs[at].dtype.is_floating_point for n, at in (x, (last, 0))):
            return None
        return self._with_tables(_Parts(x, last, nodes, tables, set()))

    def _reach(self, start: int) -> Iterable[int]:
        """The nodes that the products of a sum read."""
        flow = self.flow
        for source, _ in flow.inputs(start):
            product = flow.behind((source, 0))[0][0]
            yield from (each for each, _ in flow.inputs(product) if flow.is_op(product))
            yield source

    def _passes(self, node: int) -> bool:
        op = self.flow.ops[node]
        return op in _JOINED | _COMPLEX or self.flow.moves(node) or self.flow.is_pointwise(node)

    def _with_tables(self, parts: _Parts) -> _Parts:
        """With what makes its tables of angles, or of what is given."""
        flow, angles, outside = self.flow, set[Source](), set[Source]()
        todo = [(source, False) for source in parts.tables]
        seen = set(todo)
        while todo:
            source, of_angles = todo.pop()
            node = source[0]
            turns = flow.is_op(node) and flow.ops[node] in _TURNS
            if turns and not of_angles:
                further = True
            elif (
                not flow.is_op(node)
                or flow.is_weight(node)
                or not (
                    flow.moves(node)
                    or flow.ops[node] in _JOINED | _COMPLEX | _WRITTEN
                    or flow.ops[node] == "aten::ones_like"
                    or (flow.is_pointwise(node) and (not of_angles or len(flow.inputs(node)) == 1))
                )
            ):
                (angles if of_angles else outside).add(source)
                continue
            else:
                further = of_angles
            parts.nodes.add(node)
            inputs = flow.inputs(node)
            for each in inputs[:1] if flow.moves(node) else inputs:
                if (each, further) not in seen:
                    seen.add((each, further))
                    todo.append((each, further))
        return parts._replace(tables=outside, angles=angles)


def _still_complex(flow: Flow, todo: set[Source]) -> bool:
    return any(flow[source[0]].outputs[source[1]].dtype.is_complex for source in todo)


def _unordered(flow: Flow, parts: _Parts) -> _Parts:
    """With the moves that put neighbours into halves, or into pairs, before they are turned."""
    shape = flow.shape(parts.x)
    shape = (*shape[:-2], shape[-2] * 2) if shape[-1] == 2 and len(shape) > 1 else shape
    at, passed, found = parts.x, set[int](), parts
    while len(passed) < _MOVES and flow.is_op(at[0]) and flow.moves(at[0]) and flow.inputs(at[0]):
        passed.add(at[0])
        at = flow.inputs(at[0])[0]
        if flow.shape(at) == shape:
            found = parts._replace(x=at, nodes=parts.nodes | passed)
    return found


def _found(flow: Flow, parts: _Parts) -> Found:
    passed, linears = flow.back([parts.x[0]], lambda n: not flow.is_op(n) or flow.is_linear(n), _FAR)
    linears = [n for n in linears if flow.is_op(n)]
    weights = [flow.behind(sides[1])[0][0] for n in linears if (sides := flow.sides(n)) is not None]
    before, _ = flow.back([source[0] for source in parts.angles | parts.tables], lambda n: not flow.is_op(n), _FAR)
    got = {flow.behind(sides[0])[0][0] for n in linears if (sides := flow.sides(n)) is not None}
    if (got | {*passed, *linears}) & {n for n in before if flow.is_op(n)}:
        check = partial(_refuse, "its angles are computed from what it rotates")
    else:
        check = partial(_check, flow, parts)
    nodes, whole = _with_rest(flow, parts)
    attributes = {"turned": "all" if whole is None else f"{flow.shape(parts.x)[-1]} of {whole}"}
    _, ends = flow.ahead(parts.last, lambda n: flow.ops[n] not in PRODUCTS and "attention" not in flow.ops[n], _FAR)
    joins = min((n for n, _ in ends), default=-1)
    own = flow.own([n for n in before if flow.is_op(n)], parts.nodes)
    return Found(parts.last, nodes | own, weights, check, form_of(flow, parts.nodes), joins, attributes)


def _with_rest(flow: Flow, parts: _Parts) -> tuple[set[int], int | None]:
    """(the nodes, with those that put it beside what is not turned; how wide both are, None where there is no such)."""
    for reader, _ in flow.ahead(parts.last, flow.moves, 4)[1]:
        last = len(flow.shape((reader, 0))) - 1
        if flow.ops[reader] != "aten::cat" or flow[reader].args[1:] not in ((-1,), (last,)):
            continue
        whole = flow.shape((reader, 0))[-1]
        return parts.nodes | {reader}, whole if whole > flow.shape(parts.x)[-1] else None
    return parts.nodes, None


def _refuse(why: str) -> Check:
    raise Refused(why)


def _check(flow: Flow, parts: _Parts) -> Check:
    """With fewer rows where it has many, unless the calls name their sizes."""
    why: Exception = Refused("it cannot be run by itself")
    for each in {_unordered(flow, parts).x: _unordered(flow, parts), parts.x: parts}.values():
        shapes = {source: flow.shape(source) for source in (each.x, *each.tables, *each.angles)}
        few = {source: (*(min(n, 2) for n in shape[:-1]), *shape[-1:]) for source, shape in shapes.items()}
        for tried in (few, {}) if torch.Size(shapes[each.x]).numel() > _MANY else ({},):
            try:
                return Check(True, {"pairs": _pairs(Trial(flow, each.nodes, shapes=tried), each)})
            except (Refused, CannotRun) as error:
                why = error
            except KeyError:
                why = CannotRun("it reads a view of memory that was written since")
    raise why


def _pairs(trial: Trial, parts: _Parts) -> str:
    """Where the two numbers of a pair stand: ``halves`` of the width, or ``neighbours``."""
    x = trial.given(parts.x)
    wide = x.shape[-1] if x.shape[-1] > 2 else x.shape[-2:].numel()
    said = "its result is not its input, rotated"
    for fill in _FILLS:
        tables = {source: trial.given(source) for source in parts.tables | parts.angles}
        tables = {source: fill(table) if table.shape[-1:] == (wide,) else table for source, table in tables.items()}
        for pairs in ("neighbours",) if x.shape[-1] == 2 else ("halves", "neighbours"):
            (found,) = trial.run((parts.last, 0), given={**tables, parts.x: x})
            for width in _widths(found):
                got = x[..., :width] if x.shape[-1] > width else x
                if got.numel() != found.numel():
                    continue
                ones = torch.complex(torch.ones(got.numel() // 2), torch.zeros(got.numel() // 2))
                one = _numbers(ones, pairs, width).reshape(got.shape)
                unit = torch.cat([one, x[..., width:]], -1) if x.shape[-1] > width else one.reshape(x.shape)
                (given,) = trial.run((parts.last, 0), given={**tables, parts.x: unit})
                for after in ("halves", "neighbours"):
                    turn = _complex(given, after, width)
                    if agree(_complex_parts(turn * _complex(got, pairs, width)),
                             _complex_parts(_complex(found, after, width))):  # fmt: skip
                        said = _turn(trial, parts, tables, unit, turn, after, width)
                        if not said:
                            return pairs
    raise Refused(said)


def _turn(
    trial: Trial, parts: _Parts, tables: dict[Source, torch.Tensor], unit: torch.Tensor, turn: torch.Tensor, after: str,
    width: int,
) -> str:  # fmt: skip
    """Why the numbers that it multiplies by are no turns; empty where they are."""
    if not bool((turn.imag.abs() > 1e-3).any()):
        return "it rotates nothing"
    if parts.tables:
        return ""  # their numbers are the program's
    none = {source: torch.zeros_like(table) for source, table in tables.items()}
    (still,) = trial.run((parts.last, 0), given={**none, parts.x: unit})
    start = _complex(still, after, width)
    length = start.real.mean()
    if not agree(_complex_parts(start), _complex_parts(torch.complex(length.expand_as(start.real), 0 * start.imag))):
        return "at an angle of 0 it changes its input"
    if not float(length) > 0 or not agree(turn.abs(), length.expand_as(turn.abs())):
        return "it changes the length of its input vectors"
    return ""


def _widths(found: torch.Tensor) -> list[int]:
    shape = found.shape
    wide = [shape[-1]] if shape[-1] % 2 == 0 else []
    return wide + ([2 * shape[-2]] if shape[-1] == 2 else [2 * shape[-1]] if shape[-2:-1] == (2,) else [])


def _complex(numbers: torch.Tensor, pairs: str, width: int) -> torch.Tensor:
    flat = numbers.reshape(-1, 2, width // 2) if pairs == "halves" else numbers.reshape(-1, width // 2, 2).mT
    return torch.complex(flat[:, 0].contiguous(), flat[:, 1].contiguous())


def _numbers(turned: torch.Tensor, pairs: str, width: int) -> torch.Tensor:
    rows = turned.reshape(-1, width // 2)
    return torch.stack([rows.real, rows.imag], 1 if pairs == "halves" else 2)


def _complex_parts(numbers: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(numbers)


def _twice_in_halves(table: torch.Tensor) -> torch.Tensor:
    half = table[..., : table.shape[-1] // 2]
    return torch.cat([half, half], -1) if table.shape[-1] % 2 == 0 else table


def _twice_in_pairs(table: torch.Tensor) -> torch.Tensor:
    half = table[..., : table.shape[-1] // 2]
    return half.repeat_interleave(2, -1) if table.shape[-1] % 2 == 0 else table


#: A table may have a number for each pair, or the same one at both places of a pair.
_FILLS = (lambda table: table, _twice_in_halves, _twice_in_pairs)
