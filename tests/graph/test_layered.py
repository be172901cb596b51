"""SPEC C6: where boxes lie: each in a cell of its own, each edge downwards, nothing in its way."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from mindtorch.graph.layered import WIDEST, Grid, layered


def check(grid: Grid, nodes: list[int], edges: list[tuple[int, int]]) -> None:
    assert set(grid.rows) == set(grid.columns) == set(nodes)
    cells = [(grid.rows[node], grid.columns[node]) for node in nodes]
    lanes = {lane.source: lane for lane in grid.lanes}
    assert len(lanes) == len(grid.lanes), "one for each source"
    cells += [(row, lane.column) for lane in grid.lanes for row in range(lane.first, lane.last + 1)]
    assert len(set(cells)) == len(cells), "nothing lies on anything"
    assert min(column for _, column in cells) == 0 <= min(row for row, _ in cells)
    for source, target in edges:
        row, below = grid.rows[source], grid.rows[target]
        assert row < below
        if below > row + 1:
            assert lanes[source].first == row + 1 and lanes[source].last >= below - 1


@pytest.mark.parametrize("seed", range(60))
def test_C6_layout_of_any_graph_has_a_cell_for_each_box_and_a_free_way_for_each_edge(seed: int) -> None:
    draw = random.Random(seed)
    n = draw.choice([1, 2, 5, 20, 60])
    nodes = list(range(n + 2))
    edges = [(a, b) for a in nodes for b in nodes if a < b and draw.random() < draw.choice([0.02, 0.1, 0.4])]
    grid = layered(nodes, edges, (0, n + 1))
    check(grid, nodes, edges)
    assert grid.rows[0] == 0 and all(grid.rows[n + 1] > grid.rows[node] for node in nodes[:-1])
    assert all(list(grid.rows.values()).count(row) <= WIDEST for row in grid.rows.values())


@pytest.mark.parametrize("sources", [7, 12, 13, 40])
def test_C6_layout_of_many_that_read_nothing_leaves_no_row_empty(sources: int) -> None:
    """More than fit into a row; each then goes down to where it is read, and an edge passes where some of them were."""
    chain = list(range(sources, 2 * sources))
    edges = [*pairwise(chain), *zip(range(sources), chain), (0, chain[-1])]
    for ends in ((), (0,)):
        grid = layered(range(2 * sources), edges, ends)
        check(grid, list(range(2 * sources)), edges)
        assert sorted(set(grid.rows.values())) == list(range(max(grid.rows.values()) + 1))


def test_C6_layout_of_a_chain_with_a_bypass_is_straight() -> None:
    edges = [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)]
    grid = layered(range(5), edges)
    assert [grid.rows[node] for node in range(5)] == [0, 1, 2, 3, 4]
    assert len(set(grid.columns.values())) == 1
    (lane,) = grid.lanes
    assert (lane.source, lane.first, lane.last) == (0, 1, 2) and lane.column != grid.columns[0]


def test_C6_layout_puts_what_reads_nothing_right_above_its_first_reader() -> None:
    grid = layered(range(6), [(0, 1), (1, 2), (2, 4), (3, 4), (4, 5)])
    assert grid.rows[3] == grid.rows[4] - 1 and not grid.lanes


def test_C6_layout_of_many_that_have_no_edges_is_no_wider_than_a_screen() -> None:
    grid = layered(range(50), [])
    check(grid, list(range(50)), [])
    assert max(grid.columns.values()) < WIDEST and max(grid.rows.values()) == 49 // WIDEST
