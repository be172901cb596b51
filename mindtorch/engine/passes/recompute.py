"""Cheap values that several workers read are computed on each of them, where that costs less than a transfer."""

from __future__ import annotations

from .native import ELEMENT_WISE, MEMORY
from .optimizer_pass import Pass

__all__ = ["REPEATABLE", "Recompute"]

#: Operators that give the same bits on each worker with the same processor: they create, compute element by element, or
#: copy, and depend on nothing but their arguments.
REPEATABLE = frozenset(
    f"aten::{name}" for name in "arange eye full full_like ones ones_like scalar_tensor zeros zeros_like to".split()
) | {name for name in (ELEMENT_WISE | MEMORY) if not name.endswith("_")}


class Recompute(Pass):
    """What is made of little, such as a mask, is computed on all workers that read it, and not moved.

    Where a device is several workers, `mindtorch.engine.remote.repeated` decides that.
    """

    name = "recompute"
    on = True
