"""The time an operation takes at least on a target: the roofline model.

Williams, Waterman, Patterson: "Roofline: an insightful visual performance model for multicore architectures" (2009).
An operation computes at the peak rate of its dtype or moves its bytes at the memory's bandwidth, whichever takes
longer; and the next one cannot start earlier than a launch later. A target that was measured has a model of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindtorch.ops.op_row import MATRIX_TAGS
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.cost.work import Work

#: What an operation's time is bound by.
BOUNDS = ("compute", "memory", "launch")
COMMUNICATION = "communication"  # with other ranks: what of it is not hidden


@dataclass(frozen=True)
class Cost:
    """Time of one call in seconds, and which of `BOUNDS` it is, or `COMMUNICATION`."""

    seconds: float
    bound: str


NOTHING = Cost(0.0, "launch")


def estimate(work: Work, target: Target, footprint: int = 0, tf32: bool = False) -> Cost:
    """The time of one call on the target. Without a FLOP formula, only its bytes and its launch are known.

    footprint: the most bytes that the program holds, which says what a processor's cache can keep for it.
    """
    if work.seconds is not None:
        return Cost(work.seconds, COMMUNICATION)
    if target.model is not None:
        return Cost(*target.model(work, footprint))
    if not work.bytes and not work.flops:
        return NOTHING  # reserves memory, or asks about metadata: nothing is launched
    return cost(target, work.flops or 0, work.bytes, work.dtype, work.tag, tf32)


def cost(target: Target, flops: int, nbytes: int, dtype: str, tag: str, tf32: bool = False) -> Cost:
    """The roofline time of one call.

    flops: a multiply-add is two. nbytes: read and written, from and to memory. dtype: that of its inputs ("float32").
    tag: the op's, as in the op table; its matrix work runs on matrix units. tf32: float32 matrix work may use TF32.
    A view computes and moves nothing and launches no kernel: its time is 0.
    """
    if tag == "view":
        return NOTHING
    on_matrix_units = tag in MATRIX_TAGS
    rate = "tf32" if tf32 and on_matrix_units and dtype == "float32" else dtype
    times = (flops / target.rate(rate, on_matrix_units), nbytes / target.memory_bandwidth, target.launch_s)
    longest = max(range(3), key=times.__getitem__)
    return Cost(times[longest], BOUNDS[longest])


def balance(target: Target, dtype: str, tag: str = "matmul") -> float:
    """FLOPs per byte at which an operation passes from memory-bound to compute-bound (the roofline's ridge)."""
    return target.rate(dtype, tag in MATRIX_TAGS) / target.memory_bandwidth
