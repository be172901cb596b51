"""All instances of all patterns in a graph."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ..._ext.signals import by_signal_handler
from ...base.plugins import offered
from ..graph import ComputationGraph
from .attention import Attention
from .clipping import GradientClipping
from .convolution import Convolution
from .embedding import Embedding
from .feed_forward import FeedForward
from .flow import Flow
from .loss import Loss
from .low_rank import LowRank
from .normalization import Normalization
from .optimizer_update import OptimizerUpdate
from .pattern import Found, Pattern, Refused, Undecided
from .recurrent import RecurrentCell
from .repeats import Blocks
from .rerun import CannotRun
from .rotary import Rotary
from .routing import Routing
from .scan import StateSpaceScan
from .token_sampling import Sampling
from .whole_weights import whole_weights

__all__ = ["Flows", "Instance", "find_patterns", "library", "loaded"]

log = logging.getLogger(__name__)

#: Those that stand within others first, then the larger ones: what is part of one is no other's.
_OWN: tuple[Pattern, ...] = (
    Rotary(),
    LowRank(),
    Attention(),
    Routing(),
    FeedForward(),
    Convolution(),
    StateSpaceScan(),
    RecurrentCell(),
    Normalization(),
    Embedding(),
    Loss(),
    Sampling(),
    GradientClipping(),
    OptimizerUpdate(),
)

_OF_TORCH = torch.nn.modules
#: Classes of modules that do one thing, wherever they are called.
_ONE_THING = frozenset(
    name
    for kinds in (_OF_TORCH.loss, _OF_TORCH.conv, _OF_TORCH.normalization, _OF_TORCH.batchnorm, _OF_TORCH.instancenorm,
                  _OF_TORCH.sparse)
    for name in kinds.__all__
)  # fmt: skip


#: A graph as patterns are looked for in it, by phases: and with fewer of its equal blocks, where it has many.
Flows = dict[tuple[str, ...], tuple[Flow, Blocks | None]]


@dataclass(frozen=True)
class Instance:
    """Nodes that do what a pattern's name says.

    place: equal for instances at one place of the model, in whichever graph.
    verified: whether its nodes were run beside the pattern's own function and agreed. What disagreed is no instance:
        `refused` says why; undecided: that its numbers don't tell.
    core: as that of `Found`.
    """

    pattern: str
    anchor: int
    nodes: frozenset[int]
    place: tuple[Any, ...]
    verified: bool
    attributes: dict[str, Any]
    refused: str = ""
    core: frozenset[int] = frozenset()
    undecided: bool = False


@cache
def library() -> tuple[Pattern, ...]:
    """The patterns that are looked for: those of the entry points ``mindtorch.patterns``, then ours."""
    found, failed = loaded()
    for error in failed.values():
        raise error
    return found


def loaded() -> tuple[tuple[Pattern, ...], dict[str, Exception]]:
    """(those patterns, of entry points that gave none: why)"""
    failed: dict[str, Exception] = {}
    found = offered("mindtorch.patterns", Pattern, failed.setdefault)
    return (*found, *_OWN), failed


def find_patterns(
    graph: ComputationGraph,
    patterns: Sequence[Pattern] | None = None,
    known: dict[Any, Any] | None = None,
    failed: dict[str, Exception] | None = None,
    flows: Flows | None = None,
) -> list[Instance]:
    """The instances of `patterns` (all known ones) in the forward part of a graph, and what was refused as one.

    A node is part of one instance at most. Each form is run once beside the pattern's own function; known: what that
    showed, to be handed on from graph to graph. failed: gets the errors of patterns by name, which else are raised;
    such a pattern has no instances. flows: gets what the graph is for a search, for who looks for something else in it.
    """
    known = {} if known is None else known
    graph = whole_weights(graph)
    flows = {} if flows is None else flows
    taken: set[int] = set()
    found: list[Instance] = []
    for pattern in library() if patterns is None else patterns:
        of_it, nodes = [], set(taken)
        if not pattern.may_be_in(graph):
            continue
        if pattern.phases not in flows:
            flow = Flow(graph, pattern.phases)
            flows[pattern.phases] = flow, Blocks.of(flow) if flow.nodes else None
        flow, blocks = flows[pattern.phases]
        if not flow.nodes:
            continue
        try:
            # Of a pattern of somebody else's nobody knows that it looks at a few layers only.
            candidates = pattern.find(flow) if blocks is None or pattern not in _OWN else blocks.candidates(pattern)
            for instance in _instances(flow, pattern, candidates, known, nodes):
                of_it.append(instance)
                if not instance.refused:
                    nodes |= instance.nodes
        except Exception as error:
            if failed is None or by_signal_handler(error):
                raise
            failed.setdefault(pattern.name, error)
        else:
            found += of_it
            taken = nodes
    return found


def _instances(
    flow: Flow, pattern: Pattern, candidates: Iterable[Found | tuple[int, str]], known: dict[Any, Any], taken: set[int]
) -> Iterator[Instance]:
    """Of one pattern; `taken`: nodes that are part of another already, which grows by what this gives."""
    joined: dict[int, tuple[Any, ...]] = {}
    seen: dict[Any, tuple[int, int]] = {}  # the last ones outside of modules, by place: anchor, how many since a call
    for candidate in candidates:
        if isinstance(candidate, tuple):
            node, reason = candidate
            yield Instance(pattern.name, node, frozenset([node]), (), False, {}, reason)
            continue
        empty = any(0 in output.shape for output in flow[candidate.anchor].outputs[:1])  # of no numbers, no proof
        if candidate.anchor in taken or empty:
            continue
        key = pattern.name, candidate.form
        if candidate.form is None or key not in known:
            known[key] = _checked(candidate)
        verified, attributes, refused, undecided = known[key]
        place = _place(flow, candidate)
        if not (refused or candidate.weights or candidate.joins >= 0 or flow[candidate.anchor].module):
            place = (*place, _again(flow, candidate.anchor, place, seen))
        if candidate.joins >= 0:
            place = joined.setdefault(candidate.joins, place)
        drawn = {n for node in candidate.nodes for n in flow.noise.get(node, ())}
        yield Instance(pattern.name, candidate.anchor, frozenset((candidate.nodes | drawn) - taken), place, verified,
                       candidate.attributes | attributes, refused, frozenset(candidate.core), undecided)  # fmt: skip


def _checked(candidate: Found) -> tuple[bool, dict[str, Any], str, bool]:
    try:
        verified, attributes = candidate.check()
    except Refused as error:
        return False, {}, str(error), isinstance(error, Undecided)
    except CannotRun as error:
        return False, {"not_run": str(error)}, "", False
    return verified, attributes, "", False


def _place(flow: Flow, candidate: Found) -> tuple[Any, ...]:
    """By the names of its weights, else by module and line."""
    names = sorted(name for node in candidate.weights if (name := flow[node].name))
    if names:
        return tuple(names)
    node = flow[candidate.anchor]
    classes = flow.graph._modules[flow.graph._module[candidate.anchor]].classes
    if classes and classes[-1] in _ONE_THING:
        return (node.module, None)  # its lines are those of the program that call it
    return (node.module, node.location, *_nth(flow, candidate))


def _again(flow: Flow, anchor: int, place: Any, seen: dict[Any, tuple[int, int]]) -> int:
    """How often the program has come there, outside of modules, since it called one: a function of its own that it
    calls twice has the line of what it does."""
    before, times = seen.get(place, (anchor, -1))
    graph = flow.graph
    called = any(graph._modules[graph._module[n]].names for n in range(before + 1, anchor) if flow.is_op(n))
    seen[place] = anchor, 0 if called else times + 1
    return seen[place][1]


def _nth(flow: Flow, candidate: Found) -> Iterable[int]:
    """Of a model without modules: which of the weights it has."""
    return () if flow[candidate.anchor].module else tuple(sorted(candidate.weights))
