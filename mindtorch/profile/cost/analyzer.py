"""The analyzer that mindtorch comes with: patterns by proof, bounds by a roofline, else who reads what (SPEC L13)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from mindtorch import ops
from mindtorch.engine.cache.content_names import Undefined, gives_undefined, why_not
from mindtorch.engine.record.arguments import quiet
from mindtorch.graph import ComputationGraph, Hole, Node
from mindtorch.graph.analysis import Analysis, Analyzer, Group
from mindtorch.graph.patterns import find_patterns, loaded
from mindtorch.graph.patterns.rerun import function
from mindtorch.profile.cost import op_time, targets
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.cost.work import Work, work

__all__ = ["RooflineAnalyzer"]

Source = tuple[int, int]


class RooflineAnalyzer(Analyzer):
    """target: a `Target`, or the name of one (``h100``, a TOML file); ``cpu``, which is measured once, in a second or
    two, when it is first needed. UsageError for another name.
    """

    def __init__(self, target: str | Target = "cpu") -> None:
        if target != targets.MEASURED and isinstance(target, str):
            target = targets.find(target)
        self._target = target
        self._known: dict[Any, Any] = {}  # what checks of patterns showed

    @property
    def target(self) -> Target:
        """The accelerator that the bounds are for."""
        if isinstance(self._target, str):
            self._target = targets.find(self._target)
        return self._target

    def analyze(self, graph: ComputationGraph) -> Analysis:
        with quiet():
            target = self.target
            patterns, failed = loaded()
            instances = tuple(each for each in find_patterns(graph, patterns, self._known, failed) if not each.refused)
            works = [_work(node) if node.kind == "op" else None for node in graph.nodes]
        footprint = sum(_nbytes(output) for node in graph.nodes for output in node.outputs)
        seconds: Counter[str] = Counter()
        bounds = {}
        for node, each in enumerate(works):
            if each is not None:
                cost = op_time.estimate(each, target, footprint)
                bounds[node] = cost.bound
                seconds[cost.bound] += cost.seconds  # type: ignore[assignment]
        memory = _Memory(graph)
        return Analysis(
            phases=dict(Counter(node.phase for node in graph.nodes if node.kind == "op")),
            patterns=instances,
            target=target.name,
            seconds={bound: float(total) for bound, total in seconds.items() if total},
            bounds=bounds,
            flops=sum(each.flops or 0 for each in works if each is not None),
            nbytes=sum(each.bytes for each in works if each is not None),
            not_cacheable=_not_cacheable(graph),
            recomputable=frozenset(memory.recomputable()),
            together=tuple(memory.together(instances)),
            failed=failed,
        )


def _not_cacheable(graph: ComputationGraph) -> str:
    undefined = Undefined()
    for node in graph.nodes:
        if node.kind == "op":
            made = [(node.id, place) for place in range(len(node.outputs))]
            if reason := undefined.call(node.op, node.inputs, made):
                return reason
    return undefined.among()


def _nbytes(output: Any) -> int:
    found = int(output.dtype.itemsize)
    for n in output.shape:
        found *= n
    return found


def _like(output: Any) -> torch.Tensor:
    return torch.empty(output.shape, dtype=output.dtype, device="meta")


def _work(node: Node) -> Work:
    outputs = node.graph.nodes
    given = [
        _like(reading or outputs[source].outputs[place])
        for (source, place), reading in zip(node.inputs, node.readings, strict=True)
    ]

    def filled(a: Any) -> Any:
        if isinstance(a, Hole):
            return given[a.index]
        return type(a)(map(filled, a)) if isinstance(a, (tuple, list)) else a

    args = tuple(map(filled, node.args))
    kwargs = {name: filled(a) for name, a in node.kwargs.items()}
    fresh = [_like(output) for output in node.outputs[: len(node.outputs) - len(node.writes)]]
    results = fresh or [given[place] for place in node.writes]
    out = results[0] if len(results) == 1 else tuple(results)
    return work(function(node.call.overload) or node.op, args, kwargs, out)


class _Memory:
    """Of a graph: which values share memory, who reads it, who writes to it."""

    def __init__(self, graph: ComputationGraph) -> None:
        self.graph = graph
        self.root: dict[Source, Source] = {}
        self.users: dict[Source, list[int]] = defaultdict(list)  # operations that read or write it
        self.writers: dict[Source, list[int]] = defaultdict(list)
        for node in graph.nodes:
            read = [self.root[source] for source in node.inputs]
            fresh = len(node.outputs) - len(node.writes)
            views = bool(read) and ops.about(node.op).tag == "view"
            for place in range(fresh):
                self.root[node.id, place] = read[0] if views else (node.id, place)
            for place, which in enumerate(node.writes, fresh):
                self.root[node.id, place] = read[which]
                self.writers[read[which]].append(node.id)
            for root in dict.fromkeys(read):
                self.users[root].append(node.id)

    def recomputable(self) -> Iterator[int]:
        """Operations that draw and write nothing, of which nothing that they read is written to later."""
        for node in self.graph.nodes:
            if node.kind != "op" or node.writes or gives_undefined(node.op) or why_not(node.op) or _draws(node):
                continue
            if all(max(self.writers.get(self.root[source], (-1,))) <= node.id for source in node.inputs):
                yield node.id

    def together(self, instances: Any) -> Iterator[Group]:
        graph = self.graph
        yield from self._weights()
        in_attention = {node for each in instances if each.pattern == "attention" for node in each.nodes}
        for root, users in self.users.items():
            maker = graph.nodes[root[0]]
            written = self.writers.get(root, ())
            grows = maker.kind == "input" and [n for n in users if self._is_prolonged(n, in_attention)]
            nbytes = _nbytes(maker.outputs[root[1]])
            if not nbytes:
                continue
            if maker.kind == "input" and (written or grows):
                yield Group("cache", frozenset(users), nbytes)
            elif maker.kind == "op" and written and not maker.name:
                yield Group("activations", frozenset((*users, maker.id)), nbytes)

    def _is_prolonged(self, node: int, in_attention: set[int]) -> bool:
        """Is it what appends to a cache of keys or values?"""
        if self.graph.nodes[node].op != "aten::cat":
            return False
        return any(reader in in_attention for reader in (node, *self.users.get((node, 0), ())))

    def _weights(self) -> Iterator[Group]:
        """Operations that read the same parameters, or ones that share them with others that do."""
        graph = self.graph
        join: dict[Source, Source] = {}

        def first(root: Source) -> Source:
            while join.setdefault(root, root) != root:
                root = join[root]
            return root

        readers: dict[int, Source] = {}
        for root, users in self.users.items():
            if graph.nodes[root[0]].kind == "parameter" or graph.nodes[root[0]].name:
                first(root)
                for node in users:
                    join[first(root)] = first(readers.setdefault(node, root))
        groups: dict[Source, list[Source]] = defaultdict(list)
        for root in list(join):
            groups[first(root)].append(root)
        for roots in groups.values():
            nodes = frozenset(node for root in roots for node in self.users[root])
            makers = [graph.nodes[node] for node, _ in sorted(roots)]
            names = tuple(maker.name for maker in makers if maker.name)
            yield Group("weights", nodes, sum(_nbytes(maker.outputs[0]) for maker in makers), names)


def _draws(node: Node) -> bool:
    return node.id in node.graph._draws or ops.about(node.op).tag == "random"
