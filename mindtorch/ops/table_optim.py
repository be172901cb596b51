"""Rows of optimizer steps: multi-tensor (``_foreach_*``) and fused kernels."""

from __future__ import annotations

from .row import OpRow, op, ops
from .rules import PerListElement

_elementwise = PerListElement(1)

ROWS: list[OpRow] = [
    *ops(
        "optimizer",
        _elementwise,
        "_foreach_abs _foreach_acos _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_asin _foreach_atan "
        "_foreach_ceil _foreach_clamp_max _foreach_clamp_min _foreach_cos _foreach_cosh _foreach_div _foreach_erf "
        "_foreach_erfc _foreach_exp _foreach_expm1 _foreach_floor _foreach_frac _foreach_lerp _foreach_lgamma "
        "_foreach_log _foreach_log10 _foreach_log1p _foreach_log2 _foreach_max _foreach_maximum _foreach_minimum "
        "_foreach_mul _foreach_neg _foreach_norm _foreach_pow _foreach_powsum _foreach_reciprocal _foreach_round "
        "_foreach_rsqrt _foreach_sigmoid _foreach_sign _foreach_sin _foreach_sinh _foreach_sqrt _foreach_sub "
        "_foreach_tan _foreach_tanh _foreach_trunc _amp_foreach_non_finite_check_and_unscale",
    ),
    # per parameter: m (3: subtract, scale, add), v (4), bias corrections, root, epsilon, division (4), update (1)
    op("_fused_adam", "optimizer", PerListElement(12)),
    # and the decoupled decay
    op("_fused_adamw", "optimizer", PerListElement(13)),
    # weight decay (2), momentum (3), update (2)
    op("_fused_sgd", "optimizer", PerListElement(7)),
    # weight decay (2), sum of squares (2), root, epsilon, division, scale, update
    op("_fused_adagrad", "optimizer", PerListElement(9)),
    op("_amp_update_scale", "optimizer", None),
]
