"""A result in the memory of an input that nothing else needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .dispatched import comes_to, equal, kinds, stand_ins
from .optimizer_pass import Pass
from .segment_graph import Input, RecordedCall, SegmentGraph, Unproven

__all__ = ["InPlace"]

#: Ops that compute each element of the result from the elements at its place alone, in one kernel whether they write to
#: memory of their own or not, and that do not fail for what the elements are.
_POINTWISE = frozenset(
    f"aten::{name}"
    for name in (
        "abs add addcdiv addcmul atan ceil clamp clamp_max clamp_min cos div erf exp exp2 expm1 floor gelu hardsigmoid "
        "hardswish hardtanh leaky_relu lerp log log10 log1p log2 mish mul neg pow reciprocal relu round rsqrt "
        "sigmoid sign silu sin sqrt square sub tanh trunc"
    ).split()
)
#: Ops whose results are on memory of their own, always: what may be written over.
_MAKERS = _POINTWISE | frozenset(
    f"aten::{name}"
    for name in (
        "_log_softmax _native_batch_norm_legit _native_batch_norm_legit_no_training _scaled_dot_product_flash_attention_"
        "for_cpu _softmax _to_copy addmm avg_pool2d baddbmm batch_norm bmm cat clone conv1d conv2d convolution embedding "
        "gather gelu_backward group_norm index_select layer_norm linear log_softmax masked_fill matmul mean mm "
        "native_batch_norm native_dropout native_group_norm native_layer_norm native_layer_norm_backward rms_norm "
        "rsub scaled_dot_product_attention sigmoid_backward silu_backward softmax sum tanh_backward threshold_backward "
        "where"
    ).split()
)
_known: dict[Any, Callable[..., Any] | None] = {}


class InPlace(Pass):
    """Of floating-point tensors: ``x + y`` becomes ``x.add_(y)`` where x is not needed any more."""

    name = "in place"

    def run(self, graph: SegmentGraph) -> None:
        for call in graph.calls:
            if call.op not in _POINTWISE or not call.single or call.view or not call.pure:
                continue
            (out,) = call.outputs
            value = graph.values[call.inputs[0]]
            if not value.dtype.is_floating_point or value.meta != graph.values[out].meta:
                continue
            if value.maker < 0 or graph.calls[value.maker].op not in _MAKERS or graph.calls[value.maker].view:
                continue
            method = _method(call)
            if method is None:
                continue
            try:
                graph.replace(call, method, call.args, call.kwargs, overwrites=0)
            except Unproven:
                continue
            self.note(graph, call, value.nbytes)


def _method(call: RecordedCall) -> Callable[..., Any] | None:
    """Torch's in-place function of that name, if it makes the same call but for where the result goes."""
    if not call.args or not isinstance(call.args[0], Input) or call.args[0] != 0:
        return None
    name = call.op.removeprefix("aten::") + "_"
    key = call.overload, call.op, kinds(call)
    if key not in _known:
        holders = (torch._C.TensorBase, torch._C._nn, torch._C._VariableFunctions)
        found = (getattr(holder, name, None) for holder in holders)
        _known[key] = next((f for f in found if f is not None and _is_same(call, f)), None)
    return _known[key]


def _is_same(call: RecordedCall, function: Callable[..., Any]) -> bool:
    """Do both come to one call of the dispatcher, of one overload but for the underscore, with equal arguments?"""
    inputs = stand_ins(call)
    plain, written = comes_to(call, call.function, inputs), comes_to(call, function, inputs)
    if len(plain) != 1 or len(written) != 1:
        return False
    names = [made[0]._schema.name for made in (*plain, *written)]
    overloads = [made[0]._overloadname for made in (*plain, *written)]
    return (
        names[1] == names[0] + "_"
        and overloads[0] == overloads[1]
        and equal(plain[0][1:], written[0][1:])
        and torch._C._dispatch_has_kernel(written[0][0].name())
    )
