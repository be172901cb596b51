"""Operators called by a shorter way."""

from __future__ import annotations

from typing import Any

import torch

from ...base import torch_facts
from .optimizer_pass import Pass, first_of

__all__ = ["DIRECT", "DirectCalls", "direct"]

#: Overloads that torch's function for Python of that name comes to, whatever arguments they were recorded with
#: (tests/test_passes_functions.py asks torch's dispatcher).
DIRECT = frozenset(
    (
        "_log_softmax.default _safe_softmax.default _softmax.default add.Tensor add_.Tensor addcdiv_.default "
        "addcmul_.default addmm.default bmm.default clone.default convolution.default copy_.default div.Tensor "
        "embedding.default exp.default expand.default index_select.default lerp_.Scalar mean.dim mm.default mul.Tensor "
        "mul_.Tensor native_batch_norm.default native_layer_norm.default neg.default permute.default "
        "pow.Tensor_Scalar relu.default rsqrt.default select.int sigmoid.default silu.default sqrt.default "
        "squeeze.dim sub.Tensor sum.dim_IntList t.default tanh.default transpose.int unsqueeze.default view.default "
        "where.self zero_.default"
    ).split()
)
#: In this order: a method's first argument is the operator's "self", which need not be its first one (where).
_HOLDERS = (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase)


class DirectCalls(Pass):
    """What autograd called as an operator is called by torch's function for Python, which reads arguments sooner."""

    name = "direct calls"
    on = torch_facts.is_tested()  # the tests prove it of these; elsewhere for who asks for it

    def function(self, info: Any) -> None:
        found = direct(info.func)
        if found is not None:
            info.replay = found


def direct(func: Any) -> Any:
    """Torch's function for Python that makes this very call of the dispatcher; None where none is known to."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return None
    name, _, overload = func.name().removeprefix("aten::").partition(".")
    if f"{name}.{overload or 'default'}" not in DIRECT:
        return None
    return first_of(_HOLDERS, name)
