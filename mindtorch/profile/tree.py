"""Module rows of the report: the paths that ran, as a tree, with self and total figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from mindtorch._ext import context

if TYPE_CHECKING:
    from mindtorch.profile.collect import Profiler
    from mindtorch.profile.forecast import Forecast


_Number = TypeVar("_Number", int, float)


def module_rows(
    profiler: Profiler, main: str, rows: list[tuple[int, ...]], costs: list[Any], forecast: Forecast | None = None
) -> list[dict[str, Any]]:
    """Pre-order rows, in order of first call; the last row, path "", is the time outside every module.

    total = self + children, by path. peak_bytes: the most bytes live, in all of the program, while the module or
    one inside it ran.
    """
    self_ns: dict[int, int] = defaultdict(int)
    self_flops: dict[int, int] = defaultdict(int)
    self_macs: dict[int, int] = defaultdict(int)
    self_ops: dict[int, int] = defaultdict(int)
    self_predicted: dict[int, float] = defaultdict(float)
    if forecast is not None:
        for row in rows:
            self_predicted[row[1]] += forecast.seconds([row])
    for (sig, module, _, _, calls, ns, _), cost in zip(rows, costs):
        self_ns[module] += ns
        if sig:
            self_ops[module] += calls
        if cost:
            self_flops[module] += calls * cost[0]
            self_macs[module] += calls * cost[1]
    entries = profiler.parts[main][2]
    params = profiler.book.own()
    children, shown = _tree(set(self_ns) | set(entries), set(params))
    found: list[dict[str, Any]] = []

    # An explicit stack: a path may be deeper than Python's recursion limit.
    order: list[tuple[int, int]] = []
    todo = [(root, 0) for root in sorted(children[0], reverse=True)]
    while todo:
        path, depth = todo.pop()
        order.append((path, depth))
        todo.extend((child, depth + 1) for child in sorted(children[path], reverse=True))
    totals = {
        "total_s": _inclusive(order, self_ns), "flops": _inclusive(order, self_flops),
        "macs": _inclusive(order, self_macs), "ops": _inclusive(order, self_ops),
        "params": _inclusive(order, params),
    }  # fmt: skip
    peaks = _highest(order, profiler.peaks)
    for path, depth in order:
        if path in shown:
            found.append({
                "path": context.module_path(path),
                "class": context.path_class(path),
                "depth": depth,
                "calls": entries.get(path, 0),
                "self_s": self_ns.get(path, 0) / 1e9,
                "total_s": totals["total_s"][path] / 1e9,
                "self_flops": self_flops.get(path, 0),
                "flops": totals["flops"][path],
                "macs": totals["macs"][path],
                "self_params": params.get(path, 0),
                "params": totals["params"][path],
                "peak_bytes": peaks[path],
                "ops": totals["ops"][path],
            })  # fmt: skip
    found.append({
        "path": "", "class": "", "depth": 0, "calls": 0, "self_s": self_ns[0] / 1e9, "total_s": self_ns[0] / 1e9,
        "self_flops": self_flops[0], "flops": self_flops[0], "macs": self_macs[0], "self_params": 0, "params": 0,
        "peak_bytes": profiler.peaks.get(0, 0), "ops": self_ops[0],
    })  # fmt: skip
    if forecast is not None:
        predicted = _inclusive(order, self_predicted)
        for entry, path in zip(found, [*(path for path, _ in order if path in shown), 0]):
            entry["self_predicted_s"] = self_predicted[path]
            entry["predicted_s"] = predicted[path] if path else self_predicted[0]
    return found


def _tree(ran: set[int], owners: set[int]) -> tuple[dict[int, list[int]], set[int]]:
    """(children by parent, paths to show): what ran and what leads to it; parameter owners are summed, not shown."""
    children: dict[int, list[int]] = defaultdict(list)
    shown: set[int] = set()
    known: set[int] = {0}
    for group, show in ((ran, True), (owners, False)):
        for path in group:
            while path:
                if show:
                    shown.add(path)
                if path not in known:
                    known.add(path)
                    children[context.path_parent(path)].append(path)
                elif not show or (path in shown and context.path_parent(path) in shown):
                    break
                path = context.path_parent(path)
    return children, shown


def _inclusive(order: list[tuple[int, int]], own: Mapping[int, _Number]) -> dict[int, _Number]:
    total: dict[int, Any] = {path: own.get(path, 0) for path, _ in order}
    for path, _ in reversed(order):  # children come after their parents
        parent = context.path_parent(path)
        if parent:
            total[parent] += total[path]
    return total


def _highest(order: list[tuple[int, int]], own: dict[int, int]) -> dict[int, int]:
    highest = {path: own.get(path, 0) for path, _ in order}
    for path, _ in reversed(order):
        parent = context.path_parent(path)
        if parent:
            highest[parent] = max(highest[parent], highest[path])
    return highest
