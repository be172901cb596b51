"""Module rows of the report: the paths that ran, as a tree, with self and total figures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mindtorch._ext import context
from mindtorch.profile.report.forecast import Spread
from mindtorch.profile.report.rows import CALLS, FORWARD, MODULE, NS, PHASE, SIG, exact, summed
from mindtorch.profile.report.times import seconds

if TYPE_CHECKING:
    from mindtorch.profile.report.forecast import Forecast
    from mindtorch.profile.report.module_names import Names
    from mindtorch.profile.report.recording import Recording


_SPREAD = ("predicted", "least", "squares", "low", "high")  # as the fields of a `Spread`
_BACKWARD = context.PHASES.index("backward")


def module_rows(
    seen: Recording, rows: Any, forecast: Forecast | None = None, share: float = 1.0
) -> list[dict[str, Any]]:
    """Pre-order rows, in the order of first calls in the run; the last row, path "", is the time outside every module.

    rows: the table of them. total = self + children, by path. peak_bytes: the most bytes live, in all of the program,
    while the module or one inside it ran. share: of the time of a call, what is the program's own.
    """
    entries, names, parameters = Counter(seen.stages[seen.reached].entries), seen.names, seen.parameters
    # What came before is the loop's, too: see `build`.
    first_batch = seen.reached == "main" and not (seen.warmup or seen.announced)
    if first_batch and "init" in seen.stages:
        there = {*entries, *rows[:, MODULE].tolist()}
        entries.update({path: n for path, n in seen.stages["init"].entries.items() if path in there})
    own = {**_own(seen, rows, forecast), "params": parameters.own, "trainable": parameters.own_trainable}
    calls = seen.call_ns
    children, shown = _tree(set(own["ns"]) | set(entries), set(own["params"]))
    order = _pre_order(children, _places(children, names))
    tree = _Tree(order)
    total = {name: tree.up(np.add, figures) for name, figures in own.items()}
    peaks = tree.up(np.maximum, seen.module_peaks)
    found: list[dict[str, Any]] = []
    for i, (path, depth) in enumerate(order):
        if path in shown:
            found.append({
                "path": names[path],
                "class": context.path_class(path),
                "depth": depth,
                "calls": entries.get(path, 0),
                "self_s": own["ns"].get(path, 0) / 1e9,
                "total_s": total["ns"][i] / 1e9,
                "self_flops": own["flops"].get(path, 0),
                "flops": total["flops"][i],
                "macs": total["macs"][i],
                "self_params": own["params"].get(path, 0),
                "params": total["params"][i],
                "trainable_params": total["trainable"][i],
                "forward_s": total["forward"][i] / 1e9,
                "backward_s": total["backward"][i] / 1e9,
                "call_s": seconds(calls.get(path, ()), share),
                "peak_bytes": peaks[i],
                "ops": total["ops"][i],
            })  # fmt: skip
            if forecast is not None:
                found[-1]["self_predicted_s"] = own["predicted"].get(path, 0.0)
                found[-1]["predicted_s"] = total["predicted"][i]
                found[-1].update(forecast.facts(Spread(*(total[name][i] for name in _SPREAD))))
    ns, flops = own["ns"].get(0, 0), own["flops"].get(0, 0)
    found.append({
        "path": "", "class": "", "depth": 0, "calls": 0, "self_s": ns / 1e9, "total_s": ns / 1e9,
        "self_flops": flops, "flops": flops, "macs": own["macs"].get(0, 0), "self_params": 0, "params": 0,
        "trainable_params": 0, "forward_s": own["forward"].get(0, 0) / 1e9,
        "backward_s": own["backward"].get(0, 0) / 1e9, "call_s": None,
        "peak_bytes": seen.module_peaks.get(0, 0), "ops": own["ops"].get(0, 0),
    })  # fmt: skip
    if forecast is not None:
        found[-1]["self_predicted_s"] = found[-1]["predicted_s"] = own["predicted"].get(0, 0.0)
        found[-1].update(forecast.facts(Spread(*(own[name].get(0, 0.0) for name in _SPREAD))))
    return found


def _pre_order(children: dict[int, list[int]], place: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
    """(path, depth). An explicit stack: a path may be deeper than Python's recursion limit."""
    order: list[tuple[int, int]] = []
    todo = [(0, -1)]
    while todo:
        path, depth = todo.pop()
        if depth >= 0:
            order.append((path, depth))
        todo.extend((child, depth + 1) for child in sorted(children[path], key=place.__getitem__, reverse=True))
    return order


def _own(seen: Recording, rows: Any, forecast: Forecast | None) -> dict[str, dict[int, Any]]:
    """{figure: {path id: of the module's own ops}}."""
    sigs, which = np.unique(rows[:, SIG].astype(np.int64), return_inverse=True)
    calls, paths, phases = rows[:, CALLS], rows[:, MODULE], rows[:, PHASE].astype(np.int64)
    costs = [seen.flops[sig] or (0, 0) for sig in sigs.tolist()]
    flops, macs = (exact([cost[i] for cost in costs], calls) for i in range(2))
    found = {
        "ns": summed(paths, rows[:, NS]),
        "ops": summed(paths, calls * (rows[:, SIG] != 0)),
        "forward": summed(paths, rows[:, NS] * np.isin(phases, FORWARD)),
        "backward": summed(paths, rows[:, NS] * (phases == _BACKWARD)),
        "flops": summed(paths, calls * flops[which]),
        "macs": summed(paths, calls * macs[which]),
    }
    if forecast is not None:
        each = [forecast.cost(sig) for sig in sigs.tolist()]
        seconds = calls.astype(float) * np.array([cost.seconds for cost in each])[which]
        if forecast.estimated:
            seconds = rows[:, NS].astype(float) / 1e9
        least = np.minimum(calls.astype(float) * np.array([cost.least for cost in each])[which], seconds)
        found["predicted"], found["least"] = summed(paths, seconds), summed(paths, least)
        found["squares"] = summed(paths, seconds**2)
        found["low"] = summed(paths, (seconds * np.array([cost.low for cost in each])[which]) ** 2)
        found["high"] = summed(paths, (seconds * np.array([cost.high for cost in each])[which]) ** 2)
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


def _places(children: dict[int, list[int]], names: Names) -> dict[int, tuple[int, int]]:
    """What sorts siblings as the run called them: a container, which is not called, as the first of what it holds."""
    place: dict[int, tuple[int, int]] = {}
    order = list(children[0])
    for path in order:  # grows: parents before their children
        order.extend(children.get(path, ()))
    for path in reversed(order):
        place[path] = min([names.place(path), *(place[child] for child in children.get(path, ()))])
    return place


class _Tree:
    """Paths in pre-order, each with its depth, to carry figures up to their parents."""

    def __init__(self, order: list[tuple[int, int]]) -> None:
        self._paths = [path for path, _ in order]
        index = {path: i for i, path in enumerate(self._paths)}
        parents = np.array([index.get(context.path_parent(path), -1) for path in self._paths], int)
        depths = np.array([depth for _, depth in order], int)
        by_depth = np.argsort(-depths, kind="stable")
        levels = np.split(by_depth, np.flatnonzero(np.diff(depths[by_depth])) + 1)
        self._levels = [(level, parents[level]) for level in levels if len(level) and depths[level[0]]]

    def up(self, join: Any, own: Mapping[int, Any]) -> list[Any]:
        """Of each path, the figures of its own and of all below it, joined."""
        values = [own.get(path, 0) for path in self._paths]
        fits = sum(map(abs, values)) < 1 << 62
        found = np.array(values, None if fits else object)
        for level, parents in self._levels:  # the deepest first
            join.at(found, parents, found[level])
        return found.tolist()
