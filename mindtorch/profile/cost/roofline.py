"""The least time that an operation can take on a target: the roofline model, which no measurement is below.

Williams, Waterman, Patterson: "Roofline: an insightful visual performance model for multicore architectures" (2009).
An operation computes at the peak rate of its dtype or moves its bytes, whichever takes longer. Of its bytes, as many as
the second-level cache holds may be there already: they come at most at `CACHE_RATE`. What a launch takes is no part of
it: a busy host launches ahead, and a CUDA graph launches all at once.
"""

from __future__ import annotations

from mindtorch.ops.op_row import MATRIX_TAGS
from mindtorch.profile.cost.factors import HIGHEST_CLOCK, geforce
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.cost.work import Work

#: What an operation's time is bound by.
BOUNDS = ("compute", "memory", "launch")
COMMUNICATION = "communication"  # with other ranks: what of it is not hidden
#: Bytes per clock that a multiprocessor takes from the second-level cache at most (NVIDIA's white papers: 64).
CACHE_RATE = 64
#: Convolutions need fewer multiply-adds than their definition has (Winograd's F(4x4, 3x3), Lavin and Gray 2016).
WINOGRAD = 4


def bound(target: Target, work: Work, tf32: bool = False) -> tuple[float, float]:
    """(seconds of computing, seconds of moving bytes), each at least. The larger of them is the bound of a call.

    A view computes and moves nothing; without a FLOP formula, only the bytes are known.
    tf32: float32 matrix work may use TF32.
    """
    if work.tag == "view":
        return 0.0, 0.0
    on_matrix_units = work.tag in MATRIX_TAGS
    flops = (work.flops or 0) / (WINOGRAD if work.tag == "conv" else 1)
    rate = "tf32" if tf32 and on_matrix_units and work.dtype == "float32" else work.dtype
    return flops / (target.rate(rate, on_matrix_units) * _clock(target)), least_moving(target, work.bytes)


def least_moving(target: Target, nbytes: float) -> float:
    cached = nbytes / (CACHE_RATE * target.clock_hz * _clock(target) * target.processors)
    return max((nbytes - target.l2_bytes) / target.memory_bandwidth, cached)


def _clock(target: Target) -> float:
    """The highest clock, of the data sheet's: a board of GeForce may pass the latter."""
    return HIGHEST_CLOCK if geforce(target) else 1.0


def balance(target: Target, dtype: str, tag: str = "matmul") -> float:
    """FLOPs per byte at which an operation passes from memory-bound to compute-bound (the roofline's ridge)."""
    return target.rate(dtype, tag in MATRIX_TAGS) / target.memory_bandwidth
