"""A result in the memory of an input that nothing else needs."""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch

from .optimizer_pass import Pass, first_of

__all__ = ["FRESH", "POINTWISE", "InPlace"]

#: Ops that compute each element of the result from the elements at its place alone, in one kernel whether they write to
#: memory of their own or to their first argument's.
POINTWISE = frozenset(
    f"aten::{name}"
    for name in (
        "abs add addcdiv addcmul atan ceil clamp clamp_max clamp_min cos div erf exp exp2 expm1 floor gelu hardsigmoid "
        "hardswish hardtanh leaky_relu lerp log log10 log1p log2 mish mul neg pow reciprocal relu round rsqrt sigmoid "
        "sign silu sin sqrt square sub tanh trunc"
    ).split()
)
#: Ops whose results are on memory of their own, always: what may be written over.
FRESH = POINTWISE | frozenset(
    f"aten::{name}"
    for name in (
        "_log_softmax _log_softmax_backward_data _safe_softmax _softmax _softmax_backward_data addmm baddbmm bmm cat "
        "clone conv1d conv2d convolution embedding gather gelu_backward group_norm index index_select layer_norm "
        "linear log_softmax matmul mm native_batch_norm native_group_norm native_layer_norm rms_norm rsub "
        "scaled_dot_product_attention sigmoid_backward silu_backward softmax sum tanh_backward threshold_backward "
        "upsample_nearest2d where"
    ).split()
)
_HOLDERS = (torch._C.TensorBase, torch._C._nn, torch._C._VariableFunctions)


class InPlace(Pass):
    """``x + y`` becomes ``x.add_(y)`` where the last reader of x is this call, and nothing shares its memory."""

    name = "in place"
    on = True

    def function(self, info: Any) -> None:
        info.fresh = info.name in FRESH
        found = first_of(_HOLDERS, info.name.removeprefix("aten::") + "_")
        if info.name not in POINTWISE or info.writes or found is None:
            return
        if not isinstance(info.func, types.FunctionType):
            info.in_place = found
        elif [*inspect.signature(info.func).parameters] == ["input", "inplace"]:  # of Python, as silu
            info.in_place = lambda input, inplace=False: found(input)
