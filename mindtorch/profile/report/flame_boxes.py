"""Boxes of a flame graph in a page, in pre-order, and as many of them as a page has room for.

A tree in pre-order is the list of its depths; beside it lie the frames, and the weights of each box that are in no box
within it: a tuple of whole numbers, as long for all.
"""

from __future__ import annotations

from collections.abc import Sequence

#: What a flame graph has at most, so that a page stays small whatever ran.
BOXES = 5000
_TEXT = 240  # characters of a line of code, of a name

Weights = tuple[int, ...]


def short(text: str) -> str:
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"


def parents(depths: Sequence[int]) -> list[int]:
    """Of each box; -1 of those that are in none."""
    trail: list[int] = []
    found = []
    for i, depth in enumerate(depths):
        del trail[depth:]
        found.append(trail[-1] if trail else -1)
        trail.append(i)
    return found


def totals(own: Sequence[Weights], inside: Sequence[int]) -> list[Weights]:
    """With all that is within each. inside: `parents`."""
    found = [list(weights) for weights in own]
    for i in range(len(found) - 1, -1, -1):
        if inside[i] >= 0:
            for k, weight in enumerate(found[i]):
                found[inside[i]][k] += weight
    return [tuple(weights) for weights in found]


def heaviest(depths: Sequence[int], of: Sequence[tuple[float, ...]], most: int) -> list[bool]:
    """Which `most` nodes of a tree in pre-order are kept: the heaviest, each with all that it is in."""
    if len(depths) <= most:
        return [True] * len(depths)
    order = sorted(range(len(depths)), key=lambda i: (of[i], -i), reverse=True)
    kept = [False] * len(depths)
    for i in order[:most]:
        kept[i] = True
    trail: list[bool] = []
    for i, depth in enumerate(depths):  # nothing hangs in the air, whatever rounding did to the sums
        del trail[depth:]
        kept[i] = kept[i] and (not trail or trail[-1])
        trail.append(kept[i])
    return kept


def kept(depths: list[int], frames: list[int], own: list[Weights]) -> list[tuple[int, int, Weights]]:
    """(depth, frame, weights) of `BOXES` boxes at most: what is left out of one is a box at its end, of frame -1."""
    above = parents(depths)
    whole = totals(own, above)
    keep = heaviest(depths, whole, BOXES)
    left: dict[int, list[int]] = {}
    children: dict[int, list[int]] = {}
    for i, parent in enumerate(above):
        if keep[i]:
            children.setdefault(parent, []).append(i)
        elif parent < 0 or keep[parent]:
            entry = left.setdefault(parent, [0] * len(own[i]))
            for k, weight in enumerate(whole[i]):
                entry[k] += weight
    found: list[tuple[int, int, Weights]] = []
    todo = [*reversed(children.get(-1, ()))]
    if -1 in left:
        todo.insert(0, ~len(depths))  # of the root: the last
    while todo:
        i = todo.pop()
        if i < 0:  # the box at the end of another one
            of = ~i if ~i < len(depths) else -1
            found.append((depths[of] + 1 if of >= 0 else 0, -1, tuple(left[of])))
            continue
        found.append((depths[i], frames[i], own[i]))
        if i in left:
            todo.append(~i)
        todo.extend(reversed(children.get(i, ())))
    return found


def numbered(found: list[tuple[int, int, Weights]]) -> tuple[list[int], dict[int, int]]:
    """(the frames that are used; the number of each among them, -1 of -1)"""
    used = sorted({frame for _, frame, _ in found if frame >= 0})
    return used, {frame: i for i, frame in enumerate(used)} | {-1: -1}
