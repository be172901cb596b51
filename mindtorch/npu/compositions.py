"""Operators of torch_npu's that programs call most, written in torch's own, which autograd and estimates know.

Formulas: torch_npu's documentation of each. ``npu_format_cast`` changes no values: every tensor here has the plain
format.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import torch
import torch.nn.functional as F

from ..base.errors import UnsupportedOperationError

__all__ = [
    "Format", "empty_with_format", "fast_gelu", "get_npu_format", "get_storage_size", "npu_add_rms_norm", "npu_bmmV2",
    "npu_broadcast", "npu_confusion_transpose", "npu_dtype_cast", "npu_fast_gelu", "npu_format_cast",
    "npu_format_cast_", "npu_fusion_attention", "npu_gelu", "npu_linear", "npu_mish", "npu_prompt_flash_attention",
    "npu_reshape", "npu_rms_norm", "npu_rotary_mul", "npu_silu", "npu_swiglu", "npu_transpose",
]  # fmt: skip

Format = IntEnum(
    "Format",
    {
        "UNDEFINED": -1, "NCHW": 0, "NHWC": 1, "ND": 2, "NC1HWC0": 3, "FRACTAL_Z": 4, "NC1HWC0_C04": 12, "HWCN": 16,
        "NDHWC": 27, "FRACTAL_NZ": 29, "NCDHW": 30, "NDC1HWC0": 32, "FRACTAL_Z_3D": 33, "NC": 35, "NCL": 47,
    },
)  # fmt: skip


# ---- formats, shapes and dtypes --------------------------------------------------------------------------------------
def npu_format_cast(input: torch.Tensor, acl_format: int) -> torch.Tensor:
    """``input`` itself: in the format ND, whatever is asked for."""
    Format(acl_format)  # ValueError for what is none
    return input


npu_format_cast_ = npu_format_cast


def get_npu_format(input: torch.Tensor) -> Any:
    """Always ``Format.ND``."""
    return Format(2)


def empty_with_format(
    size: Sequence[int], *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
    device: Any = None, pin_memory: bool | None = None, acl_format: int = 2, base_addrs: Any = None,
) -> torch.Tensor:  # fmt: skip
    """``torch.empty`` on an NPU: in the format ND, whatever is asked for."""
    Format(acl_format)
    if base_addrs is not None:
        raise UnsupportedOperationError("[torch_npu.empty_with_format] base_addrs: mindtorch does not combine tensors")
    return torch.empty(
        size, dtype=dtype, layout=layout, device="npu" if device is None else device, pin_memory=bool(pin_memory)
    )


def get_storage_size(input: torch.Tensor) -> int:
    """How many elements the storage holds."""
    return input.untyped_storage().nbytes() // input.element_size()


def npu_dtype_cast(input: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return input.to(dtype)


def npu_transpose(input: torch.Tensor, perm: Sequence[int], require_contiguous: bool = True) -> torch.Tensor:
    turned = input.permute(*perm)
    return turned.contiguous() if require_contiguous else turned


def npu_confusion_transpose(
    input: torch.Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> torch.Tensor:
    """transpose_first: permuted and then reshaped, else the other way round."""
    out = input.permute(*perm).reshape(*shape) if transpose_first else input.reshape(*shape).permute(*perm)
    return out.contiguous()


def npu_reshape(input: torch.Tensor, shape: Sequence[int], can_refresh: bool = False) -> torch.Tensor:
    return input.reshape(*shape)


def npu_broadcast(input: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return input.expand(*size).contiguous()


# ---- activations and products ----------------------------------------------------------------------------------------
def fast_gelu(input: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(1.702 x)``."""
    return input * torch.sigmoid(1.702 * input)


npu_fast_gelu = fast_gelu


def npu_gelu(input: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return F.gelu(input, approximate=approximate)


def npu_silu(input: torch.Tensor) -> torch.Tensor:
    return F.silu(input)


def npu_mish(input: torch.Tensor) -> torch.Tensor:
    return F.mish(input)


def npu_swiglu(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """``silu(a) * b`` of the halves ``a`` and ``b`` along ``dim``."""
    a, b = input.chunk(2, dim)
    return F.silu(a) * b


def npu_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return F.linear(input, weight, bias)


def npu_bmmV2(input: torch.Tensor, mat2: torch.Tensor, output_sizes: Sequence[int]) -> torch.Tensor:
    product = torch.matmul(input, mat2)
    return product.reshape(*output_sizes) if output_sizes else product


# ---- norms and positions ---------------------------------------------------------------------------------------------
def npu_rms_norm(input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    """(``x * rstd * gamma`` in the dtype of ``x``, ``rstd`` in float32) over the dimensions of ``gamma``."""
    dims = tuple(range(-gamma.dim(), 0))
    wide = input.float()
    rstd = torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + epsilon)
    return (wide * rstd * gamma.float()).to(input.dtype), rstd


def npu_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`npu_rms_norm` of the sum, and the sum."""
    x = x1 + x2
    return (*npu_rms_norm(x, gamma, epsilon), x)


def npu_rotary_mul(input: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half") -> torch.Tensor:
    """``x * r1 + rotated(x) * r2``; ``half``: the halves of the last dimension turn, ``interleave``: neighbours."""
    if rotary_mode == "half":
        a, b = input.chunk(2, -1)
        turned = torch.cat((-b, a), -1)
    elif rotary_mode == "interleave":
        turned = torch.stack((-input[..., 1::2], input[..., ::2]), -1).flatten(-2)
    else:
        raise ValueError(f"[npu_rotary_mul] expected rotary_mode 'half' or 'interleave', got {rotary_mode!r}")
    return input * r1 + turned * r2


# ---- attention -------------------------------------------------------------------------------------------------------
_MASKS = {0: "as given", 1: "as given", 2: "causal from the upper left", 3: "causal to the lower right"}


def npu_fusion_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, head_num: int, input_layout: str, *,
    pse: Any = None, padding_mask: Any = None, atten_mask: torch.Tensor | None = None, scale: float = 1.0,
    keep_prob: float = 1.0, pre_tockens: int = 2147483647, next_tockens: int = 2147483647, inner_precise: int = 0,
    prefix: Any = None, actual_seq_qlen: Any = None, actual_seq_kvlen: Any = None, sparse_mode: int = 0,
    gen_mask_parallel: bool = True, sync: bool = False, softmax_layout: str = "", **others: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """(attention, then six times None: the statistics that only a fused backward needs).

    input_layout: ``BNSD``, ``BSND``, ``BSH`` or ``SBH``; sparse_mode 0 to 3. In `atten_mask` True leaves out.
    """
    refused = {"pse": pse, "padding_mask": padding_mask, "prefix": prefix, "actual_seq_qlen": actual_seq_qlen,
               "actual_seq_kvlen": actual_seq_kvlen, **others}  # fmt: skip
    given = [name for name, value in refused.items() if value is not None] + ["softmax_layout"] * bool(softmax_layout)
    # A window belongs to sparse_mode 0: in the others CANN does not look at it, and programs leave one there.
    given += ["a window"] * (sparse_mode == 0 and min(pre_tockens, next_tockens) < 65535)
    if given or input_layout not in _LAYOUTS or sparse_mode not in _MASKS:
        raise UnsupportedOperationError(
            f"[npu_fusion_attention] expected input_layout {', '.join(_LAYOUTS)}, sparse_mode 0 to 3 without a window, "
            f"no pse, prefix or lengths, got {input_layout!r}, {sparse_mode}{''.join(f', {name}' for name in given)}"
        )
    size = _size_of_heads(query, head_num, input_layout)
    q, k, v = (_heads(t, size, input_layout) for t in (query, key, value))
    mask = None if atten_mask is None or sparse_mode > 1 else ~atten_mask.bool()
    if sparse_mode > 1:
        shift = k.shape[-2] - q.shape[-2] if sparse_mode == 3 else 0
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril(shift)
    out = F.scaled_dot_product_attention(
        q, k, v, mask, 1 - keep_prob, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )  # fmt: skip
    return (_joined(out, input_layout), *[None] * 6)


def npu_prompt_flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, padding_mask: Any = None,
    atten_mask: torch.Tensor | None = None, pse_shift: Any = None, actual_seq_lengths: Any = None,
    deq_scale1: Any = None, quant_scale1: Any = None, deq_scale2: Any = None, quant_scale2: Any = None,
    quant_offset2: Any = None, num_heads: int = 1, scale_value: float = 1.0, pre_tokens: int = 2147483647,
    next_tokens: int = 0, input_layout: str = "BSH", num_key_value_heads: int = 0, actual_seq_lengths_kv: Any = None,
    sparse_mode: int = 0,
) -> torch.Tensor:  # fmt: skip
    """`npu_fusion_attention`'s first result, for a whole prompt.

    num_key_value_heads: 0 for as many as `num_heads`. In sparse_mode 0 with `atten_mask`, a query sees no key that is
    more than `next_tokens` after it or `pre_tokens` before it; without, it sees all.
    """
    refused = {"padding_mask": padding_mask, "pse_shift": pse_shift, "actual_seq_lengths": actual_seq_lengths,
               "deq_scale1": deq_scale1, "quant_scale1": quant_scale1, "deq_scale2": deq_scale2,
               "quant_scale2": quant_scale2, "quant_offset2": quant_offset2,
               "actual_seq_lengths_kv": actual_seq_lengths_kv}  # fmt: skip
    if given := [name for name, value in refused.items() if value is not None]:
        raise UnsupportedOperationError(f"[npu_prompt_flash_attention] expected no {', '.join(given)}")
    if input_layout in _LAYOUTS:
        size = _size_of_heads(query, num_heads, input_layout)
        found = _heads(key, size, input_layout).shape[1]
        if found != (num_key_value_heads or num_heads):
            raise ValueError(
                f"[npu_prompt_flash_attention] expected {num_key_value_heads or num_heads} heads in keys and values, "
                f"got {found} in a key of {tuple(key.shape)}"
            )
    if sparse_mode == 0 and atten_mask is not None:
        before, after = min(pre_tokens, 1 << 30), min(next_tokens, 1 << 30)
        seen = torch.ones(atten_mask.shape[-2:], dtype=torch.bool, device=atten_mask.device).tril(after).triu(-before)
        atten_mask = atten_mask.bool() | ~seen
    return npu_fusion_attention(  # type: ignore[no-any-return]
        query, key, value, num_heads, input_layout, atten_mask=atten_mask, scale=scale_value, sparse_mode=sparse_mode
    )[0]


#: layout → how a tensor of it with heads apart becomes BNSD, and back
_LAYOUTS = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3), "SBH": (1, 2, 0, 3)}
_BACK = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3), "SBH": (2, 0, 1, 3)}


def _size_of_heads(query: torch.Tensor, heads: int, layout: str) -> int:
    if "N" in layout:
        found, size, rest = query.shape[layout.index("N")], query.shape[-1], 0
    else:
        found, (size, rest) = heads, divmod(query.shape[-1], max(heads, 1))
    if found != heads or heads < 1 or size < 1 or rest:
        raise ValueError(
            f"[npu_fusion_attention] expected as many heads as the query has in {layout}, got {heads} for a query of "
            f"{tuple(query.shape)}"
        )
    return size


def _heads(t: torch.Tensor, size: int, layout: str) -> torch.Tensor:
    apart = t.unflatten(-1, (-1, size)) if layout.endswith("H") else t
    return apart.permute(_LAYOUTS[layout])


def _joined(t: torch.Tensor, layout: str) -> torch.Tensor:
    back = t.permute(_BACK[layout])
    return (back.flatten(-2) if layout.endswith("H") else back).contiguous()
