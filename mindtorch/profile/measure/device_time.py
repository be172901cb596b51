"""Which op each instant of a GPU belongs to: sums over kernels, launches and what the host was at (SPEC C2).

An instant at which a kernel or a copy runs belongs to the op that launched it; where several run at once, to the one
that began first. At any other instant the GPU has nothing to do: it belongs to what the host is at. So the time of all
rows stays what it was, to the nanosecond. All that is needed is plain arrays; nothing here knows of torch or a GPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mindtorch.profile.report.device_work import DeviceUse

#: What the host was at: times are ns of one clock, `thread` numbers a timeline, `row` whatever the caller counts.
SPAN = np.dtype([("start", "i8"), ("ns", "i8"), ("row", "i8"), ("thread", "i8")])
#: A call that queues work. thread: the number of a timeline, `ANY` where it is none of them.
LAUNCH = np.dtype([("correlation", "i8"), ("at", "i8"), ("thread", "i8")])
#: Work on a device.
KERNEL = np.dtype(
    [("correlation", "i8"), ("start", "i8"), ("ns", "i8"), ("stream", "i8"), ("device", "i8"), ("copy", "?")]
)  # fmt: skip
ANY = -1


class Traced(NamedTuple):
    launches: Any  # of `LAUNCH`
    kernels: Any  # of `KERNEL`


class Attributed(NamedTuple):
    """moved: (row that the host was at, row whose kernel ran) → ns; device, kernels: of each row, ns of all its kernels
    and how many; hidden: of each row, ns of kernels that ran between the spans of the host, when it was at none;
    busy + idle is the time of the host's spans, instants that several threads share counted once."""

    moved: dict[tuple[int, int], int]
    device: dict[int, int]
    kernels: dict[int, int]
    uses: dict[int, DeviceUse]
    hidden: dict[int, int]
    busy: int
    idle: int
    lost: int  # kernels without a launch, or launched while nothing was watched: their time stays the host's


def owned(start: Any, ns: Any) -> tuple[Any, Any, Any]:
    """(order, begin, end): disjoint pieces in the order of time; ``order`` says whose. What began first keeps all."""
    order = np.lexsort((np.arange(len(start)), start))
    begin, end = start[order], (start + ns)[order]
    before = np.maximum.accumulate(end)
    begin[1:] = np.maximum(begin[1:], before[:-1])
    some = end > begin
    return order[some], begin[some], end[some]


def attribute(spans: Any, launches: Any, kernels: Any) -> Attributed:
    """Arrays of `SPAN`, `LAUNCH` and `KERNEL`, in any order."""
    at, by = launched(launches, kernels)
    of = _places(spans, at, by)  # index of the span that launched each kernel
    known = of >= 0
    rows = np.where(known, spans["row"][of], -1) if len(spans) else of
    device, counts = _sums(rows[known], kernels["ns"][known]), _sums(rows[known], np.ones(int(known.sum()), "i8"))
    whose, begin, end = owned(kernels["start"], kernels["ns"])
    host, from_, until = owned(spans["start"], spans["ns"])
    pieces, instants = _overlaps(begin, end, from_, until)
    a, b = spans["row"][host[pieces[1]]], rows[whose[pieces[0]]]
    moved: dict[tuple[int, int], int] = {}
    if (b >= 0).any():
        pairs, places = np.unique(np.stack([a, b])[:, b >= 0], axis=1, return_inverse=True)
        sums = np.zeros(pairs.shape[1], "i8")
        np.add.at(sums, places.reshape(-1), instants[b >= 0])
        moved = {(x, y): n for x, y, n in zip(*pairs.tolist(), sums.tolist(), strict=True) if x != y}
    between, covered = _overlaps(begin, end, until[:-1], from_[1:])
    behind = rows[whose[between[0]]]
    hidden = _sums(behind[(behind >= 0) & (covered > 0)], covered[(behind >= 0) & (covered > 0)])
    busy, whole = int(instants.sum()), int((until - from_).sum())
    uses = {
        int(number): _use(kernels[mine], at[mine], from_, until)
        for number in np.unique(kernels["device"])
        if (mine := kernels["device"] == number).any()
    }
    return Attributed(moved, device, counts, uses, hidden, busy, whole - busy, int((~known).sum()))


def _sums(keys: Any, amounts: Any) -> dict[int, int]:
    found, places = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(found), "i8")
    np.add.at(sums, places.reshape(-1), amounts)
    return dict(zip(found.tolist(), sums.tolist(), strict=True))


def launched(launches: Any, kernels: Any) -> tuple[Any, Any]:
    """When each kernel was launched, and by which thread; -1 where no launch has its correlation id.

    A launch of a graph has many kernels; of calls with one id (a graph's, and the driver's below it) the first counts.
    """
    order = np.lexsort((launches["at"], launches["correlation"]))
    sorted_ = launches[order]
    place = np.searchsorted(sorted_["correlation"], kernels["correlation"])
    inside = place < len(sorted_)
    at, by = np.full(len(kernels), -1, "i8"), np.full(len(kernels), ANY, "i8")
    hit = np.flatnonzero(inside)
    hit = hit[sorted_["correlation"][place[hit]] == kernels["correlation"][hit]]
    at[hit], by[hit] = sorted_["at"][place[hit]], sorted_["thread"][place[hit]]
    return at, by


def _places(spans: Any, at: Any, by: Any) -> Any:
    """The span in which each launch was: of its thread, the last that began before; -1 of what was before all of them.

    What comes right after a span, before the next one, is our own watching: nothing but the span can have launched it.
    """
    found = np.full(len(at), -1, "i8")
    for thread in np.unique(by):
        mine = np.flatnonzero((by == thread) & (at >= 0))
        of = np.arange(len(spans)) if thread == ANY else np.flatnonzero(spans["thread"] == thread)
        of = of[np.argsort(spans["start"][of], kind="stable")]
        place = np.searchsorted(spans["start"][of], at[mine], side="right") - 1
        found[mine[place >= 0]] = of[place[place >= 0]]
    return found


def _overlaps(begin: Any, end: Any, from_: Any, until: Any) -> tuple[tuple[Any, Any], Any]:
    """((index of a piece of the first list, of the second), ns that both have): each list is disjoint and in order."""
    first = np.searchsorted(until, begin, side="right")
    last = np.searchsorted(from_, end, side="left")
    count = np.maximum(last - first, 0)
    left = np.repeat(np.arange(len(begin)), count)
    right = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    ns = np.minimum(end[left], until[right]) - np.maximum(begin[left], from_[right])
    return (left, right), ns


def _use(kernels: Any, at: Any, from_: Any, until: Any) -> DeviceUse:
    """Of one device. Its idle time is that of the host's pieces, each from `from_` to `until`, in which it had none."""
    whose, begin, end = owned(kernels["start"], kernels["ns"])
    low, high = (int(from_[0]), int(until[-1])) if len(from_) else (0, 0)
    begin, end = np.clip(begin, low, high), np.clip(end, low, high)
    gap_from, gap_to = np.concatenate([[low], end]), np.concatenate([begin, [high]])
    # Until the launch of what ended the gap nothing was queued; what nobody launched is not known to be late.
    late = np.clip(np.concatenate([np.where(at[whose] >= 0, at[whose], low), [high]]), gap_from, gap_to)
    gaps = _within(gap_from, gap_to, from_, until)
    return DeviceUse(
        busy=int((end - begin).sum()), idle=int(gaps.sum()), starved=int(_within(gap_from, late, from_, until).sum()),
        longest=int(gaps.max()), kernels=int((~kernels["copy"]).sum()), copies=int(kernels["copy"].sum()),
        copying=int(kernels["ns"][kernels["copy"]].sum()), streams=set(kernels["stream"].tolist()),
    )  # fmt: skip


def _within(begin: Any, end: Any, from_: Any, until: Any) -> Any:
    """Of each piece of the first list, the ns that pieces of the second have, too."""
    (which, _), ns = _overlaps(begin, end, from_, until)
    found = np.zeros(len(begin), "i8")
    np.add.at(found, which, np.maximum(ns, 0))
    return found
