"""When an estimated rank communicates, and how much of that its computation hides (SPEC C4).

Two streams: computation, one operation after another, and collectives, one after another beside it. A collective begins
when the program comes to it and the one before has ended; the program goes on, unless it waits for it at once, and
stops where it waits until that one has ended. What it stops for is exposed. Ranks are taken to come to a collective at
the same time: what the slowest makes others wait for is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from mindtorch.base.clusters import Cluster
from mindtorch.profile.cost.collectives import POINT_TO_POINT, Links
from mindtorch.profile.cost.work import Work
from mindtorch.profile.estimate.exchanged import Call, Event
from mindtorch.profile.report.recording import furthest, of_the_loop

__all__ = [
    "Timed", "before_each", "facts", "mean_exposed", "of_reached", "op_name", "rows", "seconds_of", "simulate",
    "waited",
]  # fmt: skip


class Timed(NamedTuple):
    """A collective: what it takes, and for how much of that the program stood still."""

    position: int
    call: Call
    seconds: float
    exposed: float


def seconds_of(call: Call, links: Links | None, cluster: Cluster) -> float:
    """What the collective takes."""
    if links is None:
        return 0.0
    ranks = len(set(call.ranks)) if call.kind in POINT_TO_POINT else len(call.ranks)
    return links.seconds(call.kind, call.nbytes, ranks, cluster.machines_of(call.ranks))


def simulate(calls: Sequence[Call], events: Sequence[Event], computed: Any,
             seconds: Callable[[Call], float]) -> list[Timed]:  # fmt: skip
    """Every collective, by number. computed: seconds of computation before each position of the log of calls."""
    takes = [seconds(call) for call in calls]
    ends = [0.0] * len(calls)
    exposed = [0.0] * len(calls)
    at = [0] * len(calls)
    stalled = free = 0.0
    for event in events:
        now = float(computed[min(event.position, len(computed) - 1)]) + stalled
        if not event.waits:
            at[event.number] = event.position
            free = ends[event.number] = max(now, free) + takes[event.number]
        elif ends[event.number] > now:
            stop = ends[event.number] - now
            stalled += stop
            # Of what is waited for, this one is the last: those before it that nobody has waited for yet are in it.
            for number in range(event.number, -1, -1):
                part = min(stop, takes[number] - exposed[number])
                exposed[number] += part
                stop -= part
                if stop <= 0:
                    break
    return [Timed(*each) for each in zip(at, calls, takes, exposed, strict=True)]


class _Placed(Protocol):
    """What has a position in the log of calls."""

    @property
    def position(self) -> int: ...


_T = TypeVar("_T", bound=_Placed)


def of_reached(
    timed: Sequence[_T], calls: Any, stretches: Mapping[str, Sequence[tuple[int, int]]], announced: bool
) -> list[_T]:
    """Those of the stage that the report is about, which has what its tables have: also of its first batch what came
    before the first call of a model. stretches: of each stage, positions in the log of calls, from and until.
    """
    reached = furthest(stretches)
    if reached is None:
        return []
    inside = np.zeros(len(calls) + 1, bool)  # a log that was stopped has not the last
    own = np.zeros(len(calls) + 1, bool)  # a line of the loop may do nothing else
    own[[min(each.position, len(calls)) for each in timed]] = True
    locations = {}
    for stage, parts in stretches.items():
        locations[stage] = np.concatenate(
            [calls[first:last]["location"][(calls[first:last]["sig"] != 0) | own[first:last]] for first, last in parts]
        )
    for first, last in stretches[reached]:
        inside[first:last] = True
    begins, lines = of_the_loop(locations, announced)
    for first, last in stretches.get("init", ()) if begins == reached else ():
        inside[first:last] |= np.isin(calls[first:last]["location"], lines)
    return [each for each in timed if inside[min(each.position, len(calls))]]


def rows(timed: Sequence[Timed], cluster: Cluster) -> list[dict[str, Any]]:
    """By kind and group size: how often, bytes, seconds, and those of them that are exposed; longest first."""
    table: dict[tuple[str, int, int], list[Timed]] = {}
    for each in timed:
        size = len(each.call.ranks)
        table.setdefault((each.call.kind, size, cluster.machines_of(each.call.ranks)), []).append(each)
    found = [
        {
            "kind": kind,
            "ranks": size,
            "machines": machines,
            "count": len(them),
            "bytes": sum(each.call.nbytes for each in them),
            "time_s": sum(each.seconds for each in them),
            "exposed_s": sum(each.exposed for each in them),
            "overlapped_s": sum(each.seconds - each.exposed for each in them),
        }
        for (kind, size, machines), them in table.items()
    ]
    return sorted(found, key=lambda row: (-row["time_s"], row["kind"]))


def mean_exposed(timed: Sequence[Timed]) -> dict[Call, float]:
    """By distinct collective: seconds of a call that are exposed, on average."""
    found: dict[Call, list[float]] = {}
    for each in timed:
        found.setdefault(each.call, []).append(each.exposed)
    return {call: sum(times) / len(times) for call, times in found.items()}


def op_name(call: Call) -> str:
    """Under which the op table has it."""
    return f"c10d::{call.kind}"


def waited(call: Call, exposed: float) -> Work:
    """What the tables know of one: the time that the program waits for it."""
    return Work(0, 0, 0, 0, "float32", "communication", op_name(call), seconds=exposed)


def facts(timed: Sequence[Timed], cluster: Cluster, links: Links | None, grouped: bool) -> dict[str, Any]:
    """What the report says of the rank and of its collectives. grouped: has the program made a process group?"""
    return {
        "process_group": grouped,
        "rank": cluster.rank,
        "world_size": cluster.size,
        "machines": cluster.machines,
        "per_machine": cluster.per_machine,
        "network_bytes_per_s": None if links is None else links.network,
        "link_bytes_per_s": None if links is None else links.link,
        "links_assumed": links is not None and links.assumed,
        "links_as": None if links is None else links.measured,
        "links_fitted": links is not None and links.own,
        "communication_s": sum(each.seconds for each in timed),
        "exposed_s": sum(each.exposed for each in timed),
        "collectives": rows(timed, cluster),
        "groups": sorted({each.call.ranks for each in timed if each.call.kind not in POINT_TO_POINT}),
        "strides": sorted({abs(a - b) for a, b in (t.call.ranks for t in timed if t.call.kind in POINT_TO_POINT)}),
    }


def before_each(seconds: Any) -> Any:
    """Seconds of computation before each call of a log, and after the last."""
    return np.concatenate([[0.0], np.cumsum(seconds)])
