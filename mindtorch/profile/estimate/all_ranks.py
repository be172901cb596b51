"""Every rank of an estimated cluster: those that may differ are run, one at a time, equal ones are taken from others.

The groups that a rank communicates in say how ranks are laid out: a mesh of data, pipeline and tensor parallel ranks,
say. Along each of its dimensions the first two, the middle and the last are run. Where two neighbours of these are
equal, all between them are taken to be; where they are not, the one in the middle is run too, and so on.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from mindtorch.profile.estimate.other_ranks import forked, kept

__all__ = ["every_rank", "layout", "spans", "summary", "worth_showing"]

Summary = dict[str, Any]
_LAID_OUT = ("groups", "strides")


def summary(report: dict[str, Any]) -> Summary:
    """What tells ranks apart."""
    totals, memory = report["totals"], report.get("memory") or {}
    return {
        "peak_bytes": memory.get("peak_bytes", totals["peak_bytes"]),
        "categories": memory.get("categories"),
        "fits": memory.get("fits"),
        "time_s": totals["time_s"],
        "flops": totals["flops"],
        "ops": totals["ops"],
        "exposed_s": report["cluster"]["exposed_s"],
        "communication_s": report["cluster"]["communication_s"],
        "collectives": report["cluster"]["collectives"],
        "exit_code": report["exit_code"],
    }


def every_rank(size: int, run: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each rank: its `summary`, ``rank``, and ``ran_as``, whose run that was.

    run: the report of a rank; it is called in processes of their own, forked off this one.
    """
    found: dict[int, Summary] = {}
    with kept(), tempfile.TemporaryDirectory(prefix="genie-ranks-") as folder:
        first = _run(0, run, folder)
        groups, strides = (first.pop(name, []) for name in _LAID_OUT)
        found[0] = first

        def known(rank: int) -> Summary:
            if rank not in found:
                found[rank] = _run(rank, run, folder)
                for name in _LAID_OUT:
                    found[rank].pop(name, None)
            return found[rank]

        if first["exit_code"] is None or first["exit_code"]:
            return [{"rank": 0, "ran_as": 0, **first}]
        sources = _solve(0, list(reversed(layout(size, groups, strides))), known)
        return [{"rank": rank, "ran_as": source, **found[source]} for rank, source in sorted(sources.items())]


def _run(rank: int, run: Callable[[int], dict[str, Any]], folder: str) -> Summary:
    path = os.path.join(folder, str(rank))

    def body() -> None:
        report = run(rank)
        with open(path, "w") as file:
            shown = {name: report["cluster"][name] for name in _LAID_OUT}
            json.dump({**summary(report), **shown}, file)

    sys.stdout.flush()
    sys.stderr.flush()
    os.waitpid(forked(body), 0)
    if not os.path.exists(path):
        return {"exit_code": None, "peak_bytes": 0}
    with open(path) as file:
        made: Summary = json.load(file)
    return made


def layout(size: int, groups: Sequence[Sequence[int]], strides: Sequence[int] = ()) -> list[tuple[int, int]]:
    """(stride, size) of the dimensions that these groups of ranks show, innermost first.

    strides: how far away from each other ranks are that send to each other.
    """
    cuts = {1, size, *strides}
    for ranks in groups:
        if len(ranks) > 1:
            stride = abs(ranks[1] - ranks[0])
            cuts |= {stride, stride * len(ranks)}
    chain = [1]
    for cut in sorted(cuts):
        if cut > chain[-1] and cut % chain[-1] == 0 and size % cut == 0:
            chain.append(cut)
    return [(inner, outer // inner) for inner, outer in itertools.pairwise(chain)]


def _solve(begin: int, dimensions: list[tuple[int, int]], known: Callable[[int], Summary]) -> dict[int, int]:
    """{rank: the rank whose run it is taken from} of those from `begin` on, in these dimensions, outermost first."""
    if not dimensions:
        known(begin)
        return {begin: begin}
    (stride, size), inner = dimensions[0], dimensions[1:]
    slices: dict[int, dict[int, int]] = {}

    def at(place: int) -> dict[int, int]:
        if place not in slices:
            slices[place] = _solve(begin + place * stride, inner, known)
        return slices[place]

    def alike(one: int, other: int) -> bool:
        shift = (other - one) * stride
        return all(known(source) == known(at(other)[rank + shift]) for rank, source in at(one).items())

    def between(low: int, high: int) -> None:
        if high - low < 2:
            return
        if alike(low, high):
            for place in range(low + 1, high):
                slices[place] = {rank + (place - low) * stride: source for rank, source in at(low).items()}
            return
        middle = (low + high) // 2
        at(middle)
        between(low, middle)
        between(middle, high)

    points = sorted({0, min(1, size - 1), size // 2, size - 1})
    for place in points:
        at(place)
    for low, high in itertools.pairwise(points):
        between(low, high)
    return {rank: source for place in range(size) for rank, source in at(place).items()}


def worth_showing(rows: Sequence[dict[str, Any]]) -> int:
    """Of these rows of `every_rank`, the rank that a report should be of: one that failed, else which holds most."""
    failed = [row for row in rows if row["exit_code"] != 0]
    return int(failed[0]["rank"] if failed else max(rows, key=lambda row: row["peak_bytes"])["rank"])


def spans(rows: Sequence[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Equal ranks together, as ("0, 2-5", one of them), in the order of their first."""
    groups: dict[str, list[int]] = {}
    one: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = json.dumps({k: v for k, v in row.items() if k not in ("rank", "ran_as")}, sort_keys=True)
        groups.setdefault(key, []).append(row["rank"])
        one.setdefault(key, row)
    return [(_text(ranks), one[key]) for key, ranks in groups.items()]


def _text(ranks: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
