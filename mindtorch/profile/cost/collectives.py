"""How long collectives take on several accelerators: latency, bytes on the wire, and the way up to full rate.

What a rank sends in a collective of S bytes among n ranks is S · (n - 1)/n, twice that in an all-reduce (as NCCL's
tests define the bus bandwidth). A pipelined ring or tree of latency a and rate B takes (√a + √(wire / B))², were its
pieces of the best size; of the middle term of that square, `ramp` is what is found. The factors, by accelerator and
collective, are in `collectives.toml`; accelerators that were not measured take those of a similar one, by their links.

Between machines each accelerator has its own way to the network: a ring through m machines with g ranks in each has
g times that rate. That, and `HOP_S` for each step of a tree between machines, are assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from mindtorch.profile.cost.toml_files import read

__all__ = ["HOP_S", "POINT_TO_POINT", "Links", "links_of", "on_wire"]

#: Seconds that a message to another machine takes, however short.
HOP_S = 8e-6
#: Whose links an accelerator is taken to have of which nothing is said.
_INSTEAD = "h100"
#: What is between two ranks.
POINT_TO_POINT = ("send", "recv")
#: kind → whose factors it has.
_LIKE = {"broadcast": "all_gather", "reduce": "all_gather", "gather": "all_gather", "scatter": "all_gather",
         "send": "all_to_all", "recv": "all_to_all", "barrier": "all_reduce"}  # fmt: skip
_FITTED = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


@dataclass(frozen=True)
class Fitted:
    """Of one collective: seconds of latency, and of each doubling of ranks; ramp; bytes/s for 2, 4, 8 … ranks."""

    latency_s: float
    step_s: float
    ramp: float
    rate: Sequence[float]

    def at(self, ranks: int) -> float:
        """The rate among so many: between two that were measured, between theirs."""
        where = min(max(math.log2(ranks) - 1, 0.0), len(self.rate) - 1.0)
        low = int(where)
        high = min(low + 1, len(self.rate) - 1)
        return float(self.rate[low] ** (1 - (where - low)) * self.rate[high] ** (where - low))


@dataclass(frozen=True)
class Links:
    """How accelerators of one kind reach each other. link: bytes per second of each to the others of its machine, one
    way, by data sheet; scale: of the rates that were fitted; measured: on which; own: it is that one; assumed: the
    links are that one's, as nobody said which the accelerator has."""

    link: float
    fitted: Mapping[str, Fitted]
    scale: float
    network: float
    measured: str
    assumed: bool = False
    own: bool = False

    def seconds(self, kind: str, nbytes: int, ranks: int, machines: int = 1) -> float:
        """What a collective of so many bytes takes among ``ranks``, equally many on each of the machines."""
        if ranks < 2:
            return 0.0
        point_to_point = kind in POINT_TO_POINT
        factors = self.fitted[_LIKE.get(kind, kind)]
        here = 2 if point_to_point else max(-(-ranks // machines), 1)
        wire = nbytes if point_to_point else on_wire(kind, nbytes, ranks)
        latency = factors.latency_s + factors.step_s * math.log2(max(here, 2))
        rate = factors.at(here) * self.scale if here > 1 else math.inf
        if machines > 1:
            latency += HOP_S * (1 if point_to_point else (2 if kind == "all_reduce" else 1) * math.log2(machines))
            if kind == "all_to_all":  # only what is for others goes there, by every accelerator's own way
                outside = nbytes * (ranks - here) / ranks
                return max(_pipelined(latency, wire - outside, rate, factors.ramp),
                           _pipelined(latency, outside, self.network, factors.ramp))  # fmt: skip
            rate = min(rate, self.network * (1 if point_to_point else here))
        return _pipelined(latency, wire, rate, factors.ramp)


def _pipelined(latency: float, wire: float, rate: float, ramp: float) -> float:
    moved = wire / rate
    return latency + 2 * ramp * math.sqrt(latency * moved) + moved


def on_wire(kind: str, nbytes: float, ranks: int) -> float:
    """Bytes that each rank sends."""
    if kind == "all_reduce":
        return 2 * nbytes * (ranks - 1) / ranks
    if kind in ("broadcast", "reduce"):
        return nbytes
    return nbytes * (ranks - 1) / ranks


@cache
def _known() -> dict[str, Any]:
    return read("collectives.toml")


def links_of(target: str, interconnect: float | None = None) -> Links:
    """Those of an accelerator, by its name as a target; one that is not known is taken for an H100. interconnect: bytes
    per second of each to other machines."""
    known = _known()
    key = target if target in known else _INSTEAD
    own = known[key]
    base = known[own.get("as", key)]
    fitted = {kind: Fitted(**base[kind]) for kind in _FITTED}
    network = own["network"] if interconnect is None else interconnect
    return Links(
        own["link"],
        fitted,
        own["link"] / base["link"],
        network,
        own.get("as", key),
        key != target,
        "as" not in own and key == target,
    )
