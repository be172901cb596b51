"""Where boxes lie: rows in the order of what reads what, columns so that what goes on from a box stands below it.

An edge to the next row needs no room of its own. One that goes further has a lane: a column that is free in all rows
between, shared by all edges from the same box.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from statistics import median_low
from typing import NamedTuple

WIDEST = 6  # boxes in a row


class Lane(NamedTuple):
    """The edges from ``source`` that pass rows ``first`` to ``last``."""

    source: int
    column: int
    first: int
    last: int


class Grid(NamedTuple):
    """Of each node, its row and column; which columns and rows edges pass."""

    rows: dict[int, int]
    columns: dict[int, int]
    lanes: list[Lane]


def layered(nodes: Sequence[int], edges: Iterable[tuple[int, int]], ends: tuple[int, ...] = ()) -> Grid:
    """Of nodes in an order in which edges go on. ends: those that stand below all before them."""
    after: dict[int, list[int]] = defaultdict(list)
    before: dict[int, list[int]] = defaultdict(list)
    for source, target in sorted(set(edges)):
        after[source].append(target)
        before[target].append(source)
    rows = _rows(nodes, before, after, ends)
    columns, lanes = _columns(rows, before, after)
    least = min([*columns.values(), *(lane.column for lane in lanes)], default=0)
    lanes = [lane._replace(column=lane.column - least) for lane in lanes]
    return Grid(rows, {node: column - least for node, column in columns.items()}, lanes)


def _rows(
    nodes: Sequence[int], before: dict[int, list[int]], after: dict[int, list[int]], ends: tuple[int, ...]
) -> dict[int, int]:
    rows: dict[int, int] = {}
    width: dict[int, int] = defaultdict(int)
    for node in nodes:
        least = 1 + max(rows.values() if node in ends else (rows[source] for source in before[node]), default=-1)
        rows[node] = next(row for row in count(least) if width[row] < WIDEST)
        width[rows[node]] += 1
    for node in reversed(nodes):  # what reads nothing stands right above its first reader
        if not before[node] and after[node] and node not in ends:
            low = min(rows[target] for target in after[node]) - 1
            best = next(row for row in range(low, rows[node] - 1, -1) if row == rows[node] or width[row] < WIDEST)
            width[rows[node]] -= 1
            width[best] += 1
            rows[node] = best
    left = {row: place for place, row in enumerate(sorted(set(rows.values())))}  # some may be empty now
    return {node: left[row] for node, row in rows.items()}


def _columns(
    rows: dict[int, int], before: dict[int, list[int]], after: dict[int, list[int]]
) -> tuple[dict[int, int], list[Lane]]:
    columns: dict[int, int] = {}
    lanes: list[Lane] = []
    taken: set[tuple[int, int]] = set()
    passing: dict[int, int] = {}  # the column of a node's lane
    ahead: dict[int, int] = {}  # how long the way on from here is
    for node in reversed(rows):
        ahead[node] = 1 + max((ahead[target] for target in after[node]), default=0)
    members: dict[int, list[int]] = defaultdict(list)
    for node, row in rows.items():
        members[row].append(node)
    for row in sorted(members):
        for node in sorted(members[row], key=lambda node: (-ahead[node], node)):
            near = [columns[source] for source in before[node] if rows[source] == row - 1]
            far = [passing[source] for source in before[node] if source in passing]
            columns[node] = _free(taken, median_low(near or far or [0]), range(row, row + 1))
            taken.add((row, columns[node]))
        for node in members.get(row - 1, ()):
            last = max((rows[target] for target in after[node]), default=0) - 1
            if last >= row:
                passing[node] = _free(taken, columns[node], range(row, last + 1))
                taken.update((r, passing[node]) for r in range(row, last + 1))
                lanes.append(Lane(node, passing[node], row, last))
    return columns, lanes


def _free(taken: set[tuple[int, int]], wanted: int, rows: range) -> int:
    """The column nearest to the one that is wanted in which none of these rows is taken."""
    return next(column for column in _around(wanted) if not any((row, column) in taken for row in rows))


def _around(wanted: int) -> Iterator[int]:
    yield wanted
    for step in count(1):
        yield wanted + step
        yield wanted - step
