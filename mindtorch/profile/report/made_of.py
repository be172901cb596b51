"""Which rows of a profile are part of which pattern's instances, told from graphs of a few of its calls."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from mindtorch._ext import context
from mindtorch.engine.record.arguments import quiet
from mindtorch.graph.patterns import Flows, Instance, find_patterns, loaded
from mindtorch.graph.patterns.flow import MOVES, PRODUCTS
from mindtorch.profile.cost.roofline import BOUNDS
from mindtorch.profile.report.rows import MODULE, PHASE

if TYPE_CHECKING:
    from mindtorch.graph import ComputationGraph
    from mindtorch.profile.measure.sampling import Key, Sample
    from mindtorch.profile.report.forecast import Forecast
    from mindtorch.profile.report.module_names import Names
    from mindtorch.profile.report.recording import Recording
    from mindtorch.profile.report.rows import Row

__all__ = ["Labels", "pattern_rows"]

_BACKWARD, _OPTIMIZER = map(context.PHASES.index, ("backward", "optimizer"))
_GRADIENT_OF = re.compile(r"(_dense)?_backward(_data)?$")
_NAMED_OTHERWISE = {"aten::threshold": "aten::relu"}
_ANY, _PRODUCT = "any", "product"  # op of a module
_NONE = {"": 1}
_ANYWHERE = "anywhere"  # in place of a line: of a module's op, at whichever


class _Label(NamedTuple):
    """Of a row: the pattern, and which of its places."""

    pattern: str
    place: int


class _OfStep(NamedTuple):
    """In place of a line: what an optimizer's step does there, beside whatever else the line does."""

    line: Any


class Labels:
    """What the graphs say of (module, line, op), and of an op of a module."""

    def __init__(self, samples: Sequence[Sample], names: Names) -> None:
        # Which part of the calls by that key are a pattern's instances' own, in the last graph: those of an optimizer's
        # first step are others.
        self.anchors: dict[tuple[str, Key], Fraction | int] = {}
        # Of each optimizer, in the last graph in which a step of its is one: how many are in a step, and their places.
        self.a_step: dict[tuple[str, int], tuple[Fraction, set[int]]] = {}
        self.alike: Counter[Key] = Counter()  # how often any call of those graphs has it
        self.cores: Counter[Key] = Counter()  # how often one does that stands for what one call of torch does
        self.of: dict[Key, dict[str, int]] = {}  # how many calls by pattern; empty for none
        self.at: dict[tuple[str, Key], set[int]] = defaultdict(set)  # numbers of those instances' places
        self.in_steps: dict[str, set[str]] = defaultdict(set)  # of optimizers: the patterns that an op is part of there
        self.in_module: dict[tuple[int, str], dict[str, int]] = defaultdict(dict)  # (module, op), with gradients
        self.attributes: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.verified: dict[str, list[bool]] = defaultdict(list)
        self.places: dict[_Label, set[str]] = defaultdict(set)
        self._lines: dict[int, Any] = {}  # by location
        self.flows: list[Flows] = [{} for _ in samples]
        known: dict[Any, Any] = {}
        patterns, self.failed = loaded() if samples else ((), {})
        # Quiet: whoever watches the program sees its operations only, not those of the trials.
        with torch.no_grad(), torch._C.DisableTorchFunction(), quiet():
            every = [find_patterns(sample.graph, patterns, known, self.failed, flows)
                     for sample, flows in zip(samples, self.flows, strict=True)]  # fmt: skip
        found = [
            [each for each in instances if not each.refused and each.pattern not in self.failed] for instances in every
        ]
        unclear = [{node for each in instances if each.undecided for node in each.nodes} for instances in every]
        keyed = [sample.keys() for sample in samples]
        found = _placed(keyed, found)
        numbers = _numbered(instance for instances in found for instance in instances)
        for sample, keys_of, instances, silent in zip(samples, keyed, found, unclear, strict=True):
            own, calls = self._label(sample, keys_of, instances, silent, numbers, names)
            self._count(own, calls)

    def _label(
        self, sample: Sample, keys_of: dict[int, list[Key]], instances: Sequence[Instance], silent: set[int],
        numbers: Mapping[Any, int], names: Names,
    ) -> tuple[Counter[tuple[str, Key]], dict[str, list[Key]]]:  # fmt: skip
        """Of one graph: calls that are a pattern's instances' own, and all of its calls by pattern."""
        graph = sample.graph
        labels: dict[int, _Label] = {}
        for node in keys_of if _OPTIMIZER in graph._phase else ():
            if graph._phase[node] == _OPTIMIZER:
                keys_of[node] = [(module, _OfStep(line), op) for module, line, op in keys_of[node]]
        for instance in instances:
            label = _Label(instance.pattern, numbers[instance.pattern, instance.place])
            labels.update(dict.fromkeys(instance.nodes, label))
            self.attributes[instance.pattern].append(instance.attributes)
            self.verified[instance.pattern].append(instance.verified)
            self.places[label].add(_around(graph, instance, keys_of, names))
        _add_moves(graph, labels, silent)
        cores = {node for instance in instances for node in instance.core}
        own: Counter[tuple[str, Key]] = Counter()
        differentiated = _differentiated(graph)
        anchors = {instance.anchor for instance in instances} - self._count_steps(sample, instances, labels)
        calls: dict[str, list[Key]] = defaultdict(list)  # by pattern
        phase = graph._phase
        for node, keys in keys_of.items():
            if phase[node] == _BACKWARD or node in silent:
                continue  # of these, the rows are told by what ran forward, or by another graph
            label_ = labels.get(node)
            pattern = "" if label_ is None else label_.pattern
            calls[pattern] += keys
            if phase[node] == _OPTIMIZER:
                for _, _, op in keys:
                    self.in_steps[op].add(pattern)
            if node in differentiated:
                for module, _, op in keys:
                    if module:
                        for op_ in (_PRODUCT if op in PRODUCTS else op, _ANY):
                            of = self.in_module[module, op_]
                            of[pattern] = of.get(pattern, 0) + 1
            if node in anchors:
                for key in _everywhere({_main(keys, graph._calls[graph._call[node]].op): 1}):
                    own[pattern, key] += 1
                    self.at[pattern, key].add(label_.place if label_ else -1)
            if node in cores:
                self.cores.update(keys)
        return own, calls

    def _count(self, own: Counter[tuple[str, Key]], calls: dict[str, list[Key]]) -> None:
        """What is known of each call by its key, with what this graph tells."""
        here: Counter[Key] = Counter()
        for pattern, each in calls.items():
            for key, times in _everywhere(Counter(each)).items():
                here[key] += times
                of = self.of.setdefault(key, {})
                of[pattern] = of.get(pattern, 0) + times
        self.alike.update(here)
        self.anchors |= {
            key: 1 if times == here[key[1]] else Fraction(times, here[key[1]]) for key, times in own.items()
        }

    def _count_steps(self, sample: Sample, instances: Sequence[Instance], labels: Mapping[int, _Label]) -> set[int]:
        """Of what is within steps of optimizers, which are counted; the anchors of that.

        How often each stepped is known. Calls at its line may be those of several, which have different numbers of
        weights.
        """
        places: dict[tuple[str, int], list[int]] = defaultdict(list)
        counted = set()
        for instance in instances:
            step = bisect_right(sample.graph._steps, instance.anchor)
            if sample.graph._phase[instance.anchor] == _OPTIMIZER and step < len(sample.steps):
                counted.add(instance.anchor)
                places[instance.pattern, sample.steps[step]].append(labels[instance.anchor].place)
        for (pattern, which), found in places.items():
            self.a_step[pattern, which] = Fraction(len(found), sample.steps.count(which)), set(found)
        return counted

    def key(self, row: Row, op: str) -> Key:
        """What the graphs know the row by: without its line where they have no such call, as when a second loop of the
        program calls the same loss."""
        line = self._lines.get(row.location)
        if line is None:
            line = self._lines[row.location] = context.location(row.location)
        key = row.module, _OfStep(line) if row.phase == _OPTIMIZER else line, op
        return key if key in self.alike or not row.module else (row.module, _ANYWHERE, op)

    def patterns(self, row: Row, op: str, key: Key | None = None) -> dict[str, int]:
        """Of an op's row: how many of its calls in those graphs are of each; empty for none. key: its `key`, if known.

        What ran backward belongs to what its module did forward by that op, else to what it did, if that is one thing;
        a step of an optimizer that no graph has, to what others do by that op.
        """
        if row.phase == _BACKWARD and not row.module:
            return _NONE  # nobody knows whose it is: its line, that of the pass, may do anything else
        if found := self.of.get(self.key(row, op) if key is None else key):
            return found
        if row.phase == _OPTIMIZER and len(patterns := self.in_steps.get(op, ())) == 1:
            return dict.fromkeys(patterns, 1)
        if row.phase == _BACKWARD:
            of = _forward(op)
            if found := self.in_module.get((row.module, _PRODUCT if of in PRODUCTS else of)):
                return found
            if len(found := self.in_module.get((row.module, _ANY), _NONE)) == 1:
                return found
        return _NONE


def _add_moves(graph: ComputationGraph, labels: dict[int, _Label], silent: set[int]) -> None:
    """Casts, copies and views that only one instance reads are part of it: autocast's, of its weights and its input."""
    first, source, phase = graph._first, graph._source, graph._phase
    readers: dict[int, set[_Label | None]] = defaultdict(set)
    for node in range(len(graph._call) - 1, -1, -1):
        if phase[node] == _BACKWARD:
            continue
        mine = labels.get(node)
        if mine is None and len(of := readers[node]) == 1 and not graph._kind[node] and node not in silent:
            (only,) = of
            if only is not None and graph._calls[graph._call[node]].op in MOVES:
                mine = labels[node] = only
        for read in source[first[node] : first[node + 1]]:
            readers[read].add(mine)


def _around(graph: ComputationGraph, instance: Instance, keys: Mapping[int, Sequence[Key]], names: Names) -> str:
    """The innermost module that holds all of it, as the module tree names it."""
    paths = [graph._modules[graph._module[node]].names for node in instance.nodes]
    shared = next((n for n, names in enumerate(zip(*paths, strict=False)) if len(set(names)) > 1), min(map(len, paths)))
    root = context.path_root(keys[instance.anchor][0][0]) if shared else 0
    return ".".join((names[root], *paths[0][1:shared]))


def _forward(op: str) -> str:
    """What an op is the gradient of; itself where it is none's."""
    name = _GRADIENT_OF.sub("", op)
    return _NAMED_OTHERWISE.get(name, name)


def _differentiated(graph: ComputationGraph) -> set[int]:
    """Nodes that have something to do backward: they compute floating-point numbers from others."""
    floating = [any(output.dtype.is_floating_point for output in call.outputs) for call in graph._calls]
    first, source, kind = graph._first, graph._source, graph._kind
    carrying: set[int] = set()
    found = set()
    for node, call in enumerate(graph._call):
        if graph._phase[node] == _BACKWARD:
            break  # what comes after it has no gradients of its own
        if floating[call] and (kind[node] or not carrying.isdisjoint(source[first[node] : first[node + 1]])):
            carrying.add(node)
            if not kind[node] and graph._calls[call].op not in MOVES:
                found.add(node)
    return found


def _main(keys: Sequence[Key], op: str) -> Key:
    """Of several calls that one op is made of, the one that stands for it: the last product, else that op, else the
    last of all.
    """
    found = next((key for key in reversed(keys) if key[2] in PRODUCTS), None)
    return found or next((key for key in reversed(keys) if key[2] == op), keys[-1])


def _everywhere(times: Mapping[Key, int]) -> dict[Key, int]:
    """How often each was called, at its line and, within a module, at whichever."""
    found = dict(times)
    for (module, _, op), number in times.items():
        if module:
            anywhere = module, _ANYWHERE, op
            found[anywhere] = found.get(anywhere, 0) + number
    return found


def _placed(keyed: Iterable[Mapping[int, Sequence[Key]]], found: Iterable[Sequence[Instance]]) -> list[list[Instance]]:
    """Each where its weights say; without names of weights, where others of the same call are, else in its own model.

    A weight has no name in a graph that begins after it was cast, and two models may have modules of one name.
    """
    anchored = [
        [(each, keys[each.anchor][0] if each.anchor in keys else None) for each in instances]
        for keys, instances in zip(keyed, found, strict=True)
    ]
    named: dict[tuple[str, Key | None], set[Any]] = defaultdict(set)
    for pairs in anchored:
        for instance, key in pairs:
            if _is_named(instance):
                named[instance.pattern, key].add(instance.place)

    def placed(instance: Instance, key: Key | None) -> Instance:
        if _is_named(instance) or key is None or not key[0] or not instance.place:
            return instance
        known = named[instance.pattern, key]
        return replace(instance, place=next(iter(known)) if len(known) == 1 else (key[0], *instance.place[1:]))

    return [[placed(*pair) for pair in pairs] for pairs in anchored]


def _is_named(instance: Instance) -> bool:
    """Is its place that of weights that have names?"""
    return bool(instance.place) and all(isinstance(each, str) for each in instance.place)


def _numbered(instances: Iterable[Instance]) -> dict[tuple[str, Any], int]:
    """{(pattern, place): number}: those that share a weight are one."""
    numbers: dict[tuple[str, Any], int] = {}
    of_weight: dict[tuple[str, Any], int] = {}
    join: dict[int, int] = {}

    def root(number: int) -> int:
        while number in join:
            number = join[number]
        return number

    for instance in instances:
        key = instance.pattern, instance.place
        number = numbers.setdefault(key, len(numbers))
        for weight in instance.place if _is_named(instance) else ():
            other = root(of_weight.setdefault((instance.pattern, weight), number))
            if other != root(number):
                join[root(number)] = other
    return {key: root(number) for key, number in numbers.items()}


def pattern_rows(
    seen: Recording, rows: Iterable[Row], labels: Labels, forecast: Forecast | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """(What the program is made of: a row per pattern that was found, longest first; which failed, a line each.)

    rows: by signature, module, line and phase. instances: places in the model; calls: of those. verified: whether all
    were run beside the pattern's own function and agreed; what disagreed is in no row. time_s, flops: of all that is
    part of them, backward included where it is known whose it is. bound_by_s: seconds on the target, by
    what bounds them: computing, memory, launches, communication.
    """
    found: dict[str, dict[str, Any]] = {}
    where: dict[str, set[int]] = defaultdict(set)
    # By module, line and phase: how much was called there of each pattern, and of none.
    called: dict[tuple[int, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    between: list[Row] = []  # Python's time, or the device's that waits for it, and views: of what was called there

    def add(pattern: str, row: Row, part: float = 1.0) -> dict[str, Any]:
        entry = found.setdefault(pattern, {"calls": 0, "ns": 0.0, "flops": 0, "bound": dict.fromkeys(BOUNDS, 0.0)})
        entry["ns"] += part * row.ns
        if forecast is not None:
            bound = forecast.cost(row.sig).bound
            entry["bound"][bound] = entry["bound"].get(bound, 0.0) + part * forecast.about(row)
        return entry

    for row in rows:
        sig = row.sig
        if not sig:
            between.append(row)
            continue
        op = seen.op_name(sig)
        key = labels.key(row, op)
        patterns = labels.patterns(row, op, key)
        if "" in patterns and seen.ops[sig].category == "view":  # type: ignore[union-attr]
            between.append(row)
            continue
        total = sum(patterns.values())
        much = row.calls * (1.0 if forecast is None else forecast.host(sig, row.phase))
        here = called[row[MODULE : PHASE + 1]]
        for pattern, times in patterns.items():
            part = 1 if times == total else Fraction(times, total)
            here[pattern] += much * part
            if not pattern:
                continue
            entry = add(pattern, row, float(part))
            entry["flops"] += row.calls * (seen.flops[sig] or (0, 0))[0] * part
            if row.phase != _BACKWARD and (own := labels.anchors.get((pattern, key))):
                entry["calls"] += row.calls * own
                where[pattern] |= labels.at[pattern, key]
    for (pattern, which), (in_a_step, places) in labels.a_step.items():
        if pattern in found and (steps := seen.steps_taken[which]):
            found[pattern]["calls"] += steps * in_a_step
            where[pattern] |= places
    for row in between:
        there = called[row[MODULE : PHASE + 1]]
        for pattern in there.keys() - {""}:
            add(pattern, row, there[pattern] / (sum(there.values()) or 1.0))
    longest_first = sorted(found.items(), key=lambda item: -item[1]["ns"])
    failed = [f"the search for the pattern {name} failed: {type(error).__name__}: {error}"
              for name, error in labels.failed.items()]  # fmt: skip
    return [_row(labels, name, entry, where[name], forecast) for name, entry in longest_first if where[name]], failed


def _row(
    labels: Labels, name: str, entry: dict[str, Any], places: set[int], forecast: Forecast | None
) -> dict[str, Any]:
    return {
        "name": name,
        "instances": len(places),
        "calls": int(entry["calls"] + Fraction(1, 2)),
        "time_s": entry["ns"] / 1e9,
        "flops": round(entry["flops"]),
        "bound_by_s": None if forecast is None else entry["bound"],
        "verified": all(labels.verified[name]),
        "modules": _folded(labels, name, places),
        "attributes": _common(labels.attributes[name]),
    }


def _folded(labels: Labels, name: str, places: set[int]) -> list[str]:
    """Their modules, numbers in a path as ``*``."""
    paths = [path for place in sorted(places) for path in sorted(labels.places[_Label(name, place)]) if path]
    return list(dict.fromkeys(re.sub(r"\.\d+(?=\.|$)", ".*", path) for path in paths))


def _common(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    """What all instances have, and where they differ, all that there is; None for those that it is not known of."""
    found: dict[str, Any] = {}
    for key in dict.fromkeys(key for each in attributes for key in each):
        values = list(dict.fromkeys(each.get(key) for each in attributes))
        found[key] = values[0] if len(values) == 1 else values
    return found
