"""What several workers compute, each for itself, in place of a transfer (SPEC R5).

A value that another worker reads crosses, unless it is made of little: of nothing (a causal mask, positions), or of
storages that are small beside it and that nothing writes (the mask of a batch's padding). Then all calls that make it
run there, too, if that takes less time than the transfer. The bits are the same: these calls (`passes.recompute`)
depend on their arguments alone, and both workers have the same processor.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

from .storage_homes import Record

__all__ = ["Repeatable", "repeated"]

_MOST = 64  # calls that make a value
_LITTLE = 8  # times as large as all that it is made of is the value, at least
_CALL, _TOUCHED = (
    2e-5,
    1.5e-10,
)  # seconds for a call, and for each byte that it reads or makes: as one core takes for sines


class Repeatable(NamedTuple):
    """positions: of the records that may run on several workers; message, byte: seconds for what moves; alike: what
    workers have in common that compute the same bits; None: all do."""

    positions: Collection[int]
    message: float
    byte: float
    alike: Sequence[Hashable] | None = None


class _Made(NamedTuple):
    """How a storage is made. calls: positions, the last of which makes it; of: what they read that was there before."""

    calls: frozenset[int]
    of: frozenset[int]
    last: int


def repeated(
    records: Sequence[Record], places: Sequence[int], sizes: Mapping[int, int],
    there: Mapping[int, Collection[int]], can: Repeatable,
) -> dict[int, set[int]]:  # fmt: skip
    """Position of a record -> the workers that run it besides its own. there: workers of storages that are there
    before, and have homes."""
    made, seconds, readers = _made(records, places, sizes, can.positions)
    found: dict[int, set[int]] = {}
    for slot, how in made.items():
        home = places[how.last]
        small = sum(sizes[each] for each in how.of) * _LITTLE <= sizes[slot]
        for worker in readers.get(slot, set()) - {home} if small else ():
            if can.alike is not None and can.alike[worker] != can.alike[home]:
                continue
            comes = sum(sizes[each] for each in how.of if worker not in there.get(each, ()))
            takes = sum(seconds[k] for k in how.calls) + comes * can.byte + bool(comes) * can.message
            if takes < sizes[slot] * can.byte:
                for k in how.calls:
                    found.setdefault(k, set()).update((worker, home))
    return {k: workers - {places[k]} for k, workers in found.items() if workers != {places[k]}}


def _made(
    records: Sequence[Record], places: Sequence[int], sizes: Mapping[int, int], positions: Collection[int]
) -> tuple[dict[int, _Made], dict[int, float], dict[int, set[int]]]:  # fmt: skip
    """How storages are made that such calls alone make; what each of these takes; and where they are read."""
    made: dict[int, _Made] = {}
    seconds: dict[int, float] = {}
    readers: dict[int, set[int]] = {}
    others = {slot for record in records for slot in record[6]}  # what is written, or made by other calls
    for k, (_module, _phase, _draws, device, _grad, takes, _writes, makes) in enumerate(records):
        for slot in takes:
            if slot in made:
                readers.setdefault(slot, set()).add(places[k])
        if k not in positions or device or not others.isdisjoint(takes):
            for slot, _nbytes in makes:
                if slot not in takes:
                    others.add(slot)
            continue
        calls = frozenset[int]().union([k], *[made[slot].calls for slot in takes if slot in made])
        if len(calls) > _MOST or not others.isdisjoint(slot for slot, _nbytes in makes):
            others.update(slot for slot, _nbytes in makes if slot not in takes)
            continue
        of = frozenset(slot for slot in takes if slot not in made).union(*[made[s].of for s in takes if s in made])
        touched = sum(sizes[slot] for slot in takes) + sum(nbytes for _slot, nbytes in makes)
        for slot, _nbytes in makes:
            if slot not in takes:
                made[slot] = _Made(calls, of, k)
                seconds[k] = _CALL + touched * _TOUCHED
            elif slot in made:  # a view, which has to be made with what is made of it
                made[slot] = made[slot]._replace(calls=calls)
                seconds[k] = _CALL
    return made, seconds, readers
