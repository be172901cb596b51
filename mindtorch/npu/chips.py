"""What Ascend chips differ in, by the names that the library gives them (``Ascend910B1``). torch is not imported here.

The families are those of torch_npu: names that are not known are taken for newer chips.
"""

from __future__ import annotations

import functools
import re

__all__ = ["computes_bfloat16", "multiplies_float32", "saves_variance"]

# ``Ascend910B`` alone is of the first generation, ``Ascend910B1`` and so on are Atlas A2's.
_FIRST_910 = r"910(Premium|Pro)?[AB](?!\d)"
_WITHOUT_BFLOAT16 = re.compile(rf"Ascend({_FIRST_910}|310(?!B))")
_SAVING_VARIANCE = re.compile(rf"Ascend(910(B\d|_93)|{_FIRST_910}|310P)")


def computes_bfloat16(name: str) -> bool:
    """Whether the chip computes in bfloat16: those of the first 910 generation, 310 and 310P do not."""
    return _WITHOUT_BFLOAT16.match(name) is None


@functools.cache
def multiplies_float32(name: str) -> bool:
    """Whether its cube unit takes float32: that of the first 910 generation, 310 and 310P does not."""
    return computes_bfloat16(name)  # the same units


def saves_variance(name: str) -> bool:
    """Whether batch norm is documented to save the variance for its backward: on Atlas A2, A3, 910 and 310P."""
    return _SAVING_VARIANCE.match(name) is not None
