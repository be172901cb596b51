"""The energy that a call takes of a target's board: what it draws anyway, what each operation and each byte takes.

A board draws `idle_w` while a program is on it and nothing runs. A call adds joules for each operation, by the units
that compute it and their number format, and for each byte that it moves; in all at most what the board's power gives in
the call's time. So a call that computes for long takes the board's power times its time, and what waits for the host
takes the idle power.

Fitted to 17,448 products in bfloat16 on an H200 and a B200 whose operands exceed twice the second-level cache (NVML's
power beside each time; aiconfigurator, `systems/data/*/gemm/vllm/0.22.0`, Apache-2.0): 9 % is their mean error, and
eight of ten lie between 0.70 and 1.05 times the estimate. Other chips follow from these:

- operations on matrix units by `factors.JOULES`, what a generation saves, but at least `_FILLED` of the board's power
  at their peak rate: those that are slow beside it (GeForce's) take more. Other formats take as much at their peak.
- operations on ordinary units: `factors.JOULES` without the idle part;
- bytes: stacked memory `_STACKED` (6.0 pJ a bit of HBM2E, Micron, "Ultra-Bandwidth Solutions"), and what the way
  through the chip takes, by generation. Boards with GDDR draw `_STREAMED` of their power at full bandwidth, as the two
  fitted do, which is more: their memory's own joules are not told apart.

Idle figures are in `targets.toml`. Without one, or without the board's power, no energy is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from mindtorch.ops.op_row import MATRIX_TAGS
from mindtorch.profile.cost import factors
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.cost.work import Work

__all__ = ["Board", "board"]

#: Joules of an operation in 16 bits on matrix units, and of a byte between memory and the units, beside the idle power.
_OPERATION = {(9, 0): 0.92e-12, (10, 0): 0.61e-12}
_BYTE = {(9, 0): 100e-12, (10, 0): 63e-12}
_FITTED = (9, 0)  # whose figures others follow from
_STACKED = 48e-12
#: Of the power beyond the idle one: at the peak rate of matrix units at least; at the full bandwidth of GDDR.
_FILLED, _STREAMED = 0.8, 0.77
#: Log-errors that a tenth of the rows are below and above: of programs on the fitted chips; what other chips add. With
#: 0.2 for the latter, as for times, 19 of 31 published programs were inside (`asv_bench/published_energy.py`).
_DOUBT, _SOURCE = (-0.25, 0.15), 0.3


@dataclass(frozen=True)
class Board:
    """idle_w, limit_w: watts at least, at most. byte_j: joules of a byte. low, high: log-errors. source: in words."""

    target: Target
    idle_w: float
    limit_w: float
    byte_j: float
    low: float
    high: float
    source: str

    def operation_j(self, dtype: str, on_matrix_units: bool) -> float:
        """Joules of one operation in that format ("tf32" is one)."""
        target = self.target
        ordinary = target.rate(dtype, False)
        if on_matrix_units and target.rate(dtype, True) > ordinary * 1.01:
            at_peak = self._matrix_j() * target.rate("bfloat16", True)
            return at_peak / target.rate(dtype, True)
        net = _generation(target) * (1 - self.idle_w / self.limit_w)
        return net * target.rate("float32", False) / ordinary

    def _matrix_j(self) -> float:
        target = self.target
        by_generation = _by_capability(_OPERATION, target)
        filled = _FILLED * (self.limit_w - self.idle_w) / target.rate("bfloat16", True)
        return by_generation if target.capability in _OPERATION else max(by_generation, filled)

    def added_j(self, work: Work, tf32: bool) -> float:
        """Joules of one call beyond the idle power, without a limit. Waiting for other ranks adds none."""
        if work.tag == "view" or work.seconds is not None:
            return 0.0
        on_matrix_units = work.tag in MATRIX_TAGS
        dtype = "tf32" if tf32 else work.dtype
        return (work.flops or 0) * self.operation_j(dtype, on_matrix_units) + work.bytes * self.byte_j

    def joules(self, seconds: float, added: float) -> float:
        """Of a stretch of so long in which calls add so many."""
        return min(self.idle_w * seconds + added, self.limit_w * seconds)


@lru_cache(64)
def board(target: Target) -> Board | None:
    """The figures of a target; None where its idle power or its board's is not known (processors, NPUs, AMD's GPUs)."""
    idle, limit = target.idle_w, target.power_w
    if target.model is not None or target.device != "cuda" or not 0 < idle < limit:
        return None
    if (own := target.capability in _BYTE) or factors.stacked(target):
        way = _BYTE[_FITTED] - _STACKED
        byte = _BYTE[target.capability] if own else _STACKED + way * _generation(target) / _JOULES_FITTED
    else:
        byte = _STREAMED * (limit - idle) / target.memory_bandwidth
    low, high = _DOUBT if own else (math.copysign(math.hypot(end, _SOURCE), end) for end in _DOUBT)
    source = "fitted to measurements of H200 and B200" if own else "extrapolated from H200 by generation and data sheet"
    return Board(target, idle, limit, byte, low, high, source)


def _generation(target: Target) -> float:
    return factors.joules(target.capability)


_JOULES_FITTED = factors.joules(_FITTED)


def _by_capability(table: dict[tuple[int, int], float], target: Target) -> float:
    """Its own, else the fitted one's times what its generation takes more or less."""
    own = table.get(target.capability)
    return table[_FITTED] * _generation(target) / _JOULES_FITTED if own is None else own
