"""Parts of a program's phases, told from what graphs of its calls show: towers, sampling, diffusion steps.

Nothing is told from names: where the structure does not say it, there is no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...base.words import counted
from ..graph import PHASES, ComputationGraph
from ..patterns import Flows
from ..patterns.flow import FORWARD, Flow
from ..patterns.whole_weights import whole_weights
from .equal_blocks import Names, holds
from .feedback import denoising, sampling
from .towers import Seen, look, towers

__all__ = ["DIFFUSION", "SAMPLING", "Parts", "find_parts", "holds", "part_lines", "parts_of"]

SAMPLING, DIFFUSION = "sampling", "diffusion steps"
_BACKWARD = PHASES.index("backward")
_MOST = 200_000  # nodes of a graph whose parts are shown with it


class Parts(NamedTuple):
    """modules: {a module: its part}, none of which lies in another one. nodes: of each graph, those outside of these
    modules that are part of something."""

    modules: dict[Names, str]
    nodes: list[dict[int, str]]

    def of(self, module: Names) -> str:
        """The part that a module is in; empty for none."""
        return next((part for depth in range(1, len(module) + 1) if (part := self.modules.get(module[:depth]))), "")


def find_parts(graphs: Sequence[ComputationGraph], flows: Sequence[Flows] | None = None) -> Parts:
    """The parts that the graphs of one run show together. flows: what a search for patterns has made of them."""
    seen: list[Seen] = []
    nodes: list[dict[int, str]] = []
    loops: list[tuple[Names, int]] = []
    trained: set[Names] = set()
    for graph, known in zip(graphs, flows or [{}] * len(graphs), strict=True):
        modules = _modules(graph)
        backward = {of for of, phase in zip(graph._module, graph._phase, strict=True) if phase == _BACKWARD}
        trained |= {graph._modules[of].names for of in backward}
        flow, blocks = known.get(FORWARD) or (Flow(whole_weights(graph)), None)
        seen.append(look(flow, modules) if blocks is None else look(blocks.flow, _modules(blocks.flow.graph)))
        nodes.append(dict.fromkeys(sampling(flow, modules), SAMPLING))
        for loop in denoising(flow, modules):
            loops.append((loop.module, len(nodes) - 1))
            nodes[-1] |= dict.fromkeys(loop.nodes, DIFFUSION)
    # A model that the run also trains is called forward for other ends, and its rows do not say for which.
    vague = {module for module, _ in loops if any(holds(module, names) for names in trained)}
    for module, number in loops:
        if module in vague:
            nodes[number] = {node: part for node, part in nodes[number].items() if part != DIFFUSION}
    denoisers = {module for module, _ in loops} - vague
    found: dict[Names, str] = dict.fromkeys(denoisers, DIFFUSION)
    for module, name in towers(seen).items():
        if not any(holds(module, each) or holds(each, module) for each in denoisers):
            found[module] = name
    return Parts(found, nodes)


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
    names = dict.fromkeys([*parts.modules.values(), *parts.nodes[0].values()])
    return [
        (
            name,
            [".".join(module) for module, of in parts.modules.items() if of == name],
            [node for node, of in sorted(parts.nodes[0].items()) if of == name] if whole is graph else [],
        )
        for name in names
    ]


def part_lines(graph: ComputationGraph) -> list[str]:
    """The parts in words, a line each."""
    found = []
    for name, modules, nodes in parts_of(graph):
        outside = [f"{counted(len(nodes), 'op')} outside of modules"] if nodes else []
        found.append(f"{name}: {', '.join([*modules, *outside])}")
    return found
