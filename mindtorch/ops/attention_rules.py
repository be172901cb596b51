"""FLOP rules for attention. Two products per head forward, five backward (the scores are computed again).

Scaling, masking, softmax and dropout inside the kernel are not counted, and a causal mask does not reduce the count:
torch's FLOP counter does the same, so numbers agree with other tools. Grouped-query attention counts query heads.
"""

from __future__ import annotations

import math
from typing import Any

from .flop_rules import Args, Kwargs, argument


def _work(batch: int, q_len: int, k_len: int, d_qk: int, d_v: int, backward: bool) -> int:
    # forward: Q K^T and P V. backward: Q K^T again, dQ and dK (over d_qk); dP and dV (over d_v).
    if backward:
        return 2 * batch * q_len * k_len * (3 * d_qk + 2 * d_v)
    return 2 * batch * q_len * k_len * (d_qk + d_v)


def _heads_first(query: Any, key: Any, value: Any, backward: bool) -> int:
    """(..., length, dim) tensors; leading dimensions broadcast, and query has at least as many heads as key."""
    q, k, v = query.shape, key.shape, value.shape
    lead_q, lead_k = q[:-2], k[:-2]
    ndim = max(len(lead_q), len(lead_k))
    lead_q = (1,) * (ndim - len(lead_q)) + tuple(lead_q)
    lead_k = (1,) * (ndim - len(lead_k)) + tuple(lead_k)
    batch = math.prod(0 if 0 in pair else max(pair) for pair in zip(lead_q, lead_k))
    return _work(batch, q[-2], k[-2], q[-1], v[-1], backward)


def sdpa(args: Args, kwargs: Kwargs, out: Any) -> int:
    """scaled_dot_product_attention and its kernels: (query, key, value, ...)."""
    query = argument(args, kwargs, 0, "query")
    key = argument(args, kwargs, 1, "key")
    return _heads_first(query, key, argument(args, kwargs, 2, "value"), False)


def sdpa_backward(args: Args, kwargs: Kwargs, out: Any) -> int:
    """_scaled_dot_product_*_attention_backward: (grad_out, query, key, value, ...)."""
    query = argument(args, kwargs, 1, "query")
    key = argument(args, kwargs, 2, "key")
    return _heads_first(query, key, argument(args, kwargs, 3, "value"), True)


def flex_backward(args: Args, kwargs: Kwargs, out: Any) -> int:
    """flex_attention_backward(query, key, value, out, logsumexp, grad_out, ...)."""
    return _heads_first(args[0], args[1], args[2], True)


def _length_first(query: Any, key: Any, value: Any, cu_q: Any, cu_k: Any, max_q: Any, max_k: Any, back: bool) -> int:
    """(batch, length, heads, dim), or packed (tokens, heads, dim) with cumulative lengths.

    Packed lengths are data, and counting must not read data: every sequence is taken to be as long as the longest,
    which overestimates (torch does so too when it cannot see the lengths).
    """
    q, k, v = query.shape, key.shape, value.shape
    if cu_q is not None:
        sequences = cu_q.shape[-1] - 1
        heads = q[-2]
        return _work(sequences * heads, int(max_q), int(max_k), q[-1], v[-1], back)
    return _work(q[0] * q[2], q[1], k[1], q[-1], v[-1], back)


def flash_forward(args: Args, kwargs: Kwargs, out: Any) -> int:
    """_flash_attention_forward(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, ...)."""
    names = ("query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k")
    return _length_first(*(argument(args, kwargs, i, n) for i, n in enumerate(names)), back=False)  # type: ignore[misc]


def flash_inplace(args: Args, kwargs: Kwargs, out: Any) -> int:
    """_flash_attention_forward_no_dropout_inplace(out, query, key, ...)."""
    return flash_forward(args[1:], kwargs, out)


def flash_backward(args: Args, kwargs: Kwargs, out: Any) -> int:
    """_flash_attention_backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k)."""
    query, key, value = args[1:4]
    return _length_first(query, key, value, *args[6:10], back=True)  # type: ignore[misc]


def efficient_forward(args: Args, kwargs: Kwargs, out: Any) -> int:
    """_efficient_attention_forward(query, key, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, ...)."""
    return _efficient(args, kwargs, 0, 4, False)


def efficient_backward(args: Args, kwargs: Kwargs, out: Any) -> int:
    """_efficient_attention_backward(grad_out, query, key, value, bias, out, cu_seqlens_q, cu_seqlens_k, ...)."""
    return _efficient(args, kwargs, 1, 6, True)


def _efficient(args: Args, kwargs: Kwargs, first: int, lengths: int, back: bool) -> int:
    query, key, value = args[first : first + 3]
    cu_q = argument(args, kwargs, lengths, "cu_seqlens_q")
    if cu_q is None:
        return _length_first(query, key, value, None, None, None, None, back)
    max_q = argument(args, kwargs, lengths + 2, "max_seqlen_q")
    max_k = argument(args, kwargs, lengths + 3, "max_seqlen_k")
    # packed sequences come as (1, tokens, heads, dim)
    return _length_first(query, key, value, cu_q, None, max_q, max_k, back)


def native_mha(args: Args, kwargs: Kwargs, out: Any) -> int:
    """_native_multi_head_attention(query, key, value, embed_dim, num_head, ...): projections and attention."""
    query, key, embed = args[0], args[1], args[3]
    batch, q_len, k_len = query.shape[0], query.shape[1], key.shape[1]
    projections = 2 * batch * embed * embed * (2 * q_len + 2 * k_len)
    return projections + _work(batch, q_len, k_len, embed, embed, False)


def encoder_layer(args: Args, kwargs: Kwargs, out: Any) -> int:
    """_transformer_encoder_layer_fwd(src, embed_dim, ..., ffn_weight_1, _, ffn_weight_2, ...): TransformerEncoderLayer
    in eval mode. Its products; norms and activation are not counted."""
    src, embed = args[:2]
    hidden = argument(args, kwargs, 14, "ffn_weight_1").shape[0]
    tokens = math.prod(src.shape[:-1])  # a nested one says no shape: no formula
    length = src.shape[-2]
    attention = _work(tokens // max(length, 1), length, length, embed, embed, False)
    return 2 * tokens * embed * (4 * embed + 2 * hidden) + attention
