"""Which worker runs which record, in what parts, and what moves for that: of one device on several workers (SPEC R5).

Every storage has one home. A record goes to the home of what it writes, else to its module's worker, else to the home
of the first storage that it takes and that has one. What has no home yet (an upload that nothing has used, what is made
of nothing) gets that of the first record which takes it. A storage that is taken elsewhere moves there. The generator
has a home, too, and moves to whoever draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["GENERATOR", "Division", "Part", "divided"]

GENERATOR = -1  # in place of a storage's slot
GENERATOR_BYTES = 5056  # of the state that a CPU's generator has

#: (module id, phase, index that it draws for or -1, device, grad mode, takes, writes, makes): see `Segment.facts`.
Record = tuple[int, int, int, int, bool, Sequence[int], Sequence[int], Sequence[tuple[int, int]]]


@dataclass
class Part:
    """Records that one worker runs at once. ``sources``: the storages that move there before, by worker."""

    worker: int
    positions: list[int] = field(default_factory=list)
    draws: bool = False
    sources: dict[int, list[int]] = field(default_factory=dict)


@dataclass
class Division:
    """``parts`` in the order in which they run; ``moves``: (storage, from, to)."""

    parts: list[Part]
    moves: list[tuple[int, int, int]]
    places: list[int]  # of each record

    @property
    def messages(self) -> int:
        """Exchanges in which something moves: all that a part needs of one worker goes in one."""
        return sum(len(part.sources) for part in self.parts)


class _Undecided:
    """A home that the first record decides on which has a worker."""

    __slots__ = ("into", "nbytes", "worker")

    def __init__(self) -> None:
        self.worker: int | None = None
        self.nbytes = 0
        self.into: _Undecided | None = None

    def last(self) -> _Undecided:
        found = self
        while found.into is not None:
            found = found.into
        return found


def divided(
    records: Sequence[Record],
    homes: Mapping[int, int],
    worker_of: Mapping[int, int],
    generator: int,
    otherwise: Callable[[int], int],
) -> Division:
    """homes: worker of each storage that has one; worker_of: of module ids; generator: the worker that has it;
    otherwise: the worker for so many bytes that nothing decides about."""
    chosen = _chosen(records, homes, worker_of)
    for choice, (*_, makes) in zip(chosen, records, strict=True):
        if isinstance(choice, _Undecided):
            choice.last().nbytes += sum(nbytes for _slot, nbytes in makes)
    places: list[int] = []
    for choice in chosen:
        if isinstance(choice, _Undecided):
            last = choice.last()
            if last.worker is None:
                last.worker = otherwise(last.nbytes)
            places.append(last.worker)
        else:
            places.append(choice)
    return _parted(records, places, dict(homes), generator)


def _chosen(
    records: Sequence[Record], homes: Mapping[int, int], worker_of: Mapping[int, int]
) -> list[int | _Undecided]:
    at: dict[int, int | _Undecided] = dict(homes)
    chosen: list[int | _Undecided] = []

    def known(slots: Sequence[int]) -> int | None:
        for slot in slots:
            home = at.get(slot)
            if isinstance(home, _Undecided):
                home = home.last().worker
            if home is not None:
                return home
        return None

    for module, _phase, _draws, device, _grad, takes, writes, makes in records:
        worker: int | None = device or None  # another index than the first is a worker
        if worker is None:
            worker = known(writes)
        if worker is None:
            worker = worker_of.get(module)
        if worker is None:
            worker = known(takes)
        if worker is None:
            together = _Undecided()
            for slot in takes:
                home = at.get(slot)
                if isinstance(home, _Undecided) and home.last() is not together.last():
                    home.last().into = together.last()
            for slot in (*takes, *[slot for slot, _nbytes in makes]):
                at[slot] = together
            chosen.append(together)
            continue
        for slot in takes:
            home = at.get(slot)
            if isinstance(home, _Undecided):
                home.last().worker = home.last().worker if home.last().worker is not None else worker
            at[slot] = worker
        for slot, _nbytes in makes:
            at[slot] = worker
        chosen.append(worker)
    return chosen


def _parted(records: Sequence[Record], places: list[int], at: dict[int, int], generator: int) -> Division:
    """A part takes in what its worker runs next until one of its records needs what was used elsewhere since the part
    began: so what moves to a part moves before it begins, all at once, and parts that do not touch run side by side.
    """
    parts: list[Part] = []
    moves: list[tuple[int, int, int]] = []
    current: dict[int, tuple[Part, int]] = {}  # worker -> its part, and the position at which that began
    last: dict[int, int] = {}  # storage -> position of its last use
    at[GENERATOR] = generator
    for k, (record, place) in enumerate(zip(records, places, strict=True)):
        _module, _phase, draws, _device, _grad, takes, _writes, makes = record
        used = [*takes, GENERATOR] if draws == 0 else takes
        moving = [slot for slot in dict.fromkeys(used) if at.get(slot, place) != place]
        part, began = current.get(place, (None, k))
        if part is None or any(last.get(slot, -1) >= began for slot in moving):
            part, began = Part(place), k
            current[place] = part, began
            parts.append(part)
        for slot in moving:
            moves.append((slot, at[slot], place))
            part.sources.setdefault(at[slot], []).append(slot)
        part.positions.append(k)
        part.draws |= draws == 0
        for slot in used:
            at[slot], last[slot] = place, k
        for slot, _nbytes in makes:
            at[slot], last[slot] = place, k
    return Division(parts, moves, places)
