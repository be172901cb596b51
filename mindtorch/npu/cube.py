"""How the cube unit, which computes matrix products and convolutions, is told to treat float32.

Some chips' units have no float32: they compute such products from operands rounded to float16, or not at all.
"""

from __future__ import annotations

import warnings

from .._ext import acl
from . import chips

__all__ = ["ALLOW_FP32_DOWN_PRECISION", "KEEP_DTYPE", "math_type", "must_keep"]

KEEP_DTYPE = 0
ALLOW_FP32_DOWN_PRECISION = 1
_FLOAT32 = 0  # AscendCL's code
_keeps = False
_told = False


def must_keep(keeps: bool) -> None:
    """Whether what the chip cannot multiply in float32 is computed on the CPU, in float32 (``ACL_PRECISION_MODE``)."""
    global _keeps
    _keeps = keeps


def math_type(code: int) -> int | None:
    """What an operator's ``cubeMathType`` has to be for operands of this dtype; None: it is not to be called.

    Elsewhere ``ALLOW_FP32_DOWN_PRECISION`` would give up bits that the chip has: it is asked for where there is no
    other way, as torch_npu does, and said once.
    """
    global _told
    if code != _FLOAT32 or chips.multiplies_float32(acl.soc_name() or ""):
        return KEEP_DTYPE
    if _keeps:
        return None
    if not _told:
        _told = True
        warnings.warn(
            f"{acl.soc_name()} has no float32 matrix products: they are computed from float16. "
            "torch.npu.set_option({'ACL_PRECISION_MODE': 'must_keep_origin_dtype'}) computes them on the CPU instead",
            RuntimeWarning,
            stacklevel=2,
        )
    return ALLOW_FP32_DOWN_PRECISION
