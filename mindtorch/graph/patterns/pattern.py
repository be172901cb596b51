"""What a pattern is: how its instances are found, and how each is proven to compute what its name says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from ..graph import ComputationGraph, Node
from .flow import FORWARD, Flow
from .rerun import CannotRun, Source, plain_dtype, random_like, run

__all__ = ["Check", "Found", "Pattern", "Refused", "Trial", "Undecided"]

MOST_ELEMENTS = 1 << 24  # of the tensors that a check runs on; 64 MiB
FEW = 4096  # numbers that are compared first
_TOLERANCE = 2e-4
_MADE = frozenset(f"aten::{name}" for name in ("full", "ones", "zeros", "scalar_tensor", "arange", "tensor"))


class Refused(Exception):
    """It only looks like an instance; its text says why."""


class Undecided(Refused):
    """These numbers do not show whether it is an instance; those of the next call may."""


class Trial:
    """Runs a part of a graph on test numbers in its sizes, the same ones each time."""

    def __init__(
        self,
        flow: Flow,
        nodes: set[int],
        signed: Container[Source] | None = None,
        shapes: Mapping[Source, tuple[int, ...]] = MappingProxyType({}),
    ) -> None:
        """nodes: the nodes to run. Whatever they read from other nodes gets test numbers.

        signed: the inputs that may be negative; None: all. shapes: of inputs made smaller than in the program, for
        nodes whose calls name no sizes; views that keep the last dimension are left out then.
        """
        self.flow, self.nodes = flow, nodes
        self._given: dict[Any, torch.Tensor] = {}
        generator = torch.Generator("cpu").manual_seed(0)
        self._idle = {n for n in nodes if n in flow.noise or (shapes and _keeps_rows(flow, n))}
        elements = 0
        for node in sorted(nodes):
            view = flow[node]
            for place, (source, reading) in enumerate(zip(view.inputs, view.readings, strict=True)):
                if place and node in flow.noise:
                    break
                key = source if reading is None else (*source, reading)
                if source[0] not in nodes and key not in self._given:
                    output = reading or flow[source[0]].outputs[source[1]]
                    output = output._replace(shape=shapes.get(source, output.shape))
                    elements += _count(output.shape)
                    if elements > MOST_ELEMENTS:
                        raise CannotRun(f"more than {MOST_ELEMENTS:,} numbers")
                    number = None if reading or source in shapes else _number(flow, source)
                    self._given[key] = (
                        random_like(output, generator, signed is None or source in signed) if number is None else number
                    )
            elements += 0 if shapes else sum(_count(output.shape) for output in view.outputs)
            if elements > MOST_ELEMENTS * 4:
                raise CannotRun(f"more than {4 * MOST_ELEMENTS:,} numbers")

    def given(self, source: Source) -> torch.Tensor:
        """The test numbers of that input, in the sizes in which it is read."""
        return self._given[self._key(source)]

    def _key(self, source: Source) -> Any:
        """Its key in `_given`: with how it is read, where the last write to its storage gave a part of it."""
        known = source in self._given
        return source if known else next((key for key in self._given if key[:2] == source), source)

    def argument(self, node: Node, argument: Any) -> torch.Tensor | None:
        """The test numbers for one of a node's `arguments`; None for none."""
        return None if argument is None else self.given(node.inputs[argument.index])

    def run(self, *wanted: Source, **others: Any) -> list[torch.Tensor]:
        """The results at these nodes. others: `given`, {source: numbers instead of the test numbers}."""
        instead = {self._key(source): numbers for source, numbers in others.get("given", {}).items()}
        values = {key: t.clone() for key, t in (self._given | instead).items()}
        run(self.flow.graph, self.nodes, values, self._idle)
        return [values[source] for source in wanted]


def _number(flow: Flow, source: Source) -> torch.Tensor | None:
    """What is the same in each run: a number of the program's, or what is made of numbers alone."""
    root, moves = flow.behind(source)
    made = flow[root[0]]
    values: dict[Any, torch.Tensor] = {}
    if made.number is not None:
        dtype = plain_dtype(made.outputs[0].dtype)
        values[root] = torch.full(made.outputs[0].shape, made.number, dtype=dtype, device="cpu")
    elif made.op in _MADE:
        moves = [*moves, root[0]]
    else:
        return None
    run(flow.graph, moves, values)
    return values[source]


def _keeps_rows(flow: Flow, node: int) -> bool:
    """Is it a view of the same rows?"""
    return flow.ops[node] in ("aten::view", "aten::_unsafe_view", "aten::reshape") and (
        flow.shape(flow.inputs(node)[0])[-1:] == flow.shape((node, 0))[-1:]
    )


def _count(shape: tuple[int, ...]) -> int:
    found = 1
    for n in shape:
        found *= n
    return found


def arguments(node: Node, *names: str) -> dict[str, Any]:
    """A call's arguments by name; None if absent. For a tensor, ``index`` says which input it is."""
    return {**dict.fromkeys(names), **dict(zip(names, node.args, strict=False)), **node.kwargs}


def fewer(shape: tuple[int, ...], kept: int) -> tuple[int, ...]:
    """Two of each dimension but the last `kept`: of rows that are computed one by one."""
    return (*(min(n, 2) for n in shape[:-kept]), *shape[-kept:])


def agree(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Are the numbers equal, up to the rounding of another order of sums?"""
    if found.shape != expected.shape:
        return False
    near = _TOLERANCE * max(1.0, float(expected.abs().max()))
    ours, theirs = found.reshape(-1), expected.reshape(-1)
    # Most that differ do so at once, and most functions that are tried do.
    counts = sorted({min(FEW, ours.numel()), ours.numel()})
    return all(torch.allclose(ours[:n], theirs[:n], rtol=_TOLERANCE, atol=near) for n in counts)


def begin_alike(found: torch.Tensor, first: torch.Tensor, largest: float) -> bool:
    """Whether `found` may `agree` with numbers of which these are the first. largest: of those found, but for signs.

    Where they agree, the largest expected one is not much larger.
    """
    near = _TOLERANCE * max(1.0, (largest + _TOLERANCE) / (1 - 2 * _TOLERANCE))
    return torch.allclose(found[: first.numel()], first, rtol=1.01 * _TOLERANCE, atol=1.01 * near)


class Check(NamedTuple):
    """Result of checking an instance: whether both sides were run, and its attributes."""

    verified: bool
    attributes: dict[str, Any]


@dataclass
class Found:
    """A place that looks like an instance of a pattern.

    anchor: the node whose calls are the instance's.
    nodes: all its nodes.
    weights: ids of the nodes that distinguish its place in the model from others.
    form: equal for instances that compute the same; one of them is checked.
    core: the nodes equivalent to one torch call; empty if there are none.
    joins: the node that adds its result to its input; instances that share one are one place. -1: none.
    """

    anchor: int
    nodes: set[int]
    weights: list[int]
    check: Callable[[], Check]
    form: Any = None
    joins: int = -1
    attributes: dict[str, Any] = field(default_factory=dict)
    core: set[int] = field(default_factory=set)


class Pattern:
    """A function with a name, and how to find it.

    A subclass defines `name` and `find`. To use it in every report, name an instance of it as an entry point of the
    group ``mindtorch.patterns``.
    """

    name = ""
    phases: tuple[str, ...] = FORWARD  # of the nodes that it is shown

    def may_be_in(self, graph: ComputationGraph) -> bool:
        """Whether a search may find anything. It is asked first, as a graph takes long to be made ready for one."""
        return True

    def find(self, flow: Flow) -> Iterator[Found | tuple[int, str]]:
        """Candidates, in program order; (node, why not) for those refused without a check.

        `Found.check` runs the nodes and a reference function on the same numbers. It raises `Refused` if they differ,
        and `CannotRun` if the nodes cannot run by themselves.
        """
        raise NotImplementedError


def form_of(flow: Flow, nodes: set[int]) -> str:
    """Equal for sets of nodes that make the same calls on each other's results, wherever they are."""
    numbers = {node: place for place, node in enumerate(sorted(nodes))}
    others: dict[Source, int] = {}  # from outside, in the order in which they are read
    text = []
    for node in sorted(nodes):
        view = flow[node]
        reads = [
            (numbers[source[0]], source[1], reading) if source[0] in numbers
            else (-1, others.setdefault(source, len(others)), flow.shape(source))
            for source, reading in zip(view.inputs, view.readings, strict=True)
        ]  # fmt: skip
        text.append(repr((view.op, view.args, view.kwargs, view.outputs, reads)))
    return hashlib.sha256("\n".join(text).encode()).hexdigest()
