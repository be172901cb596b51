"""How long a fused attention (flash attention) runs on a GPU, from batch, heads, sequence and head size.

A block of queries goes through all keys that it may see (Dao, "FlashAttention-2", 2023), so the work is two products
per block and the time is

    start + fill + (compute^p + latency^p + memory^p)^(1/p)

of the fastest block size. compute: the multiply-adds at the peak rate times an efficiency that falls with small heads
and small blocks, and at least what the longest block takes on one multiprocessor; latency: blocks of 64 keys one after
another; memory: queries, keys, values and result once, but for what the cache holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

#: As `products.FACTORS`. small_head, small_block: how efficiency falls; step: cycles of 64 keys; fill: cycles of a
#: wave.
FACTORS: Mapping[str, tuple[float, float]] = {
    "start_s": (3e-6, 0.5), "efficiency": (0.6, 0.3), "small_head": (0.2, 1.0), "small_block": (1.0, 0.5),
    "step": (500.0, 1.0), "fill": (2000.0, 1.0), "memory": (0.7, 0.2), "kept": (0.5, 0.5), "round": (1.5, 0.3),
}  # fmt: skip
BLOCKS = (64, 128, 256)


class Scores(NamedTuple):
    """Attention as columns of numbers. heads: batch times heads; shared: batch times heads of keys and values;
    seen: the share of all pairs that is computed (a half of a causal one's)."""

    heads: Any
    shared: Any
    queries: Any
    keys: Any
    size: Any
    seen: Any = 1.0
    itemsize: float = 2.0


def seconds(factors: Mapping[str, float], chip: Any, peak: float, of: Scores) -> Any:
    f = factors
    heads, shared, queries, keys, size, seen = (np.asarray(a, float) for a in of[:6])
    nbytes = 2 * of.itemsize * size * (heads * queries + shared * keys)
    missed = 1 / (1 + (f["kept"] * chip.l2_bytes / np.maximum(nbytes, 1)) ** 3)
    memory = nbytes * missed / (chip.memory_bandwidth * f["memory"])
    latency = keys / 64 * f["step"] / chip.clock_hz
    best: Any = np.inf
    for block in BLOCKS:
        blocks = heads * np.ceil(queries / block)
        waves = np.ceil(blocks / chip.processors)
        efficiency = f["efficiency"] / (1 + f["small_head"] * 64 / size) / (1 + f["small_block"] * 32 / block)
        pairs = np.ceil(queries / block) * block * keys * seen + np.where(seen < 1, queries * block / 2, 0)
        compute = 4 * heads * size * pairs / (peak * efficiency)
        uneven = waves * chip.processors / blocks
        compute = compute * np.where(waves < 3, 1 + (uneven - 1) / 2, 1.0)
        compute = np.maximum(compute, 4 * block * keys * size / (peak / chip.processors * efficiency))
        p = f["round"]
        main = (compute**p + latency**p + memory**p) ** (1 / p)
        best = np.minimum(best, f["start_s"] + f["fill"] / chip.clock_hz * np.minimum(waves, 4) + main)
    return best
