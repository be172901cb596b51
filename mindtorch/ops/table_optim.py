"""Rows of optimizer steps: multi-tensor (``_foreach_*``) and fused kernels."""

from __future__ import annotations

from . import byte_rules as moved
from .flop_rules import PerListElement
from .op_row import OpRow, op, ops

_elementwise = PerListElement(1)

ROWS: list[OpRow] = [
    *ops(
        "optimizer",
        _elementwise,
        "_foreach_abs _foreach_acos _foreach_add _foreach_asin _foreach_atan _foreach_ceil _foreach_clamp_max "
        "_foreach_clamp_min _foreach_cos _foreach_cosh _foreach_erf _foreach_erfc _foreach_expm1 _foreach_floor "
        "_foreach_frac _foreach_lerp _foreach_lgamma _foreach_log10 _foreach_log1p _foreach_log2 _foreach_max "
        "_foreach_maximum _foreach_minimum _foreach_mul _foreach_neg _foreach_norm _foreach_powsum _foreach_round "
        "_foreach_sigmoid _foreach_sign _foreach_sin _foreach_sinh _foreach_sub _foreach_tan _foreach_trunc "
        "_amp_foreach_non_finite_check_and_unscale",
    ),
    op("_foreach_addcdiv", "optimizer", _elementwise, cpu="sqrt", elsewhere=(3, "scalars")),
    op("_foreach_addcmul", "optimizer", _elementwise, elsewhere=(3, "scalars")),
    op("_foreach_div", "optimizer", _elementwise, cpu="divide"),
    op("_foreach_exp", "optimizer", _elementwise, cpu="exp"),
    op("_foreach_log", "optimizer", _elementwise, cpu="log"),
    op("_foreach_pow", "optimizer", _elementwise, cpu="pow"),
    *ops("optimizer", _elementwise, "_foreach_reciprocal _foreach_rsqrt _foreach_sqrt", cpu="sqrt"),
    op("_foreach_tanh", "optimizer", _elementwise, cpu="tanh"),
    # per parameter: m (3: subtract, scale, add), v (4), bias corrections, root, epsilon, division (4), update (1)
    op("_fused_adam", "optimizer", PerListElement(12), bytes=moved.fused_optimizer),
    # and the decoupled decay
    op("_fused_adamw", "optimizer", PerListElement(13), bytes=moved.fused_optimizer),
    # weight decay (2), momentum (3), update (2)
    op("_fused_sgd", "optimizer", PerListElement(7), bytes=moved.fused_optimizer),
    # weight decay (2), sum of squares (2), root, epsilon, division, scale, update
    op("_fused_adagrad", "optimizer", PerListElement(9), bytes=moved.fused_optimizer),
    op("_amp_update_scale", "optimizer", None),
]
