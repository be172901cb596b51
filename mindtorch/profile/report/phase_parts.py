"""Parts of the report's phases; what they are is told from graphs of a few calls (`mindtorch.graph.structure`).

Of a phase that has any, the parts and the rest sum to the phase: each row of the profile is in one of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mindtorch._ext import context
from mindtorch._ext.signals import by_signal_handler
from mindtorch.graph.structure import DIFFUSION, INFERENCE, find_parts
from mindtorch.profile.report.columns import PHASES, REST, Sums, sums, values

if TYPE_CHECKING:
    from mindtorch.graph.patterns import Flows
    from mindtorch.graph.structure import Parts
    from mindtorch.profile.measure.sampling import Key, Sample
    from mindtorch.profile.report.forecast import Forecast
    from mindtorch.profile.report.recording import Recording
    from mindtorch.profile.report.rows import Row

__all__ = ["part_rows"]

_IN_ORDER = ("data", "prefill", "decode", "forward", "backward", "optimizer", "other")  # as the phases of a report
_FORWARD = context.PHASES.index("forward")
_GENERATING = {context.PHASES.index(name) for name in ("prefill", "decode")}


def part_rows(
    seen: Recording, rows: Iterable[Row], forecast: Forecast | None, flows: Sequence[Flows]
) -> tuple[list[dict[str, Any]], list[str]]:
    """(A row per part of a phase, the longest first, then one for the rest, and none of a phase without parts; why
    they cannot be told, a line, if the search failed.)

    rows: by signature, module, line and phase, calls without gradients apart. flows: those of the samples' graphs, as
    `find_patterns` has made them.
    modules: those that are the part; none of what lies outside of modules.
    calls: of that module, where they are all in this phase.
    """
    try:
        parts = find_parts([sample.graph for sample in seen.samples], flows)
    except Exception as error:
        if by_signal_handler(error):
            raise
        return [], [f"the search for parts of phases failed: {type(error).__name__}: {error}"]
    known = parts.modules or parts.trained or any(parts.nodes)
    return (_rows(seen, list(rows), forecast, parts) if known else []), []


def _rows(seen: Recording, rows: Sequence[Row], forecast: Forecast | None, parts: Parts) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Sums]] = defaultdict(dict)
    inside: dict[tuple[int, str], set[int]] = defaultdict(set)  # path ids of the modules that are it
    parted = _Parted(seen, parts, rows)

    def key(row: Row) -> tuple[int, str]:
        phase, part = context.read_as(row.phase), parted.part(row)
        if row.module:
            inside[phase, part].add(parted.module(row))
        return phase, part

    for (phase, part), of in sums(seen, rows, forecast, key).items():
        found[phase][part] = of
    generates = {part for phase in _GENERATING & found.keys() for part in found[phase]}
    made = []
    for name in _IN_ORDER:
        phase = context.PHASES.index(name)
        of_phase = found.get(phase, {})
        if not of_phase.keys() - {""}:
            continue
        for part, of in sorted(of_phase.items(), key=lambda item: (not item[0], -item[1].ns)):
            modules = sorted(inside.get((phase, part), ()), key=seen.names.place) if part else []
            counted = phase == _FORWARD and part not in generates and len(modules) == 1
            made.append({
                "phase": name,
                "name": part or REST,
                "modules": [seen.names[module] for module in modules],
                "calls": _calls(seen, parts, modules[0], part) if counted else None,
                **values(PHASES, of, forecast is not None),
            })  # fmt: skip
    return made


def _calls(seen: Recording, parts: Parts, module: int, part: str) -> int | None:
    """How often a module was called, of a module that is trained, too: without gradients; None where its calls are
    those of what it holds."""
    stage = seen.stages[seen.reached]
    alone = part == INFERENCE or tuple(context.module_path(module).split(".")) in parts.alone
    return (stage.inference if alone and module in parts.trained else stage.entries).get(module) or None


class _Parted:
    """Says which part a row is in."""

    def __init__(self, seen: Recording, parts: Parts, rows: Iterable[Row]) -> None:
        self._seen, self._parts = seen, parts
        self._modules: dict[tuple[int, bool], tuple[str, int]] = {}
        self._lines: dict[int, Any] = {}
        self._outside = _outside(seen.samples, parts)
        on_line: dict[Any, set[str]] = defaultdict(set)
        for row in rows:
            if not row.module and row.sig:
                on_line[self._line(row)].add(self.part(row))
        # Time between ops is a part's on lines that do nothing else.
        self._of_line = {line: found.pop() for line, found in on_line.items() if len(found) == 1}

    def part(self, row: Row) -> str:
        if not row.module:
            if not row.sig:
                return self._of_line.get(self._line(row), "")
            return self._outside.get((self._line(row), self._seen.op_name(row.sig)), "")
        return self._of(row)[0]

    def module(self, row: Row) -> int:
        """The path id of the module that is the part which a row of a module is in; that of its model for inference."""
        return self._of(row)[1]

    def _of(self, row: Row) -> tuple[str, int]:
        at = row.module, row.phase == context.INFERENCE
        found = self._modules.get(at)
        if found is None:
            names = tuple(context.module_path(row.module).split("."))
            module = self._parts.module_of(names, at[1])
            path = row.module
            for _ in names[len(module) or 1 :]:
                path = context.path_parent(path)
            part = self._parts.modules.get(module, "")
            if part == DIFFUSION and context.path_root(path) not in self._parts.denoisers:
                part = ""  # a model of the same class
            if not part and at[1] and row.module in self._parts.trained:
                part = INFERENCE
            found = self._modules[at] = part, path
        return found

    def _line(self, row: Row) -> Any:
        line = self._lines.get(row.location)
        if line is None:
            line = self._lines[row.location] = context.location(row.location)
        return line


def _outside(samples: Sequence[Sample], parts: Parts) -> dict[tuple[Any, str], str]:
    """{(line, op) outside of modules: its part}, where the graphs show it in that part alone.

    What comes after the last call of a module in a graph does not count: nobody sees what it is for.
    """
    found: dict[tuple[Any, str], set[str]] = defaultdict(set)
    for sample, nodes in zip(samples, parts.nodes, strict=True):
        if not nodes:
            continue
        graph = sample.graph
        last = max(node for node in range(len(graph)) if graph._module[node])
        keyed: dict[int, list[Key]] = sample.keys()
        for node, keys in keyed.items():
            if node < last or node in nodes:
                for module, line, op in keys:
                    if not module:
                        found[line, op].add(nodes.get(node, ""))
    return {key: of.pop() for key, of in found.items() if len(of) == 1}
