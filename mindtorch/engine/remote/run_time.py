"""How long a divided segment takes: what is computed and what moves, side by side as far as executors do (SPEC R5).

The program records, divides, and submits part by part. What a part needs of another worker moves before it. If that
goes through the program, the other worker first does all that it was given, and the program waits for it
(`RemoteExecutor.take_from`); if workers take directly from each other, only the part waits. What else a worker was
given, it begins with at the end, when all workers begin. Workers that share a machine share its cores.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from .division import Part

__all__ = ["Computing", "Costs", "end_of", "usual"]


@dataclass(frozen=True)
class Costs:
    """Of what moves: seconds for a message, and for a byte. direct: is it taken from worker to worker?"""

    message: float = 1e-3
    byte: float = 1e-9
    direct: bool = False


def usual(costs: Costs) -> Costs:
    """What moves cost between processes of a usual machine, or ten times that, or a hundred times …, or a tenth …: what
    was measured is near one of these in each run, and plans that are made by these do not differ from run to run."""
    message, byte = 1.5e-3 if costs.direct else 5e-4, 1.2e-9
    return Costs(_near(costs.message, message), _near(costs.byte, byte), costs.direct)


def _near(measured: float, expected: float) -> float:
    return expected * 10.0 ** round(math.log10(max(measured, expected * 1e-3) / expected))


@dataclass(frozen=True)
class Computing:
    """seconds: of each record, by worker. shares: of each worker, what it has in common with others, and how many of
    those it lets compute at once. recorded: seconds that the program takes for a record; divided, part: where there
    are several workers, for dividing one, and for a part, with what its worker takes for that. usual: the same on usual
    machines of their kind, which is not measured; None: no other than this.
    """

    seconds: Sequence[Sequence[float]]
    shares: Sequence[tuple[Hashable, float]]
    recorded: float = 0.0
    divided: float = 0.0
    part: float = 0.0
    usual: Computing | None = None

    def longer(self, more: int) -> Computing:
        """The same, and so many records more, of which nobody knows how long they take."""
        if not more:
            return self
        seconds = [[*each, *[0.0] * more] for each in self.seconds]
        return replace(self, seconds=seconds, usual=self.usual and self.usual.longer(more))


def end_of(parts: Sequence[Part], sizes: Mapping[int, int], costs: Costs, computing: Computing) -> float:
    """When the last worker is done, in seconds since the program began to record."""
    workers = range(len(computing.seconds))
    records = sum(len(part.positions) for part in parts)
    several = len({part.worker for part in parts}) > 1
    now = records * (computing.recorded + (computing.divided if several else 0.0))  # for the program
    ends = [0.0 for _ in workers]  # of what was sent
    waiting = [0.0 for _ in workers]  # seconds of what was not
    comes = [0.0 for _ in workers]  # the last that moves there
    open_: dict[Hashable, float] = defaultdict(float)  # seconds that the program has not waited for, by what is shared

    def sent(worker: int) -> float:
        """When a worker has done all that it was given, if that is sent now."""
        if waiting[worker]:
            ends[worker] = max(ends[worker], comes[worker], now) + waiting[worker]
            waiting[worker] = 0.0
        return max(ends[worker], now)

    for part in parts:
        for source, slots in part.sources.items():
            held = waiting[source]
            there = sent(source) + costs.message + sum(sizes[slot] for slot in slots) * costs.byte
            if costs.direct:
                comes[part.worker] = max(comes[part.worker], there)
            else:
                now = there
                open_[computing.shares[source][0]] -= held
        found = sum(computing.seconds[part.worker][k] for k in part.positions) + computing.part * several
        waiting[part.worker] += found
        open_[computing.shares[part.worker][0]] += found
    at_once = dict(computing.shares)
    last = max((sent(worker) for worker in workers), default=now)
    return max([last, *(now + seconds / at_once[share] for share, seconds in open_.items())])
