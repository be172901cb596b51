"""Stand-ins on CUDA for operators that torch has on the CPU alone.

To C++ a lazy tensor is on the CPU, so where torch picks a kernel's operator by device, it records the CPU's. That is so
of attention alone (tests/test_execute.py compares what is recorded with torch's table of kernels). What stands in asks
torch's attention again, on the tensors' own device: the kernel, and the bits, are those that CUDA would have chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_library: Any = None


def register() -> None:
    """Give torch's dispatcher the stand-ins, for CUDA tensors; what it has it keeps. Idempotent."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("aten", "IMPL")
    for name, function in STAND_INS.items():
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
            _library.impl(name, function, "CUDA")


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(output, logsumexp); only the backward below is handed the latter, and it needs none: full of NaN."""
    out = F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
    batch, heads, length, _dim = query.shape
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    return out, query.new_full((batch, length, heads), float("nan"), dtype=dtype).transpose(1, 2)


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of query, key and value: forward once more, for torch to undo with the kernel that goes with it."""
    autograd = torch._C.DispatchKey.AutogradFunctionality
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(autograd)
    torch._C._dispatch_tls_set_dispatch_key_excluded(autograd, False)  # a kernel is called below autograd
    try:
        with torch.inference_mode(False), torch.enable_grad():
            q, k, v = (_ordinary(t).requires_grad_() for t in (query, key, value))
            mask = None if attn_mask is None else _ordinary(attn_mask)
            again = F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale=scale)
            return torch.autograd.grad(again, (q, k, v), grad_out)
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(autograd, excluded)


def _ordinary(t: Tensor) -> Tensor:
    return t.clone() if t.is_inference() else t.detach()  # autograd refuses inference tensors; their clones it takes


#: Their results after the first are notes for their own backward, of which each device has its kind: statistics in
#: float32 of an input of 16 bits, a buffer without elements, bags of all indices. That backward wants its device's.
NOTES = frozenset(
    f"aten::{name}"
    for name in (
        "native_layer_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
        "_batch_norm_with_update", "_fused_rms_norm", "log_sigmoid_forward", "_embedding_bag",
        "_embedding_bag_forward_only",
    )
)  # fmt: skip


def its_own(name: str, out: int, value: Any) -> bool:
    """Is result number `out` one that CUDA may make otherwise than the CPU, for which it was predicted?"""
    return out > 0 and name in NOTES and isinstance(value, Tensor) and value.is_cuda


STAND_INS: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
}
