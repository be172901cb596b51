"""Which kernels an accelerator takes for attention and dropout, and the calls of them, in an estimate (SPEC C4).

To C++ tensors without data are on the CPU, whose kernel knows no dropout and falls back to whole matrices of scores.
The rules here are those of torch's own choice for CUDA (ATen/native/transformers/cuda/sdp_utils.cpp): by dtype, head
size, mask, dropout, compute capability, and what the program has allowed (`torch.nn.attention.sdpa_kernel`).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.nn import functional as F

from ..._ext import intercept as _intercept
from ..._ext import intern as _intern
from ..._ext import lazy as _core
from ...base.errors import UnsupportedOperationError
from ...base.patching import Patch
from ...devices import mode
from ...devices.lazy_device import on_cuda

__all__ = ["chosen", "flex", "install", "of_capability", "patches"]
_sdpa, _dropout = F.scaled_dot_product_attention, torch.dropout
_HALVES = (torch.float16, torch.bfloat16)
_capability = (9, 0)
_installed = False


def of_capability(capability: tuple[int, int] | None) -> None:
    """What the kernels are chosen for from now on: CUDA's compute capability; None: not known, a recent one."""
    global _capability
    _capability = capability or (9, 0)


def install() -> None:
    """Have calls on tensors without data on ``cuda`` answered here, whatever name the program has for the function."""
    global _installed
    if not _installed:
        _installed = True
        name = "aten::scaled_dot_product_attention"
        _intercept.register(_dropout, _intern.OpInfo(_dropout, "aten::dropout", _intern.HANDLER, handler=_drop))
        _intercept.register(_sdpa, _intern.OpInfo(_sdpa, name, _intern.HANDLER, handler=_handler))
        # What it comes to is known the second time: copies.
        _intercept.register(_inner, _intern.OpInfo(_inner, name, _intern.PASS, handler=_as_ever, copies=True))


def patches() -> list[Patch]:
    """(owner, attribute, replacement), for torch's own code, which calls it where no class of tensors is asked."""
    return [
        (F, "scaled_dot_product_attention", _stand_in),
        (torch._C._nn, "scaled_dot_product_attention", _stand_in),
        *((owner, "dropout", _dropout_stand_in) for owner in (torch, torch._VF)),
        (torch, "_nested_tensor_from_mask_left_aligned", lambda t, mask: False),  # padding is counted, too
    ]


@functools.wraps(_dropout)
def _dropout_stand_in(*args: Any, **kwargs: Any) -> Any:
    if torch._C._len_torch_function_stack() and not torch._C._is_torch_function_all_disabled():
        return _dropout(*args, **kwargs)
    out = _drop(args, kwargs)
    return _dropout(*args, **kwargs) if out is NotImplemented else out


def _drop(args: tuple, kwargs: dict[str, Any]) -> Any:
    """CUDA's kernel keeps a mask of booleans, the CPU's one of the input's dtype."""
    given = dict(zip(("input", "p", "train"), args, strict=False)) | kwargs
    x, p, train = (given.get(name) for name in ("input", "p", "train"))
    fused = mode.now.estimate is not None and train and isinstance(p, (int, float)) and 0 < p < 1 and _on_cuda(x)
    if not fused or x is None or not x.numel() or torch._C._functorch.peek_interpreter_stack() is not None:
        return NotImplemented
    return torch.ops.aten.native_dropout(x, p, True)[0]


@functools.wraps(_sdpa)
def _stand_in(*args: Any, **kwargs: Any) -> Any:
    if torch._C._len_torch_function_stack() and not torch._C._is_torch_function_all_disabled():
        return _sdpa(*args, **kwargs)  # modes of the program see it first; it comes back to the handler
    ours = any(_core.get_handle(t) is not None for t in (*args, *kwargs.values()))
    if ours and torch._C._is_torch_function_enabled():
        return _intercept.torch_function(None, _inner, (), args, kwargs or None)
    return _inner(*args, **kwargs)


def _inner(*args: Any, **kwargs: Any) -> Any:
    out = _handler(args, kwargs)
    return _sdpa(*args, **kwargs) if out is NotImplemented else out


def _as_ever() -> bool:
    """Has the program left torch the choice among all kernels?"""
    context = torch._C
    return (
        context._get_flash_sdp_enabled()
        and context._get_mem_efficient_sdp_enabled()
        and context._get_math_sdp_enabled()
    )


def _handler(args: tuple, kwargs: dict[str, Any]) -> Any:
    if mode.now.estimate is None or torch._C._functorch.peek_interpreter_stack() is not None:
        return NotImplemented
    return _attend(*args, **kwargs)


def _attend(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
            scale: float | None = None, enable_gqa: bool = False) -> Any:  # fmt: skip
    if not all(_on_cuda(t) for t in (query, key, value)):
        return NotImplemented
    if attn_mask is not None and not _on_cuda(attn_mask):
        return NotImplemented  # of two devices: refused as any other call
    if torch.is_autocast_enabled("cpu"):  # which is where C++ takes the tensors to be
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value, attn_mask = (_cast(t, dtype) for t in (query, key, value, attn_mask))
    _validate(query, key, value, attn_mask)
    kind = chosen(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    if attn_mask is not None and attn_mask.dtype is torch.bool:  # before any of the kernels
        never = torch.scalar_tensor(-math.inf, dtype=query.dtype, device=attn_mask.device)
        attn_mask = torch.ops.aten.where.ScalarSelf(attn_mask, 0.0, never)
    if kind == "math":
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    if kind == "flash":
        size, more = query.shape[-1], -query.shape[-1] % 8
        scale = 1 / math.sqrt(size) if scale is None and size else scale
        if more:
            query, key, value = (F.pad(t, (0, more)) for t in (query, key, value))
        out = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
        return out[..., :size] if more else out
    logsumexp = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    bias = None if attn_mask is None else _as_bias(attn_mask, query, key)
    if kind == "cudnn":
        op: Any = torch.ops.aten._scaled_dot_product_cudnn_attention
        return op(query, key, value, bias, logsumexp, dropout_p, is_causal, False, scale=scale)[0]
    op = torch.ops.aten._scaled_dot_product_efficient_attention
    return op(query, key, value, bias, logsumexp, dropout_p, is_causal, scale=scale)[0]


def _on_cuda(t: Any) -> bool:
    return _core.device_index(t) < 0 and on_cuda(t)


def _cast(t: Any, dtype: torch.dtype) -> Any:
    wanted = t is not None and t.is_floating_point() and t.dtype is not torch.float64
    return t.to(dtype) if wanted else t


def _as_bias(mask: Any, query: Any, key: Any) -> Any:
    """What the kernels read: rows of the mask begin at multiples of 16 elements, and it has all dimensions."""
    last = mask.shape[-1]
    if last % 16:
        mask = F.pad(mask, (0, -last % 16))[..., :last]
    return mask.expand(query.shape[0], query.shape[1], query.shape[-2], key.shape[-2])


def _validate(query: Any, key: Any, value: Any, mask: Any) -> None:
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            f"Expected query, key, and value to have the same dtype, but got query.dtype: {_name(query)} key.dtype: "
            f"{_name(key)} and value.dtype: {_name(value)} instead."
        )
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            f"{_name(mask)} and  query.dtype: {_name(query)} instead."
        )


_NAMES = {torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16", torch.float32: "float", torch.float64: "double"}


def _name(t: Any) -> str:
    return _NAMES.get(t.dtype, str(t.dtype).removeprefix("torch."))


# ---- torch's choice --------------------------------------------------------------------------------------------------
def chosen(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, gqa: bool) -> str:
    """``flash``, ``efficient``, ``cudnn`` or ``math``; RuntimeError where the program has forbidden all that could."""
    context = torch._C
    fused = _fusable(query, key, value, gqa)
    if context._get_flash_sdp_enabled() and fused and _flash(query, key, value, mask, dropout, causal):
        return "flash"
    if context._get_mem_efficient_sdp_enabled() and fused and _efficient(query, key, value, mask):
        if mask is not None and mask.dtype not in (torch.bool, query.dtype):
            raise RuntimeError("invalid dtype for bias - should match query's dtype")
        return "efficient"
    if context._get_math_sdp_enabled():
        return "math"
    if context._get_cudnn_sdp_enabled() and fused and _cudnn(query, value, mask):
        return "cudnn"
    raise RuntimeError("No available kernel. Aborting execution.")


def _fusable(query: Any, key: Any, value: Any, gqa: bool) -> bool:
    q, k, v = (tuple(t.shape) for t in (query, key, value))
    if not len(q) == len(k) == len(v) == 4 or not q[-2] or not k[-2]:
        return False
    if not all(t.stride(-1) == 1 or t.shape[-1] == 1 for t in (query, key, value)):
        return False
    same_heads = q[1] == k[1] == v[1] or (gqa and k[1] == v[1] and k[1] and q[1] % k[1] == 0)
    return q[0] == k[0] == v[0] and bool(same_heads)


def _flash(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool) -> bool:
    size = query.shape[-1]
    if _capability < (8, 0) or query.dtype not in _HALVES or mask is not None:
        return False
    if not size == key.shape[-1] == value.shape[-1] <= 256 or (causal and query.shape[-2] != key.shape[-2]):
        return False
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    small = _capability in ((8, 6), (8, 9)) or _capability[0] == 12
    return not (small and learns and (size > 224 or (size > 192 and dropout > 0)))


def _efficient(query: Any, key: Any, value: Any, mask: Any) -> bool:
    if query.dtype is torch.bfloat16 and _capability < (8, 0):
        return False
    if query.dtype not in (*_HALVES, torch.float32) or _capability < (5, 0) or query.shape[1] != key.shape[1]:
        return False
    half = query.dtype in _HALVES
    aligned = 16 // query.element_size() if _capability >= (8, 0) else 8 if half and _capability >= (7, 5) else 4
    aligned = aligned if half or _capability >= (8, 0) else 1
    sizes = (query.shape[-1], value.shape[-1])
    return query.shape[-1] == key.shape[-1] and all(size and size % aligned == 0 for size in sizes)


def _cudnn(query: Any, value: Any, mask: Any) -> bool:
    most = 256 if _capability >= (9, 0) else 128
    sizes = (query.shape[-1], value.shape[-1])
    return _capability >= (8, 0) and query.dtype in _HALVES and all(s % 8 == 0 and s <= most for s in sizes)


# ---- flex_attention --------------------------------------------------------------------------------------------------
def flex(query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: Any = None, *rest: Any) -> Any:
    """``flex_attention_hop(query, ...)`` as its compiled kernel has it: no scores are held. All blocks are counted."""
    if key.shape[1] != value.shape[1] or query.shape[1] % max(key.shape[1], 1):
        raise UnsupportedOperationError("[flex_attention] expected as many heads of keys as of values")
    if query.shape[-1] != value.shape[-1]:
        key = F.pad(key, (0, max(value.shape[-1] - key.shape[-1], 0)))
        query = F.pad(query, (0, max(value.shape[-1] - query.shape[-1], 0)))
        value = F.pad(value, (0, max(query.shape[-1] - value.shape[-1], 0)))
    out, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, False, False, scale=scale
    )[:2]
    return out, logsumexp, logsumexp
