"""How long a program waited for values that it read, and where: what a run far away may be slow for (SPEC C9)."""

from __future__ import annotations

import time

from ..._ext import context as _context
from .triggers import MAX_PLACES, OTHER_PLACES

__all__ = ["note", "places"]

_waits: dict[int, list[int]] = {}  # location id -> reads there, ns that they took


def note(begun: int) -> None:
    """The program has waited for a value on its current line, since ``begun`` by ``time.perf_counter_ns``."""
    place = _context.get_location()
    if place not in _waits and len(_waits) >= MAX_PLACES:
        place = OTHER_PLACES
    found = _waits.setdefault(place, [0, 0])
    found[0] += 1
    found[1] += time.perf_counter_ns() - begun


def places() -> list[tuple[tuple[str, int] | None, int, float]]:
    """Where the program waited: (file and line, reads there, seconds that they took), the longest first. None: of no
    line that is known."""
    rows = []
    for place, (count, ns) in list(_waits.items()):
        where = None if place == OTHER_PLACES else _context.location(place)
        rows.append((None if where is None else where[:2], count, ns / 1e9))
    return sorted(rows, key=lambda row: -row[2])
