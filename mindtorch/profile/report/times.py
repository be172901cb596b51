"""How long single iterations and single calls of modules took, as far as the log of events reaches.

Times are those of the run, less what went into loading modules and compiling. Recording is taken off each iteration as
it was measured there, off each call by its share in the whole.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mindtorch._ext import timeline
from mindtorch._ext.timeline import ENTER, EXIT

EVENT = np.dtype(timeline.EVENT)


class Apart(list[tuple[int, int]]):
    """(when, ns) of what is none of the program's own time, up to then."""

    def __init__(self) -> None:
        super().__init__()
        self._sum = 0

    def note(self, now: int, total: int) -> None:
        """`total` ns until now."""
        if total > self._sum:
            self.append((now, total - self._sum))
            self._sum = total


def spread(times: Sequence[float]) -> dict[str, float] | None:
    """The least, the middle and the most of them; None of none."""
    if not times:
        return None
    from statistics import median  # with decimal and fractions: as long to import as the rest of this module

    return {"min": min(times), "median": float(median(times)), "max": max(times)}


def apart_from(away: Iterable[tuple[int, int]]) -> Callable[[int, int], int]:
    """Nanoseconds from one time until another, less what went elsewhere: (when that ended, nanoseconds)."""
    ended, spent = [], [0]
    for at, ns in sorted(away):
        ended.append(at)
        spent.append(spent[-1] + ns)

    def between(start: int, end: int) -> int:
        return max(0, end - start - (spent[bisect_right(ended, end)] - spent[bisect_right(ended, start)]))

    return between


def calls(events: bytes, since: int, away: Iterable[tuple[int, int]] = ()) -> dict[int, list[int]]:
    """{path id: nanoseconds of each of its calls} from `since` on, the modules called within included."""
    between = apart_from(away)
    table = np.frombuffer(events, EVENT)
    table = table[((table["kind"] == ENTER) | (table["kind"] == EXIT)) & (table["start"] >= since)]
    found: dict[int, list[int]] = {}
    running: dict[int, list[tuple[int, int]]] = {}  # by thread: (path, start), the innermost last
    columns = (table[name].tolist() for name in ("kind", "thread", "module", "start"))
    for kind, thread, module, start in zip(*columns, strict=True):
        stack = running.setdefault(thread, [])
        if kind == ENTER:
            stack.append((module, start))
        elif stack and stack[-1][0] == module:
            found.setdefault(module, []).append(between(stack.pop()[1], start))
    return found


def spans(ends: Sequence[int], began: int) -> list[tuple[int, int]]:
    """(start, end) of the iterations that ended after `began`."""
    return list(itertools.pairwise([began, *(end for end in ends if end > began)]))


def steps(iterations: Iterable[tuple[int, int]], away: Iterable[tuple[int, int]] = ()) -> list[int]:
    """Nanoseconds of each iteration (start, end)."""
    return list(itertools.starmap(apart_from(away), iterations))


def running(
    iterations: Iterable[tuple[int, int]], away: Iterable[tuple[int, int]], queued: Iterable[tuple[int, int]]
) -> list[int]:
    """`steps`, less the share of each iteration that was spent waiting for a processor: of what is `away`, too."""
    whole, free = apart_from(()), apart_from(queued)
    found = []
    for (start, end), ns in zip(spans := list(iterations), steps(spans, away), strict=True):
        found.append(ns * free(start, end) // max(whole(start, end), 1))
    return found


def share(start: int, end: int, of: Iterable[tuple[int, int]]) -> float:
    """The part of the time from `start` to `end` that these took."""
    return 1 - apart_from(of)(start, end) / (end - start) if end > start else 0.0


def quartiles(table: Any) -> Any:
    """The first quartile, the median and the third of each row, as an array of shape (3, rows)."""
    return np.quantile(np.asarray(table, float), (0.25, 0.5, 0.75), axis=-1)


def seconds(ns: Sequence[int], share: float = 1.0) -> dict[str, Any] | None:
    """`spread` in seconds, of which `share` is the program's own."""
    return spread([value * share / 1e9 for value in ns])
