"""How long ops run that are limited by memory: element-wise ones, normalization, softmax, reductions, copies.

    start + bytes / (bandwidth * share of the family)

A kernel takes a while until all of the chip's memory channels are busy, and then moves its bytes at a share of the
data sheet's bandwidth that depends on how often it goes over them: a softmax or a normalization of long rows reads
them more than once. Operands that the cache holds come from there, at a multiple of the memory's bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

#: Where a fit begins and how freely each factor moves. Shares of the data sheet's bandwidth, by family;
#: cached: how much faster the second-level cache is; kept: the share of it that keeps operands.
FACTORS: Mapping[str, tuple[float, float]] = {
    "start_s": (4e-6, 0.5), "elementwise": (0.85, 0.2), "softmax": (0.65, 0.3), "norm": (0.5, 0.3),
    "kept": (0.5, 0.3), "cached": (2.5, 0.3),
}  # fmt: skip
#: Family of an op by its tag in the op table; elsewhere "elementwise".
_BY_TAG = {"softmax": "softmax", "norm": "norm", "reduction": "elementwise", "loss": "softmax"}


def family(tag: str) -> str:
    """The family of an op by its tag in the op table."""
    return _BY_TAG.get(tag, "elementwise")


def seconds(factors: Mapping[str, float], chip: Any, nbytes: Any, share: Any) -> Any:
    """share: of the bandwidth, that of each op's family."""
    f = factors
    nbytes = np.asarray(nbytes, float)
    missed = 1 / (1 + (f["kept"] * chip.l2_bytes / np.maximum(nbytes, 1)) ** 3)
    through = chip.memory_bandwidth * share
    return f["start_s"] + nbytes * (missed + (1 - missed) / f["cached"]) / through
