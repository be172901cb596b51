"""Parts of a program's phases, told from what graphs of its calls show: towers, sampling, diffusion steps, inference.

Inference is what modules that the run trains compute without gradients, as far as it is no other part.

Nothing is told from names: where the structure does not say it, there is no part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..._ext import context
from ...base.words import counted
from ..graph import PHASES, ComputationGraph
from ..patterns import Flows
from ..patterns.flow import FORWARD, Flow
from ..patterns.whole_weights import whole_weights
from .equal_blocks import Names, holds
from .feedback import denoising, sampling
from .towers import Seen, look, towers

__all__ = ["DIFFUSION", "INFERENCE", "SAMPLING", "Parts", "find_parts", "holds", "part_lines", "parts_of"]

SAMPLING, DIFFUSION, INFERENCE = "sampling", "diffusion steps", "inference"
_BACKWARD = PHASES.index("backward")
_MOST = 200_000  # nodes of a graph whose parts are shown with it


class Parts(NamedTuple):
    """modules: {a module: its part}, none of which lies in another one. nodes: of each graph, those outside of these
    modules that are part of something. alone: modules of `modules` that are it only where they are called without
    gradients, since the run also trains them, or a model of the same names. trained: path ids of the modules that the
    run trains, and of those that hold them. denoisers: path ids of the models that take diffusion steps."""

    modules: dict[Names, str]
    nodes: list[dict[int, str]]
    alone: frozenset[Names]
    trained: frozenset[int]
    denoisers: frozenset[int]

    def module_of(self, module: Names, inference: bool) -> Names:
        """That of `modules` which a module is in; empty for none. inference: where it is called without gradients."""
        around = (module[:depth] for depth in range(1, len(module) + 1))
        return next((each for each in around if each in self.modules and (inference or each not in self.alone)), ())


def find_parts(graphs: Sequence[ComputationGraph], flows: Sequence[Flows] | None = None) -> Parts:
    """The parts that the graphs of one run show together. flows: what a search for patterns has made of them."""
    seen: list[Seen] = []
    nodes: list[dict[int, str]] = []
    found: dict[Names, str] = {}
    trained: set[Names] = set()
    ids: set[int] = set()
    denoising_models: set[int] = set()
    for graph, known in zip(graphs, flows or [{}] * len(graphs), strict=True):
        modules = _modules(graph)
        backward = {of for of, phase in zip(graph._module, graph._phase, strict=True) if phase == _BACKWARD}
        trained |= {graph._modules[of].names for of in backward}
        ids |= _path_ids(graph, backward)
        flow, blocks = known.get(FORWARD) or (Flow(whole_weights(graph)), None)
        seen.append(look(flow, modules) if blocks is None else look(blocks.flow, _modules(blocks.flow.graph)))
        nodes.append(dict.fromkeys(sampling(flow, modules), SAMPLING))
        for loop in denoising(flow, modules):
            found[loop.module] = DIFFUSION
            denoising_models |= set(map(context.path_root, _path_ids(graph, {graph._module[n] for n in loop.calls})))
            nodes[-1] |= dict.fromkeys(loop.nodes, DIFFUSION)
    alone = frozenset(module for module in found if any(holds(module, names) for names in trained))
    denoisers = found.keys() - alone
    for module, name in towers(seen).items():
        if not any(holds(module, each) or holds(each, module) for each in denoisers):
            found.setdefault(module, name)
    return Parts(found, nodes, alone, frozenset(_with_holders(ids)), frozenset(denoising_models))


def _path_ids(graph: ComputationGraph, modules: set[int]) -> set[int]:
    """Those of these modules, by their indices in the graph."""
    return {known for known, of in graph._known_modules.items() if of in modules and isinstance(known, int)}


def _with_holders(ids: set[int]) -> Iterator[int]:
    """These path ids, and those of the modules around them."""
    seen: set[int] = {0}
    for path in ids:
        while path not in seen:
            seen.add(path)
            yield path
            path = context.path_parent(path)


def _modules(graph: ComputationGraph) -> list[Names]:
    """Of each node."""
    names = [module.names for module in graph._modules]
    return [names[of] for of in graph._module]


def parts_of(graph: ComputationGraph) -> list[tuple[str, list[str], list[int]]]:
    """(name, paths of its modules, its nodes outside of modules) of each part that a graph shows; none of a larger one
    than any that a model of today makes in a few calls.

    Of a part of a graph, what the whole shows: nodes then have other numbers there, and are left out.
    """
    whole = graph if graph._whole is None else graph._whole
    if len(whole) > _MOST:
        return []
    parts = find_parts([whole])
    # Of a model that the graph also trains, its calls are of both kinds, and only a profile tells them apart.
    modules = {module: of for module, of in parts.modules.items() if module not in parts.alone}
    nodes = {node: of for node, of in parts.nodes[0].items() if of != DIFFUSION or not parts.alone}
    return [
        (
            name,
            [".".join(module) for module, of in modules.items() if of == name],
            [node for node, of in sorted(nodes.items()) if of == name] if whole is graph else [],
        )
        for name in dict.fromkeys([*modules.values(), *nodes.values()])
    ]


def part_lines(graph: ComputationGraph) -> list[str]:
    """The parts in words, a line each."""
    found = []
    for name, modules, nodes in parts_of(graph):
        outside = [f"{counted(len(nodes), 'op')} outside of modules"] if nodes else []
        found.append(f"{name}: {', '.join([*modules, *outside])}")
    return found
