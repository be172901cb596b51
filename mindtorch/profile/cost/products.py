"""How long a matrix product runs on a GPU, from its shape: tiles, waves, split-K, what the cache keeps.

A library of products (cuBLAS) cuts the result into tiles, gives each to one of the chip's multiprocessors, and for
few tiles cuts the contracted dimension too (split-K), whose parts are added up afterwards. It has kernels for many tile
sizes and takes a good one. So does this model: the time is that of the fastest of `TILES` x `SPLITS`, where one takes

    start + (compute^p + latency^p + feeding^p + memory^p + cache^p)^(1/p) + fill + store + reduction

- compute: waves of tiles at the multiprocessor's peak rate times an efficiency that falls with small tiles (each
  element of a tile's edge is loaded once per tile: efficiency / (1 + edge * (1/rows + 1/columns))). Rows of a linear
  layer's operands lie far apart where many elements are contracted, each on a page of memory of its own, which some
  chips are slow to find. What runs for long runs at the clock that the board's power sustains, which is lower;
- latency: steps of 32 along the contracted dimension, one after another, however little each of them computes;
- feeding: a tile's edges come from the cache at so many bytes per clock and multiprocessor;
- memory: bytes that the second-level cache does not hold, at the memory's bandwidth, less where few tiles ask for them;
- cache: all bytes once, at the cache's bandwidth.

In float32, libraries have good kernels for few tiles, and of batches for fewer still: small ones count as slower.

The sum of powers is a maximum with a rounded corner: work of several kinds overlaps, though not wholly. Waves are why
one more row can double the time. Sources: NVIDIA, "Matrix Multiplication Background User's Guide" (tile and wave
quantization); Osama et al., "Stream-K" (2023; split-K); the roofline for the rest. Every factor is dimensionless,
cycles, bytes per clock or seconds: so factors of one chip say something of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

#: Rows and columns of a tile; parts that the contracted dimension is cut into.
TILES = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (64, 32), (16, 64), (64, 16),
    (16, 128), (128, 16), (64, 256), (256, 64), (32, 128), (128, 32),
)  # fmt: skip
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
#: Where a fit begins, and what holds a factor that the measurements say nothing of: (value, how freely it moves).
#: efficiency, edge: see above. memory: share of the data sheet's bandwidth. feed, cache, store: bytes per clock and
#: multiprocessor. step: cycles of 32 contracted elements. split: seconds of adding up parts. fill: cycles until the
#: first tile computes. kept: share of the cache that keeps operands; sharp: how suddenly it overflows. round: p.
#: written: bytes that writing one costs. thin: how much memory bandwidth few tiles lose. odd: slowdown of rows
#: that do not begin at multiples of 16 bytes. narrow, short: of batches, slowdown with each halving of a tile's 128
#: columns and rows; small: of single products, with either. apart: bytes from one row to the next that double the time.
#: tired: slowdown of single products that run for long, as clocks fall and operands spread; spent: the same of batches;
#: soon_s: seconds of computing that half of it takes. bias: how often the result is passed once more to add one.
FACTORS: Mapping[str, tuple[float, float]] = {
    "start_s": (1.8e-6, 0.3), "efficiency": (0.85, 0.3), "edge": (6.0, 0.5), "memory": (0.85, 0.05),
    "feed": (64.0, 0.5), "step": (100.0, 1.0), "split_s": (1.5e-6, 1.0), "cache": (20.0, 0.3), "fill": (600.0, 1.0),
    "kept": (0.7, 0.3), "sharp": (3.0, 0.5), "round": (3.0, 0.2), "written": (1.2, 0.1), "store": (30.0, 1.0),
    "thin": (0.5, 0.5), "odd": (1.05, 0.1), "narrow": (1.0, 0.01), "short": (1.0, 0.01), "apart": (1e7, 0.1),
    "tired": (1.1, 0.3), "spent": (1.0, 0.01), "soon_s": (1e-3, 1.0), "small": (1.0, 0.01), "bias": (0.01, 0.01),
}  # fmt: skip
#: The same in float32 on ordinary units.
SINGLE: Mapping[str, tuple[float, float]] = {
    **FACTORS, "start_s": (5e-6, 0.3), "memory": (0.85, 0.1), "step": (2500.0, 1.0),
    "narrow": (1.3, 0.3), "short": (1.1, 0.3), "apart": (2e5, 2.0), "tired": (1.2, 0.5),
    "spent": (1.2, 0.5), "small": (1.05, 0.3), "bias": (0.3, 1.0),
}  # fmt: skip

_TILE = np.repeat(np.array(TILES, float), len(SPLITS), 0)
_ROWS, _COLUMNS, _SPLIT = _TILE[:, 0][None], _TILE[:, 1][None], np.tile(np.array(SPLITS, float), len(TILES))[None]


class Products(NamedTuple):
    """Products as columns of numbers: how many of each in one call, rows, columns, contracted; bytes of an element.

    copies: between two uses of the same weights lie those of so many others (a model's other layers; a benchmark
    that takes turns between copies); 1 where the very same product is repeated. turned: whether the second operand
    lies as a linear layer's weight does. biased: whether something is added to the result, as a linear layer's bias.
    stored: the share of the second operand's bytes that packed weights take, which are unpacked on the multiprocessor.
    """

    count: Any
    rows: Any
    columns: Any
    inner: Any
    itemsize: float = 2.0
    copies: float = 6.0
    turned: bool | Any = False
    biased: bool | Any = False
    stored: float = 1.0


def seconds(factors: Mapping[str, float], chip: Any, peak: float, of: Products) -> Any:
    """Seconds of each product. chip: a `targets.Target`; peak: its operations per second in their dtype."""
    f = factors
    count, rows, columns, inner = (np.asarray(a, float).reshape(-1, 1) for a in of[:4])
    clock, processors, item = chip.clock_hz, chip.processors, of.itemsize
    tiles = count * np.ceil(rows / _ROWS) * np.ceil(columns / _COLUMNS)
    along = 32 if item < 4 else 8
    depth = np.ceil(inner / _SPLIT / along) * along
    blocks = tiles * _SPLIT
    waves = np.ceil(blocks / processors)
    together = np.minimum(np.minimum(waves, 8), np.maximum(1, 256 * 128 / (_ROWS * _COLUMNS)))  # on one processor
    efficiency = f["efficiency"] / (1 + f["edge"] * (1 / _ROWS + 1 / _COLUMNS))
    odd = np.where((inner * item % 16 == 0) & (columns * item % 16 == 0), 1.0, f["odd"])
    compute = waves * 2 * _ROWS * _COLUMNS * depth / (peak / processors * efficiency) * odd
    compute = compute * (1 + np.asarray(of.turned, float).reshape(-1, 1) * inner * item / f["apart"])
    tired = np.where(count > 1, f["spent"], f["tired"])
    compute = compute * (1 + (tired - 1) * compute / (compute + f["soon_s"]))
    latency = depth / 32 * f["step"] / clock * waves / together
    feeding = waves * (_ROWS + _COLUMNS * of.stored) * depth * item / (f["feed"] * clock)
    weights = count * columns * inner * item * of.stored
    others = count * (rows * inner + rows * columns * f["written"]) * item
    kept = f["kept"] * chip.l2_bytes
    missed = weights * _missed(of.copies * weights + others, kept, f) + others * _missed(weights + others, kept, f)
    memory = missed / (chip.memory_bandwidth * f["memory"] * np.minimum(1, blocks / processors) ** f["thin"])
    through = f["cache"] * clock * processors
    cache = (weights + others) / through
    adding = np.where(_SPLIT > 1, f["split_s"] + 8 * _SPLIT * count * rows * columns / through, 0.0)
    p = f["round"]
    main = (compute**p + latency**p + feeding**p + memory**p + cache**p) ** (1 / p)
    biased = np.asarray(of.biased, float).reshape(-1, 1) * f["bias"] * count * rows * columns * item
    adding = adding + biased / (chip.memory_bandwidth * f["memory"])
    rest = (f["fill"] + waves * _ROWS * _COLUMNS * item / f["store"]) / clock + adding
    found = f["start_s"] + main + rest
    never = (_SPLIT > 1) & ((depth < 64) | (count > 1))
    halved, thinned = (np.log2(np.maximum(128 / side, 1)) for side in (_COLUMNS, _ROWS))
    few = np.where(count > 1, f["narrow"] ** halved * f["short"] ** thinned, f["small"] ** (halved + thinned))
    found = found * np.where(item < 4, 1.0, few)
    return np.where(never, np.inf, found).min(1)


def _missed(used: Any, kept: float, f: Mapping[str, float]) -> Any:
    """The share of what is used again that has left the cache meanwhile."""
    return 1 / (1 + (kept / np.maximum(used, 1)) ** f["sharp"])
