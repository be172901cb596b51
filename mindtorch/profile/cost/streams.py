"""How long ops run that are limited by memory: element-wise ones, normalization, softmax, reductions, copies.

    start + bytes / (bandwidth * share of the family)

A kernel takes a while until all of the chip's memory channels are busy, and then moves its bytes at a share of the
data sheet's bandwidth that depends on how often it goes over them: a softmax or a normalization of long rows reads
them more than once. What lies in the second-level cache comes at the same rate here: it is never slower, and how much
faster it is was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

#: Where a fit begins and how freely each factor moves. Shares of the data sheet's bandwidth, by family.
FACTORS: Mapping[str, tuple[float, float]] = {
    "start_s": (4e-6, 0.5), "elementwise": (0.85, 0.2), "softmax": (0.65, 0.3), "norm": (0.5, 0.3),
}  # fmt: skip
#: Family of an op by its tag in the op table; elsewhere "elementwise".
_BY_TAG = {"softmax": "softmax", "norm": "norm", "reduction": "elementwise", "loss": "softmax"}


def family(tag: str) -> str:
    """The family of an op by its tag in the op table."""
    return _BY_TAG.get(tag, "elementwise")


def seconds(factors: Mapping[str, float], chip: Any, nbytes: Any, share: Any) -> Any:
    """share: of the bandwidth, that of each op's family."""
    return factors["start_s"] + np.asarray(nbytes, float) / (chip.memory_bandwidth * share)
