"""A part of a graph as a graph: some modules only, modules in place of what is in them, nodes up to some point.

What a module does within one stretch of the program is one node of kind ``module``: it reads what its ops read from
elsewhere, and its outputs are those that are read elsewhere (of the last of all, its result). Its own parameters are
part of it where nothing else reads them. As ops of a stretch follow each other, inputs still come before readers.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from bisect import bisect_left
from collections.abc import Sequence

from ..base.errors import UsageError
from .graph import CLOSED, DATA, MODULE, ComputationGraph
from .parts import Call, Hole, Module, Output

_LISTED = 8  # modules named in an error
_CONTAINERS = ("ModuleList", "ModuleDict")  # run nothing themselves: no level of their own

Source = tuple[int, int]


def reduced(graph: ComputationGraph, modules: Sequence[str], depth: int | None, until: int | None) -> ComputationGraph:
    """See `ComputationGraph.reduced`."""
    if depth is not None and depth < 0:
        raise ValueError(f"[reduced] expected depth >= 0, got {depth}")
    cuts = [_cut(module, modules, depth) for module in graph._modules]
    if modules and all(cut < 0 for cut in cuts):
        raise UsageError(f"no module matches {' or '.join(map(repr, modules))}{there_are(graph)}")
    part = _Part(graph, cuts, len(graph) if until is None else until)
    part.build()
    made = part.made
    made.left_out = dict(graph.left_out)
    made._whole = (graph._whole or graph) if until is None else None
    if len(made) < len(graph) or len(made.edges) < len(graph.edges):
        made.left_out |= {
            **({"modules_but": list(modules)} if modules else {}),
            **({"deeper_than": depth} if depth is not None else {}),
            "nodes": len(graph) - len(made), "ops": graph.count("op") - made.count("op"),
            "parameters": graph.count("parameter") - made.count("parameter"),
            "edges": len(graph.edges) - len(made.edges), "segments": len(graph.segments) - len(made.segments),
        }  # fmt: skip
    return made


def _cut(module: Module, patterns: Sequence[str], depth: int | None) -> int:
    """How many names of the path stay: all of them (0), none at all (-1), or so many, and the rest is closed."""
    names = module.names
    first = 1
    if patterns:
        first = next((n for n in range(1, len(names) + 1) if matches(names[:n], patterns)), 0)
        if not first:
            return -1
    if depth is None:
        return 0
    levels = [n for n in range(first, len(names) + 1) if n == first or module.classes[n - 1] not in _CONTAINERS]
    return levels[depth] if depth < len(levels) else 0


def matches(names: tuple[str, ...], patterns: Sequence[str]) -> bool:
    """Whether a module's path matches one of them, with or without the outermost name."""
    return any(fnmatch.fnmatchcase(".".join(path), pattern) for pattern in patterns for path in (names, names[1:]))


def module_paths(graph: ComputationGraph) -> list[tuple[str, ...]]:
    """Of all modules that ran or hold one that did, the outermost first."""
    found = dict.fromkeys(module.names[:n] for module in graph._modules for n in range(1, len(module.names) + 1))
    return sorted(found, key=len)


def there_are(graph: ComputationGraph) -> str:
    """The end of a sentence about a module that is not there."""
    paths = [".".join(names) for names in module_paths(graph)]
    more = f" and {len(paths) - _LISTED} more" if len(paths) > _LISTED else ""
    return f"; there are {', '.join(paths[:_LISTED])}{more}" if paths else "; no module was called"


class _Part:
    def __init__(self, graph: ComputationGraph, cuts: list[int], until: int) -> None:
        self.graph, self.until = graph, until
        self.made = type(graph)()
        self.stretch = self._stretches(cuts)
        self.paths = [".".join(graph._modules[m].names[:cut]) if cut > 0 else "" for m, cut in enumerate(cuts)]
        self.cuts = cuts
        self.reads = set(graph._reads)
        self.places: dict[Source, Source] = {}
        self.numbers: dict[int, int] = {}  # of nodes that are here, themselves or in a closed module
        self.exported: dict[int, dict[Source, None]] = {}  # of a stretch, read elsewhere
        self.owned: set[int] = set()  # parameters that only their own modules read, which are closed

    def _stretches(self, cuts: list[int]) -> list[int]:
        """By node: -1 where it is left out, else the first node of its stretch; of an op that stays, itself."""
        graph = self.graph
        found = [-1] * len(graph)
        last: tuple[str, tuple[str, ...]] | None = None
        begun = -1
        for node in range(self.until):
            if graph._kind[node]:
                continue
            cut = cuts[graph._module[node]]
            if cut <= 0:
                last = None
                found[node] = node if cut == 0 else -1
                continue
            here = graph.nodes[node].phase, graph._modules[graph._module[node]].names[:cut]
            if here != last:
                last, begun = here, node
            found[node] = begun
        return found

    def build(self) -> None:
        graph, stretch = self.graph, self.stretch
        readers: dict[int, set[int]] = {}
        read: set[Source] = set()
        for node in range(self.until):
            if stretch[node] < 0:
                continue
            for source in graph.nodes[node].inputs:
                read.add(source)
                if graph._kind[source[0]]:
                    readers.setdefault(source[0], set()).add(node)
                elif stretch[source[0]] not in (-1, stretch[node]):
                    self.exported.setdefault(stretch[source[0]], {})[source] = None
        for source_id, nodes in readers.items():
            name = graph._names.get(source_id, "")
            within = [self.paths[graph._module[node]] for node in nodes]
            if name and all(path and name.startswith(f"{path}.") for path in within):
                self.owned.add(source_id)
        members: list[int] = []
        for node in range(self.until):
            if stretch[node] < 0:
                continue
            if members and stretch[node] != stretch[members[0]]:
                self._close(members, read)
                members = []
            if self.cuts[graph._module[node]] > 0:
                members.append(node)
            else:
                self._copy(node)
        if members:
            self._close(members, read)
        self._describe()
        known = [(self.places.get((node, output)), node) for node, output in graph.outputs]
        self.made.outputs = tuple(place for place, _ in known if place is not None)

    def _describe(self) -> None:
        """What an analyzer said, of the nodes that are here."""
        numbers, said = self.numbers, self.graph._said_phases
        here = list(numbers)
        ends = [bisect_left(here, end) for end in self.graph._steps]
        self.made._steps = [numbers[here[at]] if at < len(here) else len(self.made) for at in ends]
        self.made._gradients = {(numbers[node], out) for node, out in self.graph._gradients if node in numbers}
        self.made._said_phases = {number: said[node] for node, number in numbers.items() if node in said}
        if self.graph.patterns is not None:
            self.made.patterns = tuple(
                dataclasses.replace(each, anchor=numbers[each.anchor], core=frozenset(),
                                    nodes=frozenset(numbers[n] for n in each.nodes if n in numbers))
                for each in self.graph.patterns if each.anchor in numbers
            )  # fmt: skip

    def _copy(self, node: int) -> None:
        graph, made = self.graph, self.made
        sources = [self._place(source) for source in graph.nodes[node].inputs]
        number = made._append(
            made._intern_call(graph._calls[graph._call[node]]),
            sources,
            self._module(node),
            made._intern_place(graph._places[graph._place[node]]),
            graph._phase[node],
            readings=graph.nodes[node].readings,
        )
        self.numbers[node] = number
        if node in graph._names:
            made._names[number] = graph._names[node]
        if node in graph._writes:
            made._writes[number] = graph._writes[node]
        if node in self.reads:
            made._reads.append(number)
        for output in range(max(1, len(graph.nodes[node].outputs))):
            self.places[node, output] = number, output

    def _close(self, members: list[int], read: set[Source]) -> None:
        graph, made = self.graph, self.made
        inside = set(members)
        wanted = dict.fromkeys(source for node in members for source in graph.nodes[node].inputs
                               if source[0] not in inside and source[0] not in self.owned)  # fmt: skip
        owned = {source for node in members for source, _ in graph.nodes[node].inputs if source in self.owned}
        sources = list(dict.fromkeys(self._place(source) for source in wanted))
        shown = list(self.exported.get(self.stretch[members[0]], ()))
        last = members[-1], 0
        if graph.nodes[last[0]].outputs and last not in read and last not in shown:
            shown.append(last)
        outputs = tuple(graph.nodes[node].outputs[output] for node, output in shown)
        facts = {"ops": len(members), **({"parameters": len(owned)} if owned else {})}
        call = Call(MODULE, tuple(map(Hole, range(len(sources)))), facts, outputs)
        number = made._append(
            made._intern_call(call), sources, self._module(members[0]), 0, graph._phase[members[0]], CLOSED
        )
        self.numbers |= dict.fromkeys(members, number)
        for position, source in enumerate(shown):
            self.places[source] = number, position

    def _place(self, source: Source) -> Source:
        """Where the part has it: an input for what is made elsewhere."""
        found = self.places.get(source)
        if found is None:
            graph, made = self.graph, self.made
            node, output = source
            call = graph._calls[graph._call[node]]
            kind = graph._kind[node] or 1
            outputs: tuple[Output, ...] = call.outputs[output : output + 1]
            number = made._append(
                made._intern_call(Call(call.op if not graph._kind[node] else DATA, (), {}, outputs)),
                (),
                self._module(node),
                kind=kind,
            )
            if node in graph._names:
                made._names[number] = graph._names[node]
            if node in graph._numbers:
                made._numbers[number] = graph._numbers[node]
            found = self.places[source] = number, 0
        return found

    def _module(self, node: int) -> int:
        module = self.graph._modules[self.graph._module[node]]
        cut = self.cuts[self.graph._module[node]]
        kept = cut if cut > 0 and self.stretch[node] >= 0 else len(module.names)
        return self.made._intern_module(".".join(module.names[:kept]), module.classes[:kept]) if kept else 0
