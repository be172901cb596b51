"""The graph as a picture: SVG, in the colours of the system's theme, of the boxes that `boxes` opens."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..base.words import visible
from .boxes import IN, OUT, Box, pre_order
from .graph import ComputationGraph
from .layered import Grid, layered
from .picture import shown

_CHARACTER, _LINE = 6.7, 15  # of the font, at most
_PAD, _ACROSS, _DOWN, _LANE, _DOT = 8, 18, 26, 12, 3
_STYLE = """
text { font: 11px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1b1f24; white-space: pre; }
text.name { font-weight: 600; } text.facts { fill: #59616b; } text.pattern { fill: #5b2a9d; }
svg { background: #ffffff; }
rect { fill: #ffffff; stroke: #b3bac3; rx: 4px; }
.graph > rect { fill: none; }
.phase > rect { fill: #f5f6f8; stroke: none; } .module > rect { fill: #eceff3; } .op > rect { stroke: #d8dce1; }
.pattern > rect { fill: #eee6fb; stroke: #9a79cf; } .these > rect, .initialization > rect { stroke-dasharray: 4 3; }
.found > rect { stroke: #0b57b7; stroke-width: 2; }
path { fill: none; stroke: #6b7480; } marker path, circle { fill: #6b7480; stroke: none; }
@media (prefers-color-scheme: dark) {
  text { fill: #e7eaee; } text.facts { fill: #a0a9b4; } text.pattern { fill: #cdb4ff; } svg { background: #14171b; }
  rect { fill: #14171b; stroke: #4a535e; } .graph > rect { fill: none; }
  .phase > rect { fill: #1a1e23; } .module > rect { fill: #242a31; }
  .op > rect { stroke: #343b44; } .pattern > rect { fill: #2c2340; stroke: #7a5fb0; } .found > rect { stroke: #8ab8ff; }
  path { stroke: #8b95a1; } marker path, circle { fill: #8b95a1; }
}
"""
_TIP = """<marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" markerHeight="6" orient="auto">
<path d="M0 0L6 3L0 6Z"/></marker>"""


class _Level(NamedTuple):
    """What is in an open box: of IN, the children, OUT, in this order, where each lies."""

    grid: Grid
    edges: list[tuple[int, int]]
    middles: list[float]  # of columns
    tops: list[float]  # of rows
    bottoms: list[float]
    width: float
    height: float


def grid_of(box: Box) -> tuple[Grid, list[tuple[int, int]]]:
    """Where its children lie, and its edges, by number: 0 is what comes from outside, n + 1 what goes there."""
    numbers = range(1, len(box.children) + 1)
    if box.kind in ("all", "graph"):  # phases, or graphs, side by side
        return Grid(dict.fromkeys(numbers, 0), {n: n - 1 for n in numbers}, []), []
    ends = {IN: 0, OUT: len(numbers) + 1}
    edges = sorted((ends.get(a, a + 1), ends.get(b, b + 1)) for a, b in box.edges)
    used = {n for edge in edges for n in edge}
    nodes = [n for n in range(ends[OUT] + 1) if n in used or n in numbers]
    return layered(nodes, edges, tuple(ends.values())), edges


def to_svg(
    graph: ComputationGraph, *, title: str = "", beside: Sequence[tuple[str, ComputationGraph]] = (), **options: Any
) -> str:
    """See `mindtorch.graph.picture.shown` for what is drawn."""
    root, heads = shown(graph, title, beside, **options)
    picture = _Picture(root)
    width, height = picture.sizes[root]
    above = [
        f'<text class="facts" x="{_PAD}" y="{_LINE * (i + 1)}">{html.escape(line)}</text>'
        for i, line in enumerate(heads)
    ]
    width = max(width, max(map(_wide, heads)) + 2 * _PAD)
    height += _LINE * len(above)
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<!-- genie graph -->\n<style>{_STYLE}</style>\n{_TIP}'
    return "\n".join([head, *above, *picture.drawn(root, _LINE * len(above)), "</svg>\n"])


class _Picture:
    def __init__(self, root: Box) -> None:
        self.levels: dict[Box, _Level] = {}
        self.sizes: dict[Box, tuple[float, float]] = {}
        for box in reversed(pre_order(root)):
            if not all(up.open for up in box.above()):
                continue
            lines = [] if box is root else box.lines()
            width = max(map(_wide, lines), default=0.0)
            height = float(len(lines) * _LINE)
            if box.open:
                level = self.levels[box] = self._level(box, height + _PAD * (2 if lines else 1))
                width, height = max(width, level.width), level.height - 2 * _PAD
            self.sizes[box] = width + 2 * _PAD, height + 2 * _PAD

    def _level(self, box: Box, top: float) -> _Level:
        grid, edges = grid_of(box)
        widths = [float(_LANE)] * (1 + max([*grid.columns.values(), *(lane.column for lane in grid.lanes)]))
        heights = [0.0] * (1 + max(grid.rows.values()))
        for number, row in grid.rows.items():
            width, height = self._size(box, number)
            widths[grid.columns[number]] = max(widths[grid.columns[number]], width)
            heights[row] = max(heights[row], height)
        middles: list[float] = []
        x = 0.0
        for width in widths:
            middles.append(x + width / 2)
            x += width + _ACROSS
        tops: list[float] = []
        y = top
        for height in heights:
            tops.append(y)
            y += height + _DOWN
        bottoms = [y + height for y, height in zip(tops, heights)]
        return _Level(grid, edges, middles, tops, bottoms, x - _ACROSS, bottoms[-1] + _PAD)

    def _size(self, box: Box, number: int) -> tuple[float, float]:
        return self.sizes[box.children[number - 1]] if 0 < number <= len(box.children) else (2 * _DOT, 2 * _DOT)

    def drawn(self, root: Box, top: float) -> Iterator[str]:
        """Groups within groups, as the boxes are; a box before what is in it."""
        todo: list[tuple[Box | None, float, float]] = [(root, 0, top)]
        while todo:
            box, x, y = todo.pop()
            if box is None:
                yield "</g>"
                continue
            width, height = self.sizes[box]
            marks = [box.kind, *(["pattern"] if box.pattern else []), *(["found"] if box.found else [])]
            yield f'<g class="{" ".join(dict.fromkeys(marks))}">'
            if box is not root:
                yield from self._label(box, x, y, width, height)
            todo.append((None, 0, 0))
            level = self.levels.get(box)
            if level is None:
                continue
            left = x + (width - level.width) / 2
            yield from self._edges(box, level, left, y)
            for number, child in reversed(list(enumerate(box.children, 1))):
                row, column = level.grid.rows[number], level.grid.columns[number]
                todo.append((child, left + level.middles[column] - self.sizes[child][0] / 2, y + level.tops[row]))

    @staticmethod
    def _label(box: Box, x: float, y: float, width: float, height: float) -> Iterator[str]:
        if box.about:
            yield f"<title>{_text(box.about)}</title>"
        yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
        for i, line in enumerate(box.lines()):
            plain = box.pattern is not None and i == (0 if box.kind == "pattern" else 1)
            mark = "pattern" if plain else "facts" if i else "name"
            yield f'<text class="{mark}" x="{x + _PAD:.1f}" y="{y + _PAD + 11 + i * _LINE:.1f}">{_text(line)}</text>'

    def _edges(self, box: Box, level: _Level, left: float, top: float) -> Iterator[str]:
        grid = level.grid
        lanes = {lane.source: left + level.middles[lane.column] for lane in grid.lanes}
        for number in grid.rows.keys() & {0, len(box.children) + 1}:
            x, y = left + level.middles[grid.columns[number]], top + level.tops[grid.rows[number]]
            yield f'<circle cx="{x:.1f}" cy="{y + _DOT:.1f}" r="{_DOT}"/>'
        for source, target in level.edges:
            row, below = grid.rows[source], grid.rows[target]
            x, end = (left + level.middles[grid.columns[n]] for n in (source, target))
            steps = [f"M{x:.1f} {top + level.tops[row] + self._size(box, source)[1]:.1f}"]
            if below > row + 1:
                steps += [self._bend(x, lanes[source], top, level, row), f"V{top + level.bottoms[below - 1]:.1f}"]
                x = lanes[source]
            steps.append(self._bend(x, end, top, level, below - 1))
            yield f'<path d="{"".join(steps)}" marker-end="url(#tip)"/>'

    @staticmethod
    def _bend(x: float, end: float, top: float, level: _Level, row: int) -> str:
        """From below a row to the next one."""
        y, down = top + level.bottoms[row], top + level.tops[row + 1]
        middle = (y + down) / 2
        return f"V{y:.1f}C{x:.1f} {middle:.1f} {end:.1f} {middle:.1f} {end:.1f} {down:.1f}"


def _wide(line: str) -> float:
    """How wide it is at most: some characters take the room of two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line) * _CHARACTER


def _text(text: str) -> str:
    return html.escape(visible(text, "\n"), quote=False)
