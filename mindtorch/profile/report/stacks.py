"""Where the time of a run went as stacks, the outermost frame first: modules and lines, with ops at their ends.

Both ways of stacking hold every nanosecond of the report once: their weights sum to `totals.time_s`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from mindtorch._ext import context, location
from mindtorch.base.file_names import short_names
from mindtorch.profile.report.recording import LOADER, Recording, stage_tables
from mindtorch.profile.report.rows import LOCATION, MODULE, PHASE, SIG, as_table, grouped

#: What a frame is.
KINDS = ("module", "op", "line", "time")  # "time" is that between ops
OUTSIDE = "(outside any module)"
NO_LINE = "(no line of the program)"
_DATA = context.PHASES.index("data")


class Frame(NamedTuple):
    """What a flame graph shows as one box.

    name: of a module its path, of an op its own, of a line "function (file:line)". detail: of a module its class, of an
    op its category.
    """

    kind: str
    name: str
    detail: str = ""
    file: str = ""
    line: int = 0


class Weight(NamedTuple):
    """What was spent with one stack at the top."""

    ns: int
    flops: int
    calls: int


@dataclass
class Stacks:
    """{indices of frames, the outermost first: what was spent there}, in the order in which they are to be drawn."""

    frames: list[Frame] = field(default_factory=list)
    weights: dict[tuple[int, ...], Weight] = field(default_factory=dict)
    _index: dict[Frame, int] = field(default_factory=dict)

    def number(self, frame: Frame) -> int:
        """The index of a frame."""
        found = self._index.get(frame)
        if found is None:
            found = self._index[frame] = len(self.frames)
            self.frames.append(frame)
        return found

    def add(self, stack: tuple[int, ...], weight: Weight) -> None:
        known = self.weights.get(stack)
        self.weights[stack] = weight if known is None else Weight(*map(sum, zip(known, weight, strict=True)))

    @property
    def ns(self) -> int:
        """Of all stacks: the report's time."""
        return sum(weight.ns for weight in self.weights.values())


def by_module(seen: Recording) -> Stacks:
    """Module within module, then the op, or what was between ops; modules as the program first called them."""
    found = Stacks()

    @functools.cache
    def modules(path: int) -> tuple[int, ...]:
        if not path:
            return (found.number(Frame("module", OUTSIDE)),)
        above: list[int] = []
        while path:  # a path may be deeper than Python's recursion limit
            above.append(found.number(Frame("module", seen.names[path], context.path_class(path))))
            path = context.path_parent(path)
        return tuple(reversed(above))

    _fill(found, seen, MODULE, modules)
    return _ordered(found, _places(seen))


def together(found: Stacks, names: Mapping[str, str]) -> Stacks:
    """The same with modules of one name in `names` as one: repeated layers, and what is in them."""
    joined = Stacks()
    frames = [frame._replace(name=names.get(frame.name, frame.name)) if frame.kind == "module" else frame
              for frame in found.frames]  # fmt: skip
    for stack, weight in found.weights.items():
        joined.add(tuple(joined.number(frames[index]) for index in stack), weight)
    places = {name: place for place, name in enumerate(frame.name for frame in joined.frames if frame.kind == "module")}
    places.pop(OUTSIDE, None)
    return _ordered(joined, places)


def by_line(seen: Recording) -> Stacks:
    """Line within line as far as calls were followed (else the innermost alone), then the op; the longest first."""
    found = Stacks()

    names = line_names(seen)

    @functools.cache
    def lines(place: int) -> tuple[int, ...]:
        chain = reversed(location.chain(place)) if place else ()
        return tuple(found.number(_line(at, names)) for at in chain) or (found.number(Frame("line", NO_LINE)),)

    _fill(found, seen, LOCATION, lines)
    return _ordered(found, {})


def line_names(seen: Recording) -> dict[str, str]:
    """What the program's files are called, by path."""
    places: set[int] = set()
    for stage in seen.stages.values():
        places.update(np.unique(as_table(stage.rows)[:, LOCATION].astype(np.int64)).tolist())
    each = {at for place in places if place for at in location.chain(place)}
    return short_names(where[0] for at in each if (where := context.location(at)))


def _line(place: int, names: Mapping[str, str]) -> Frame:
    where = context.location(place)
    if where is None:
        return Frame("line", NO_LINE)
    file, line, function = where
    return Frame("line", f"{function} ({names.get(file, file)}:{line})", "", file, line)


def _fill(found: Stacks, seen: Recording, column: int, above: Callable[[int], tuple[int, ...]]) -> None:
    """Every row of the stage that is reported. column: MODULE or LOCATION, what `above` makes frames of."""
    tables, waits = stage_tables(seen)
    table = tables[seen.reached]
    is_op = table[:, SIG] != 0
    for row in grouped(table[is_op], SIG, column):
        op = seen.ops[row.sig]
        assert op is not None, "a signature is an op's"
        stack = (*above(row[column]), found.number(Frame("op", op.name, op.category)))
        flops = (seen.flops[row.sig] or (0, 0))[0]
        found.add(stack, Weight(row.ns, row.calls * flops, row.calls))
    own = found.number(Frame("time", "(launch)" if seen.mode == "estimate" else "(python)"))
    loading = LOADER if seen.mode == "measured" else ""
    for key, ns, what in _between(table[~is_op], column, waits[seen.reached], loading):
        frame = found.number(Frame("time", f"(waiting for {what})")) if what else own
        found.add((*above(key), frame), Weight(ns, 0, 0))


def _between(rows: Any, column: int, waits: Counter[tuple[str, int]], loading: str) -> Iterator[tuple[int, int, str]]:
    """(module or location, nanoseconds, what was waited for) of the time between ops. loading: of that in data."""
    left = dict(waits)
    whats: dict[int, list[str]] = {}
    for what, place in waits:
        whats.setdefault(place, []).append(what)
    in_data = rows[:, PHASE] == _DATA
    for place_rows, otherwise in ((rows[~in_data], ""), (rows[in_data], loading)):
        for row in grouped(place_rows, *dict.fromkeys((column, LOCATION))):
            ns = row.ns
            for what in whats.get(row.location, ()):
                waited = min(ns, left[what, row.location])
                left[what, row.location] -= waited
                ns -= waited
                if waited:
                    yield row[column], waited, what
            if ns:
                yield row[column], ns, otherwise


def _places(seen: Recording) -> dict[str, int]:
    """{name of a module: its place in the order of first calls}."""
    called = sorted(seen.names.order, key=seen.names.order.__getitem__)
    return {seen.names[path]: place for place, path in enumerate(called)}


def _ordered(found: Stacks, places: Mapping[str, int]) -> Stacks:
    """Siblings side by side: modules by `places`, and before all that has none; then the longest first."""
    totals: Counter[tuple[int, ...]] = Counter()
    first: dict[tuple[int, ...], int] = {}
    last = len(places)
    for stack, weight in found.weights.items():
        place = last
        for depth in range(len(stack), 0, -1):  # a container, which is not called, is where the first in it is
            here = stack[:depth]
            frame = found.frames[here[-1]]
            place = min(place, places.get(frame.name, last) if frame.kind == "module" else last)
            first[here] = min(first.get(here, last), place)
            totals[here] += weight.ns

    def key(stack: tuple[int, ...]) -> list[tuple[int, int, int]]:
        trail = (stack[:depth] for depth in range(1, len(stack) + 1))
        return [(first[here], -totals[here], here[-1]) for here in trail]

    found.weights = {stack: found.weights[stack] for stack in sorted(found.weights, key=key)}
    return found
