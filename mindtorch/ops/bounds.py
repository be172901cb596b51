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
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .._ext.strides import extent
from ..base.torch_names import RENAMED
from .argument_checks import in_range, like, of_elements, of_sizes, rising, wrong
from .state_checks import (
    attention,
    batch_norm,
    fused,
    group_norm,
    heads,
    int4,
    layer_norm_backward,
    lstm,
    observed,
    rnn,
    weight_norm,
)

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
    r"|(_?slow|thnn)_conv\w+|_nnpack_\w+|_dyn_quant_\w+|_cholesky_solve_helper|_compute_linear_combination|_stack"
    r"|_transform_bias_rescale_qkv|_masked_softmax_backward|batch_norm_update_stats|_wrapped_\w+|quantized_\w+_cell"
    r")"
)


def looking(overload: Any) -> Callable[..., Any]:
    """What an overload runs, after a look at its arguments where its kernel does not look."""
    name, run = overload._schema.name, overload._op
    check = _CHECKS.get(name)
    if check is None:
        return looking_inside(run, name)
    named = _named(overload._schema)

    def looked(*args: Any, **kwargs: Any) -> Any:
        check(named(*args, **kwargs))
        return run(*args, **kwargs)

    return looked


def _named(schema: Any) -> Callable[..., SimpleNamespace]:
    """What makes of a call's arguments those of a schema, by their names, which are the same for each release."""
    positions = [a.name for a in schema.arguments]
    defaults = {a.name: a.default_value for a in schema.arguments}
    renamed = [(theirs, ours) for theirs, ours in RENAMED.get(schema.name, ()) if theirs in defaults]

    def named(*args: Any, **kwargs: Any) -> SimpleNamespace:
        if "input" in kwargs and "input" not in defaults:  # what torch's functions call their first one
            kwargs[positions[0]] = kwargs.pop("input")
        given = {**defaults, **dict(zip(positions, args)), **kwargs}
        for theirs, ours in renamed:
            given[ours] = given.pop(theirs)
        return SimpleNamespace(**given)

    return named


class _Looking(TorchDispatchMode):
    """Looks at operators within a function that is made of several."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return _looking(func)(*args, **(kwargs or {}))


_looking = functools.lru_cache(maxsize=4096)(looking)


def looking_inside(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same for a function of this operator's name that may call several."""
    if name not in _MADE_OF and name not in _CHECKS:
        return function
    schema = torch._C._jit_get_schemas_for_operator(name)[0]
    qualified = f"{name}.{schema.overload_name}".rstrip(".")
    if name in _CHECKS and torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CompositeImplicitAutograd"):
        check, named = _CHECKS[name], _named(schema)

        def itself(*args: Any, **kwargs: Any) -> Any:
            check(named(*args, **kwargs))  # what it is made of is seen by a mode, and it is not
            return function(*args, **kwargs)

        return itself

    def looked(*args: Any, **kwargs: Any) -> Any:
        with _Looking():
            return function(*args, **kwargs)

    return looked


# ---- indices ---------------------------------------------------------------------------------------------------------
def _alias(a: SimpleNamespace) -> None:
    there = a.self.untyped_storage().nbytes()
    wanted = extent(a.size, a.stride, a.self.storage_offset()) * a.self.dtype.itemsize
    if wanted > there or min((*a.size, *a.stride), default=0) < 0:
        wrong(f"expected a view within {there} bytes, got one of {wanted}")


def _embedding_backward(a: SimpleNamespace) -> None:
    in_range(a.indices, a.num_weights, besides=a.padding_idx)


def _max_pool_backward(ndim: int) -> Callable[[SimpleNamespace], None]:
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    sizes = _as_forward(f"max_pool{ndim}d_with_indices", *names)

    def check(a: SimpleNamespace) -> None:
        sizes(a)
        like(a.grad_output, a.indices)
        in_range(a.indices, math.prod(a.self.shape[-ndim:]), -1)

    return check


def _adaptive_pool_backward(ndim: int) -> Callable[[SimpleNamespace], None]:
    def check(a: SimpleNamespace) -> None:
        outer, inner = tuple(a.self.shape[:-ndim]), a.self.shape[-ndim:]
        if len(outer) not in (1, 2) or 0 in inner or tuple(a.grad_output.shape[:-ndim]) != outer:
            wrong(f"expected a gradient of {outer} and {ndim} dimensions, got {tuple(a.grad_output.shape)}")
        if hasattr(a, "indices"):
            like(a.grad_output, a.indices)
            in_range(a.indices, math.prod(inner))

    return check


def _bag(a: SimpleNamespace) -> None:
    if a.mode not in (0, 1, 2):
        wrong(f"expected mode 0 (sum), 1 (mean) or 2 (max), got {a.mode}")  # torch 2.12 does not look
    in_range(a.indices, a.weight.shape[0] if a.weight.dim() else 0)
    rising(a.offsets, a.indices.numel())
    of_elements(a.indices.numel(), a.per_sample_weights)


def _bag_backward(a: SimpleNamespace) -> None:
    bags = a.grad.shape[0] if a.grad.dim() == 2 else wrong(f"expected a gradient of 2 dimensions, got {a.grad.dim()}")
    n = a.indices.numel()
    weights = getattr(a, "num_weights", None)
    if weights is None:
        weights = a.weight.shape[0]
        of_sizes(a.weight, weights, a.grad.shape[1])
    in_range(a.indices, weights)
    if hasattr(a, "offsets"):
        rising(a.offsets, n)
        ends = a.offsets.numel() == bags + 1  # the last one is then where all of them end
        if a.offsets.numel() != bags and not (ends and a.offsets[-1].item() == n):
            wrong(f"expected offsets of {bags} bags, got {a.offsets.numel()}")
    if a.offset2bag.numel() or not hasattr(a, "offsets"):
        of_elements(n, a.offset2bag)
        in_range(a.offset2bag, bags)
    if hasattr(a, "bag_size"):
        of_elements(bags, a.bag_size)
    if getattr(a, "maximum_indices", None) is not None and a.mode == 2:
        like(a.grad, a.maximum_indices)
        in_range(a.maximum_indices, weights, -1)
    of_elements(n, getattr(a, "per_sample_weights", None))


def _lengths(given: Any) -> list[int]:
    return [int(n) for n in (given.flatten().tolist() if isinstance(given, torch.Tensor) else given)]


def _ctc(a: SimpleNamespace) -> None:
    if a.log_probs.dim() != 3:
        return
    classes = a.log_probs.shape[2]
    if not 0 <= a.blank < classes:
        raise IndexError(f"expected a blank in 0..{classes - 1}, got {a.blank}")
    for each in (a.input_lengths, a.target_lengths):
        if isinstance(each, torch.Tensor):
            in_range(each, 1 << 40)
        elif min(each, default=0) < 0:
            wrong(f"expected lengths of at least 0, got {min(each)}")
    targets = a.targets
    if targets.device.type == "cpu" and targets.dim() == 2:
        lengths = torch.tensor(_lengths(a.target_lengths), device="cpu")
        if lengths.numel() == targets.shape[0]:  # what fills the rows up behind is not read
            targets = targets[torch.arange(targets.shape[1], device="cpu") < lengths[:, None]]
    in_range(targets, classes)


def _ctc_backward(a: SimpleNamespace) -> None:
    _ctc(a)
    if a.log_probs.dim() != 3:
        wrong(f"expected log_probs of 3 dimensions, got {a.log_probs.dim()}")
    steps, batch, _classes = a.log_probs.shape
    inputs, lengths = _lengths(a.input_lengths), _lengths(a.target_lengths)
    longest = max(lengths, default=0)
    of_elements(batch, a.grad, a.neg_log_likelihood)
    if max(inputs, default=0) > steps:
        wrong(f"expected lengths up to {steps}, got {max(inputs)}")
    if len(inputs) != batch or len(lengths) != batch:
        wrong(f"expected {batch} lengths, got {len(inputs)} and {len(lengths)}")
    if a.targets.dim() == 1:
        of_elements(sum(lengths), a.targets)
    elif a.targets.dim() != 2 or a.targets.shape[0] != batch or a.targets.shape[1] < longest:
        wrong(f"expected targets of {batch} times {longest}, got {tuple(a.targets.shape)}")
    if a.log_alpha.dim() != 3 or a.log_alpha.shape[:2] != (batch, steps) or a.log_alpha.shape[2] < 2 * longest + 1:
        wrong(f"expected log_alpha of {batch, steps, 2 * longest + 1}, got {tuple(a.log_alpha.shape)}")


def _nll_backward(a: SimpleNamespace) -> None:
    dim = 1 if a.self.dim() > 1 else 0
    classes = a.self.shape[dim] if a.self.dim() else 0
    of_elements(a.self.numel() // classes if classes else 0, a.target)
    in_range(a.target, classes, besides=a.ignore_index)
    of_elements(classes, a.weight)
    of_elements(1, a.total_weight)


# ---- gradients -------------------------------------------------------------------------------------------------------
def _as_forward(forward: str, *names: str) -> Callable[[SimpleNamespace], None]:
    """``grad_output`` has the sizes of what the operator gives that it is the gradient of, from ``self`` and those."""

    def check(a: SimpleNamespace) -> None:
        rest = (getattr(a, name) for name in names)
        given = tuple(tuple(each) if isinstance(each, list) else each for each in rest)
        of_sizes(a.grad_output, *_forward_sizes(forward, tuple(a.self.shape), given))

    return check


@functools.lru_cache(maxsize=4096)
def _forward_sizes(name: str, sizes: tuple[int, ...], given: tuple[Any, ...]) -> tuple[int, ...]:
    out = getattr(torch.ops.aten, name).default(_meta(sizes), *given)
    return tuple((out if isinstance(out, torch.Tensor) else out[0]).shape)


def _meta(sizes: Sequence[int]) -> torch.Tensor:
    return torch.ops.aten.empty.memory_format(sizes, device="meta", dtype=torch.float32)  # type: ignore[no-any-return]


def _softmax_backward(a: SimpleNamespace) -> None:
    like(a.output, a.grad_output)


def _grid_backward(a: SimpleNamespace) -> None:
    if a.grid.dim() < 3 or a.input.dim() != a.grid.dim():
        wrong(f"expected a grid of {a.input.dim()} dimensions, got {a.grid.dim()}")
    batch, *inner, _two = a.grid.shape
    of_sizes(a.grad_output, batch, a.input.shape[1], *inner)


def _unfold_backward(a: SimpleNamespace) -> None:
    of_sizes(a.grad_in, *_meta(a.input_sizes).unfold(a.dim, a.size, a.step).shape)


def _resized_smoothly(a: SimpleNamespace) -> None:
    """Scales, where they are given, reach no further than the sizes."""
    sizes = a.input_size if hasattr(a, "input_size") else a.input.shape if hasattr(a, "input") else a.self.shape
    if not hasattr(a, "scales_h"):
        return  # it is made of one that has them
    for n, wanted, scale in zip(sizes[2:], a.output_size, (a.scales_h, a.scales_w)):
        if scale is not None and not n * scale >= wanted - 1:
            wrong(f"expected scales from {tuple(sizes[2:])} to {tuple(a.output_size)}, got {scale}")


def _fourier(a: SimpleNamespace) -> None:
    ndim = a.self.dim()
    if not all(0 <= d < ndim for d in a.dim):
        raise IndexError(f"expected dimensions of {ndim}, got {tuple(a.dim)}")
    if len(set(a.dim)) != len(a.dim):
        wrong(f"expected each dimension once, got {tuple(a.dim)}")
    if hasattr(a, "last_dim_size") and (not a.dim or a.last_dim_size // 2 >= a.self.shape[a.dim[-1]]):
        wrong(f"expected {a.last_dim_size // 2 + 1} frequencies, got {tuple(a.self.shape)}")


def _distances(a: SimpleNamespace) -> None:
    if a.x1.dim() < 2 or a.x2.dim() < 2 or a.x1.shape[-1] != a.x2.shape[-1]:
        wrong(f"expected points with the same number of coordinates, got {tuple(a.x1.shape)} and {tuple(a.x2.shape)}")
    batch = torch._C._infer_size(a.x1.shape[:-2], a.x2.shape[:-2])
    for t in (a.grad, a.cdist):
        of_sizes(t, *batch, a.x1.shape[-2], a.x2.shape[-2])


def _distances_within(a: SimpleNamespace) -> None:
    if a.self.dim() != 2:
        wrong(f"expected points in 2 dimensions, got {a.self.dim()}")


def _convolution_twice(a: SimpleNamespace) -> None:
    for t in (a.ggI, a.ggW, a.gO, a.self):
        if t is not None and t.dim() != a.weight.dim():
            wrong(f"expected tensors of {a.weight.dim()} dimensions, got {t.dim()}")


def _grouped(a: SimpleNamespace) -> None:
    """Heads of queries, shared out among those of keys and values."""
    for t in (a.key, a.value):
        if a.enable_gqa and (t.dim() < 3 or not t.shape[-3]):
            wrong(f"expected keys and values of at least one head, got {tuple(t.shape)}")
    if min(a.key.dim(), a.value.dim()) < 2 or a.key.shape[-2] != a.value.shape[-2]:
        wrong(f"expected a value for each key, got {tuple(a.value.shape)} for {tuple(a.key.shape)}")


def _finite(a: SimpleNamespace) -> None:
    if a.self.device.type == "cpu" and not bool(a.self.isfinite().all()):
        wrong("expected finite numbers")


def _packed(a: SimpleNamespace) -> None:
    in_range(a.batch_sizes, a.data.shape[0] + 1 if a.data.dim() else 0, 1)


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
    "aten::mkldnn_rnn_layer": rnn,
    "aten::lstm": lstm,
    "aten::_weight_norm_interface": weight_norm,
    "aten::_weight_norm_interface_backward": weight_norm,
    "aten::mkldnn_rnn_layer_backward": rnn,
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
    "aten::_cdist_backward": _distances,
    "aten::_pdist_forward": _distances_within,
    "aten::_convolution_double_backward": _convolution_twice,
    "aten::_scaled_dot_product_attention_math": _grouped,
    "aten::scaled_dot_product_attention": _grouped,
    "aten::_linalg_eigvals": _finite,
    "aten::linalg_eigvals": _finite,
    "aten::_pad_packed_sequence": _packed,
    "aten::_native_multi_head_attention": heads,
    "aten::_transformer_encoder_layer_fwd": heads,
    "aten::_weight_int4pack_mm_for_cpu": int4,
    "aten::fused_moving_avg_obs_fake_quant": observed,
    "aten::_fused_moving_avg_obs_fq_helper": observed,
    "aten::_fused_moving_avg_obs_fq_helper_functional": observed,
    **{
        f"aten::_fused_{kind}{in_place}": fused(*lists)
        for kind, lists in (
            ("adam", ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")),
            ("adamw", ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")),
            ("sgd", ("momentum_buffer_list",)),
            ("adagrad", ("state_sums",)),
        )
        for in_place in ("", "_")
    },
    "aten::native_layer_norm_backward": layer_norm_backward,
    "aten::_fused_rms_norm_backward": layer_norm_backward,
    "aten::native_group_norm": group_norm,
    "aten::native_group_norm_backward": group_norm,
    "aten::native_batch_norm": batch_norm,
    "aten::native_batch_norm_backward": batch_norm,
    "aten::_native_batch_norm_legit": batch_norm,
    "aten::_native_batch_norm_legit_functional": batch_norm,
    "aten::_batch_norm_with_update_functional": batch_norm,
    "aten::_native_batch_norm_legit_no_training": batch_norm,
    "aten::_batch_norm_with_update": batch_norm,
    "aten::_batch_norm_no_update": batch_norm,
    "aten::batch_norm_backward": batch_norm,
    "aten::_scaled_dot_product_flash_attention_for_cpu": attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": attention,
}
#: Functions that are made of some of these, and do not look themselves.
_MADE_OF = frozenset(f"aten::{name}" for name in ("ctc_loss", "embedding_bag", "embedding_backward", "_weight_norm"))
