"""Operators whose kernels believe what they are given: indices within tensors, sizes of states (SPEC R3).

Most of torch's kernels look. Those that do not are either not there for messages (``REFUSED``: the program's own
process runs them), or what they believe is looked at here before. Where values are on a GPU, the contents of indices
are not: each look would wait for it.

``tests/remote/hostile_calls.py`` calls every operator that messages may name with contents and sizes that are wrong, on
memory that nobody may read or write beyond.

One file: a table of operators, and the looks that its rows share.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..base.strides import extent

__all__ = ["REFUSED", "looking", "looking_inside"]

#: They open files, change what autograd knows, hold addresses in tensors, or believe too much to be looked at.
REFUSED = re.compile(
    r"aten::("
    r"from_file|_print|_backward|set_data|_test_\w+|_efficientzerotensor|_make_dual\w*|_(un)?pack_dual|_fw_primal\w*"
    r"|_sparse_\w+_unsafe|_unsafe_(masked_)?index\w*|_index_put_impl_?"
    r"|_convert_indices_\w+|_cumm(ax|in)_helper|_?segment_reduce(_backward)?"
    r"|_?nested_\w+|_jagged_\w+|_padded_dense_\w+|_sobol_engine_\w+|_?fbgemm_\w+|choose_qparams_optimized"
    r"|_thnn_\w+|_saturate_weight_to_fp16|_batch_norm_impl_index_backward"
    r"|_reshape_alias_copy|lu_unpack|linalg_ldl_solve|_pdist_backward|multi(label)?_margin_loss_backward|fractional_max_pool\w+_backward"
    r")"
)


def looking(overload: Any) -> Callable[..., Any]:
    """What an overload runs, after a look at its arguments where its kernel does not look."""
    name, run = overload._schema.name, overload._op
    check = _CHECKS.get(name)
    if check is None:
        return looking_inside(run, name)
    arguments = overload._schema.arguments
    positions = [a.name for a in arguments]
    defaults = {a.name: a.default_value for a in arguments}

    def looked(*args: Any, **kwargs: Any) -> Any:
        check(SimpleNamespace(**{**defaults, **dict(zip(positions, args)), **kwargs}))
        return run(*args, **kwargs)

    return looked


class _Looking(TorchDispatchMode):
    """Looks at operators within a function that is made of several."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return _looking(func)(*args, **(kwargs or {}))


_looking = functools.lru_cache(maxsize=4096)(looking)


def looking_inside(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same for a function of this operator's name that may call several."""
    if name not in _MADE_OF and name not in _CHECKS:
        return function

    def looked(*args: Any, **kwargs: Any) -> Any:
        with _Looking():
            return function(*args, **kwargs)

    return looked


# ---- what is looked at -----------------------------------------------------------------------------------------------
def _wrong(what: str) -> NoReturn:
    raise RuntimeError(what)


def _indices(t: torch.Tensor | None, end: int, begin: int = 0, besides: int | None = None) -> None:
    """Indices from ``begin`` up to, and without, ``end``; ``besides``: one that means nothing."""
    if t is None or not t.numel() or t.device.type != "cpu" or t.dtype.is_floating_point or t.dtype.is_complex:
        return
    low, high = (each.item() for each in torch.aminmax(t))
    if begin <= low and high < end:
        return
    wrong = t[((t < begin) | (t >= end)) & (t != (begin if besides is None else besides))]
    if wrong.numel():
        raise IndexError(f"expected indices in {begin}..{end - 1}, got {wrong.flatten()[0].item()}")


def _rising(t: torch.Tensor, end: int) -> None:
    """Offsets of parts, one after the other, from 0 up to ``end``."""
    _indices(t, end + 1)
    if t.device.type == "cpu" and (t[0].item() if t.numel() else end) != 0:
        _wrong("expected offsets from 0 on")
    if t.device.type == "cpu" and t.numel() > 1 and bool((t[1:] < t[:-1]).any()):
        _wrong("expected offsets in order")


def _sizes(t: torch.Tensor | None, *sizes: int) -> None:
    """A tensor, if there is one, of these sizes."""
    if t is not None and tuple(t.shape) != sizes:
        _wrong(f"expected a tensor of {sizes}, got one of {tuple(t.shape)}")


def _like(other: torch.Tensor, *tensors: torch.Tensor | None) -> None:
    """Tensors, those that there are, of the sizes of another one."""
    for t in tensors:
        _sizes(t, *other.shape)


def _elements(n: int, *tensors: torch.Tensor | None) -> None:
    """Tensors, those that there are, of so many elements."""
    for t in tensors:
        if t is not None and t.numel() != n:
            _wrong(f"expected a tensor of {n} elements, got one of {tuple(t.shape)}")


def _alias(a: SimpleNamespace) -> None:
    there = a.self.untyped_storage().nbytes()
    wanted = extent(a.size, a.stride, a.self.storage_offset()) * a.self.dtype.itemsize
    if wanted > there or min((*a.size, *a.stride), default=0) < 0:
        _wrong(f"expected a view within {there} bytes, got one of {wanted}")


# ---- indices ---------------------------------------------------------------------------------------------------------
def _embedding_backward(a: SimpleNamespace) -> None:
    _indices(a.indices, a.num_weights, besides=a.padding_idx)


def _max_pool_backward(ndim: int) -> Callable[[SimpleNamespace], None]:
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    sizes = _as_forward(f"max_pool{ndim}d_with_indices", *names)

    def check(a: SimpleNamespace) -> None:
        sizes(a)
        _like(a.grad_output, a.indices)
        _indices(a.indices, math.prod(a.self.shape[-ndim:]), -1)

    return check


def _adaptive_pool_backward(ndim: int) -> Callable[[SimpleNamespace], None]:
    def check(a: SimpleNamespace) -> None:
        outer, inner = tuple(a.self.shape[:-ndim]), a.self.shape[-ndim:]
        if len(outer) not in (1, 2) or 0 in inner or tuple(a.grad_output.shape[:-ndim]) != outer:
            _wrong(f"expected a gradient of {outer} and {ndim} dimensions, got {tuple(a.grad_output.shape)}")
        if hasattr(a, "indices"):
            _like(a.grad_output, a.indices)
            _indices(a.indices, math.prod(inner))

    return check


def _bag(a: SimpleNamespace) -> None:
    _indices(a.indices, a.weight.shape[0] if a.weight.dim() else 0)
    _rising(a.offsets, a.indices.numel())
    _elements(a.indices.numel(), a.per_sample_weights)


def _bag_backward(a: SimpleNamespace) -> None:
    bags = a.grad.shape[0] if a.grad.dim() == 2 else _wrong(f"expected a gradient of 2 dimensions, got {a.grad.dim()}")
    n = a.indices.numel()
    weights = getattr(a, "num_weights", None)
    if weights is None:
        weights = a.weight.shape[0]
        _sizes(a.weight, weights, a.grad.shape[1])
    _indices(a.indices, weights)
    if hasattr(a, "offsets"):
        _rising(a.offsets, n)
        ends = a.offsets.numel() == bags + 1  # the last one is then where all of them end
        if a.offsets.numel() != bags and not (ends and a.offsets[-1].item() == n):
            _wrong(f"expected offsets of {bags} bags, got {a.offsets.numel()}")
    if a.offset2bag.numel() or not hasattr(a, "offsets"):
        _elements(n, a.offset2bag)
        _indices(a.offset2bag, bags)
    if hasattr(a, "bag_size"):
        _elements(bags, a.bag_size)
    if getattr(a, "maximum_indices", None) is not None and a.mode == 2:
        _like(a.grad, a.maximum_indices)
        _indices(a.maximum_indices, weights, -1)
    _elements(n, getattr(a, "per_sample_weights", None))


def _ctc(a: SimpleNamespace) -> None:
    if a.log_probs.dim() == 3:
        classes = a.log_probs.shape[2]
        _indices(a.targets, classes)
        if not 0 <= a.blank < classes:
            raise IndexError(f"expected a blank in 0..{classes - 1}, got {a.blank}")
        lengths = (a.input_lengths, a.target_lengths)
        for each in lengths:
            if isinstance(each, torch.Tensor):
                _indices(each, 1 << 40)
            elif min(each, default=0) < 0:
                _wrong(f"expected lengths of 0 and more, got {min(each)}")


def _ctc_backward(a: SimpleNamespace) -> None:
    _ctc(a)
    if a.log_probs.dim() != 3:
        _wrong(f"expected log_probs of 3 dimensions, got {a.log_probs.dim()}")
    steps, batch, _classes = a.log_probs.shape
    longest = max((int(n) for n in a.target_lengths), default=0)
    _elements(batch, a.grad, a.neg_log_likelihood)
    if isinstance(a.input_lengths, torch.Tensor):
        _indices(a.input_lengths, steps + 1)
    elif max(a.input_lengths, default=0) > steps:
        _wrong(f"expected lengths up to {steps}, got {max(a.input_lengths)}")
    if len(a.input_lengths) != batch or len(a.target_lengths) != batch:
        _wrong(f"expected {batch} lengths, got {len(a.input_lengths)} and {len(a.target_lengths)}")
    if a.targets.dim() == 1:
        _elements(sum(int(n) for n in a.target_lengths), a.targets)
    elif a.targets.dim() != 2 or a.targets.shape[0] != batch or a.targets.shape[1] < longest:
        _wrong(f"expected targets of {batch} times {longest}, got {tuple(a.targets.shape)}")
    if a.log_alpha.dim() != 3 or a.log_alpha.shape[:2] != (batch, steps) or a.log_alpha.shape[2] < 2 * longest + 1:
        _wrong(f"expected log_alpha of {batch, steps, 2 * longest + 1}, got {tuple(a.log_alpha.shape)}")


def _nll_backward(a: SimpleNamespace) -> None:
    dim = 1 if a.self.dim() > 1 else 0
    classes = a.self.shape[dim] if a.self.dim() else 0
    _elements(a.self.numel() // classes if classes else 0, a.target)
    _indices(a.target, classes, besides=a.ignore_index)
    _elements(classes, a.weight)
    _elements(1, a.total_weight)


# ---- gradients -------------------------------------------------------------------------------------------------------
def _as_forward(forward: str, *names: str) -> Callable[[SimpleNamespace], None]:
    """``grad_output`` has the sizes of what the operator gives that it is the gradient of, from ``self`` and those."""

    def check(a: SimpleNamespace) -> None:
        rest = (getattr(a, name) for name in names)
        given = tuple(tuple(each) if isinstance(each, list) else each for each in rest)
        _sizes(a.grad_output, *_forward_sizes(forward, tuple(a.self.shape), given))

    return check


@functools.lru_cache(maxsize=4096)
def _forward_sizes(name: str, sizes: tuple[int, ...], given: tuple[Any, ...]) -> tuple[int, ...]:
    out = getattr(torch.ops.aten, name).default(_meta(sizes), *given)
    return tuple((out if isinstance(out, torch.Tensor) else out[0]).shape)


def _meta(sizes: Sequence[int]) -> torch.Tensor:
    return torch.ops.aten.empty.memory_format(sizes, device="meta", dtype=torch.float32)  # type: ignore[no-any-return]


def _softmax_backward(a: SimpleNamespace) -> None:
    _like(a.output, a.grad_output)


def _grid_backward(a: SimpleNamespace) -> None:
    if a.grid.dim() < 3 or a.input.dim() != a.grid.dim():
        _wrong(f"expected a grid of {a.input.dim()} dimensions, got {a.grid.dim()}")
    batch, *inner, _two = a.grid.shape
    _sizes(a.grad_output, batch, a.input.shape[1], *inner)


def _unfold_backward(a: SimpleNamespace) -> None:
    _sizes(a.grad_in, *_meta(a.input_sizes).unfold(a.dim, a.size, a.step).shape)


def _resized_smoothly(a: SimpleNamespace) -> None:
    """Scales, where they are given, are those of the sizes."""
    sizes = a.input_size if hasattr(a, "input_size") else a.input.shape if hasattr(a, "input") else a.self.shape
    if not hasattr(a, "scales_h"):
        return  # it is made of one that has them
    for n, wanted, scale in zip(sizes[2:], a.output_size, (a.scales_h, a.scales_w)):
        if scale is not None and not (scale > 0 and abs(n * scale - wanted) <= 1):
            _wrong(f"expected scales from {tuple(sizes[2:])} to {tuple(a.output_size)}, got {scale}")


def _fourier(a: SimpleNamespace) -> None:
    ndim = a.self.dim()
    if not all(-ndim <= d < ndim for d in a.dim):
        raise IndexError(f"expected dimensions of {ndim}, got {tuple(a.dim)}")
    if hasattr(a, "last_dim_size") and (not a.dim or a.last_dim_size // 2 >= a.self.shape[a.dim[-1]]):
        _wrong(f"expected {a.last_dim_size // 2 + 1} frequencies, got {tuple(a.self.shape)}")


# ---- states of optimizers and norms ----------------------------------------------------------------------------------
def _fused(*states: str) -> Callable[[SimpleNamespace], None]:
    """Lists of tensors, one for each parameter; they are read as one stretch of memory each."""

    def check(a: SimpleNamespace) -> None:
        for name in ("grads", *states):
            tensors: Sequence[torch.Tensor] = getattr(a, name)
            if not tensors and name not in ("grads", *states[:-1]):
                continue  # without amsgrad, or momentum
            if len(tensors) != len(a.self):
                _wrong(f"expected {len(a.self)} {name}, got {len(tensors)}")
            for t, like in zip(tensors, a.self, strict=True):
                _like(like, t)
        for t in (*a.self, *a.grads, *(t for name in states for t in getattr(a, name))):
            if t.numel() > t.untyped_storage().nbytes() // t.dtype.itemsize - t.storage_offset():
                _wrong("expected tensors whose elements are next to each other")
        for t in getattr(a, "state_steps", ()):
            _elements(1, t)
        if hasattr(a, "state_steps") and len(a.state_steps) != len(a.self):
            _wrong(f"expected {len(a.self)} state_steps, got {len(a.state_steps)}")
        _elements(1, a.grad_scale if hasattr(a, "grad_scale") else None, getattr(a, "found_inf", None))

    return check


def _layer_norm_backward(a: SimpleNamespace) -> None:
    inner = math.prod(a.normalized_shape)
    _like(a.input, a.grad_out)
    if inner and a.input.numel() % inner == 0:
        _elements(a.input.numel() // inner, getattr(a, "mean", None), a.rstd)
    _elements(inner, a.weight)


def _group_norm(a: SimpleNamespace) -> None:
    if min(a.N, a.C, a.HxW) < 0 or a.group <= 0 or a.C % a.group:
        _wrong(f"expected a number of groups that divides {a.C} channels, got {a.group}")
    _elements(a.N * a.C * a.HxW, a.input, getattr(a, "grad_out", None))
    _elements(a.N * a.group, getattr(a, "mean", None), getattr(a, "rstd", None))
    _elements(a.C, a.weight, getattr(a, "bias", None))


def _batch_norm(a: SimpleNamespace) -> None:
    if a.input.dim() < 2:
        _wrong(f"expected an input of 2 dimensions and more, got {a.input.dim()}")
    channels = a.input.shape[1]
    mean, var = getattr(a, "running_mean", None), getattr(a, "running_var", None)
    trains = getattr(a, "training", getattr(a, "train", getattr(a, "update", None)))
    if (mean is None) != (var is None) or (mean is None and trains is False):
        _wrong("expected a running mean and variance")
    names = ("weight", "bias", "running_mean", "running_var")
    _elements(channels, *(getattr(a, name, None) for name in names))
    if hasattr(a, "grad_out"):
        _like(a.input, a.grad_out)
        saved = (a.save_mean, a.save_invstd if hasattr(a, "save_invstd") else a.save_var)
        if trains and any(t is None for t in saved):
            _wrong("expected the mean and variance of the forward pass")
        _elements(channels, *(t for t in saved if trains or (t is not None and t.numel())))


_GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # of relu, tanh, LSTM, GRU


def _rnn(a: SimpleNamespace) -> None:
    if a.input.dim() != 3 or a.mode not in _GATES or a.batch_sizes or a.hidden_size < 1:
        _wrong("expected an input of 3 dimensions and no sizes of batches")
    steps, batch, width = a.input.shape
    hidden, gates = a.hidden_size, _GATES[a.mode] * a.hidden_size
    backward = hasattr(a, "workspace")
    weights = [getattr(a, f"weight{k + backward}") for k in range(4)]
    _sizes(weights[0], gates, width)
    _sizes(weights[1], gates, hidden)
    if a.has_biases:
        _elements(gates, *weights[2:])
    _elements(batch * hidden, a.hx_, a.cx_tmp if backward else a.cx_)
    if backward:
        _sizes(a.output, steps, batch, hidden)
        _like(a.output, a.grad_output)
        _elements(batch * hidden, a.hy_, a.cy_, a.grad_hy, a.grad_cy)
        _elements(_workspace(steps, batch, width, hidden, a.mode, a.has_biases, a.input.dtype), a.workspace)


@functools.lru_cache(maxsize=1024)
def _workspace(steps: int, batch: int, width: int, hidden: int, mode: int, has_biases: bool, dtype: torch.dtype) -> int:
    """How many elements oneDNN's workspace has, which only the forward pass tells."""

    def zeros(*sizes: int) -> torch.Tensor:
        return torch.ops.aten.zeros.default(sizes, dtype=dtype)  # type: ignore[no-any-return]

    gates = _GATES[mode] * hidden
    with torch.enable_grad():  # without, torch makes none
        *_, workspace = torch.ops.aten.mkldnn_rnn_layer.default(
            zeros(steps, batch, width), zeros(gates, width), zeros(gates, hidden), zeros(gates), zeros(gates),
            zeros(batch, hidden), zeros(batch, hidden), False, [], mode, hidden, 1, has_biases, False, False, True,
        )  # fmt: skip
    return workspace.numel()  # type: ignore[no-any-return]


def _weight_norm(a: SimpleNamespace) -> None:
    v, g = (a.v, a.g) if hasattr(a, "v") else (a.saved_v, a.saved_g)
    if not v.dim() or a.dim not in (0, v.dim() - 1):
        _wrong(f"expected the first or the last dimension, got {a.dim}")
    _elements(v.shape[a.dim], g, getattr(a, "saved_norms", None))
    _like(v, getattr(a, "grad_w", None))


def _attention(a: SimpleNamespace) -> None:
    q, k, v = a.query, a.key, a.value
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        _wrong("expected query, key and value of 4 dimensions")
    batch, heads, n, width = q.shape
    if 0 in (*q.shape, *k.shape, *v.shape):
        _wrong("expected query, key and value with elements")
    groups = k.shape[1]  # heads of queries that are next to each other share one of keys
    if heads % groups:
        _wrong(f"expected {heads} heads of queries in groups of the same size, got {groups} of keys")
    _sizes(k, batch, groups, k.shape[2], width)
    _sizes(v, batch, groups, k.shape[2], width)
    mask = a.attn_mask
    if mask is not None:
        whole = (batch, heads, n, k.shape[2])
        if mask.dim() not in (2, 4) or any(
            m not in (1, there) for m, there in zip(reversed(mask.shape), reversed(whole))
        ):
            _wrong(f"expected a mask that becomes {whole}, got one of {tuple(mask.shape)}")
    if hasattr(a, "grad_out"):
        _like(q, a.grad_out, a.out)
        _sizes(a.logsumexp, batch, heads, n)


_AVERAGED = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
_CHECKS: dict[str, Callable[[SimpleNamespace], None]] = {
    "aten::_reshape_alias": _alias,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::max_pool2d_with_indices_backward": _max_pool_backward(2),
    "aten::max_pool3d_with_indices_backward": _max_pool_backward(3),
    "aten::adaptive_max_pool2d_backward": _adaptive_pool_backward(2),
    "aten::adaptive_max_pool3d_backward": _adaptive_pool_backward(3),
    "aten::_adaptive_avg_pool2d_backward": _adaptive_pool_backward(2),
    "aten::_adaptive_avg_pool3d_backward": _adaptive_pool_backward(3),
    "aten::avg_pool2d_backward": _as_forward("avg_pool2d", *_AVERAGED),
    "aten::avg_pool3d_backward": _as_forward("avg_pool3d", *_AVERAGED),
    **{
        f"aten::{kind}_pad{n}d_backward": _as_forward(f"{kind}_pad{n}d", "padding")
        for kind in ("reflection", "replication")
        for n in (1, 2, 3)
    },
    "aten::grid_sampler_2d_backward": _grid_backward,
    "aten::grid_sampler_3d_backward": _grid_backward,
    "aten::_grid_sampler_2d_cpu_fallback_backward": _grid_backward,
    "aten::unfold_backward": _unfold_backward,
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": _softmax_backward,
    **{
        f"aten::_upsample_{kind}2d_aa{backward}": _resized_smoothly
        for kind in ("bilinear", "bicubic", "lanczos")
        for backward in ("", "_backward")
    },
    "aten::_fft_c2c": _fourier,
    "aten::_fft_c2r": _fourier,
    "aten::_fft_r2c": _fourier,
    "aten::mkldnn_rnn_layer": _rnn,
    "aten::_weight_norm_interface": _weight_norm,
    "aten::_weight_norm_interface_backward": _weight_norm,
    "aten::mkldnn_rnn_layer_backward": _rnn,
    "aten::_embedding_bag": _bag,
    "aten::_embedding_bag_forward_only": _bag,
    "aten::_embedding_bag_backward": _bag_backward,
    "aten::_embedding_bag_dense_backward": _bag_backward,
    "aten::_embedding_bag_sparse_backward": _bag_backward,
    "aten::_embedding_bag_per_sample_weights_backward": _bag_backward,
    "aten::_ctc_loss": _ctc,
    "aten::_ctc_loss_backward": _ctc_backward,
    "aten::nll_loss_backward": _nll_backward,
    "aten::nll_loss2d_backward": _nll_backward,
    "aten::_fused_adam_": _fused("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
    "aten::_fused_adamw_": _fused("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
    "aten::_fused_sgd_": _fused("momentum_buffer_list"),
    "aten::_fused_adagrad_": _fused("state_sums"),
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::_fused_rms_norm_backward": _layer_norm_backward,
    "aten::native_group_norm": _group_norm,
    "aten::native_group_norm_backward": _group_norm,
    "aten::native_batch_norm": _batch_norm,
    "aten::native_batch_norm_backward": _batch_norm,
    "aten::_native_batch_norm_legit": _batch_norm,
    "aten::_native_batch_norm_legit_functional": _batch_norm,
    "aten::_batch_norm_with_update_functional": _batch_norm,
    "aten::_native_batch_norm_legit_no_training": _batch_norm,
    "aten::_batch_norm_with_update": _batch_norm,
    "aten::_batch_norm_no_update": _batch_norm,
    "aten::batch_norm_backward": _batch_norm,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention,
}
#: Functions that are made of some of these, and do not look themselves.
_MADE_OF = frozenset(f"aten::{name}" for name in ("ctc_loss", "embedding_bag", "embedding_backward", "_weight_norm"))
