"""How the CPU's kernels lay out their results, where torch's meta functions say otherwise. One row a rule.

Used on the device of recorded tensors only; on ``meta``, results are laid out as torch's own meta device does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false, suggest_memory_format

from .._ext import shapes as _shapes
from . import conv_layout
from .conv_layout import REFUSED

__all__ = ["REFUSED", "laid_out"]
#: rule(results that torch's meta function gives, tensors among the arguments, all arguments) -> results, or REFUSED
Rule = Callable[[list[Any], list[torch.Tensor], tuple[Any, ...]], Any]


def laid_out(name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the call gives on meta tensors, laid out as the kernel does it, or REFUSED."""
    if name in conv_layout.NAMES:
        return conv_layout.laid_out(name, out, args, kwargs)
    rule = RULES.get(name)
    if rule is None:
        return out
    given = (*args, *kwargs.values())
    tensors = [a for a in given if isinstance(a, torch.Tensor)]
    outs = [out] if isinstance(out, torch.Tensor) else list(out)
    if any(o is t for o in outs for t in tensors):
        return out  # in place, or ``out=``
    found = rule(outs, tensors, given)
    if found is REFUSED or not isinstance(out, torch.Tensor):
        return found if found is REFUSED else type(out)(found)
    return found[0]


# ---- layouts ---------------------------------------------------------------------------------------------------------
def _empty(like: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device="meta", memory_format=memory_format)


def _strided(like: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(like.shape, stride, dtype=like.dtype, device="meta")


def _facts(t: torch.Tensor) -> _shapes.Meta:
    return _shapes.Meta(tuple(t.shape), t.stride(), torch.float32)


def _preserved(t: torch.Tensor) -> tuple[int, ...]:
    """The strides of ``empty_like(t)``."""
    if is_non_overlapping_and_dense_or_false(t):
        return t.stride()
    found = _shapes.infer("aten::clone", (_facts(t),), {})
    return found[0][1] if found is not None else torch.empty_like(t).stride()


# ---- rules -----------------------------------------------------------------------------------------------------------
Tensors = list[torch.Tensor]


def _dense(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """Contiguous."""
    return [None if o is None else _empty(o) for o in outs]


def _as_suggested_by(place: int) -> Rule:
    """Channels last where that input is, else contiguous."""

    def rule(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
        return [_empty(outs[0], suggest_memory_format(tensors[place])), *outs[1:]]

    return rule


def _like(place: int) -> Rule:
    """Where the result has the sizes of that input, its layout, too."""

    def rule(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
        x = tensors[place]
        return [_strided(o, _preserved(x)) if o.shape == x.shape else o for o in outs]

    return rule


def _element_wise(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """As TensorIterator orders dimensions, where torch's meta function goes through Python's formulas."""
    like = [_facts(t) for t in tensors[:2]]
    found = _shapes.infer("aten::add", (like[0], like[1] if len(like) > 1 else 1.0), {})
    return outs if found is None else [_strided(o, found[0][1]) for o in outs]


def _scaled(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``rms_norm(x, shape, weight, eps)``: x times one factor a row, times the weight, then made contiguous. What is
    empty passes for contiguous however it is laid out."""
    x = tensors[0]
    shape = next(a for a in args if isinstance(a, (int, tuple, list)))
    rows = x.shape[: x.dim() - (1 if isinstance(shape, int) else len(shape))]
    factors = torch.empty((*rows, *(1,) * (x.dim() - len(rows))), device="meta")
    made = _element_wise(outs[:1], [x, factors], args)
    if tensors[1:]:
        made = _element_wise(outs[:1], [*made, tensors[1]], args)
    return [made[0] if made[0].is_contiguous() else _empty(made[0]), *outs[1:]]


def _with_statistics(layout: Rule) -> Rule:
    """``native_layer_norm(x, …)``: means and deviations are as precise as the weights, without those as x."""

    def rule(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
        dtype = tensors[min(1, len(tensors) - 1)].dtype
        out, *rest = layout(outs, tensors, args)
        return [out, *(torch.empty(o.shape, dtype=dtype, device="meta") for o in rest[:2]), *rest[2:]]

    return rule


def _gated(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``glu(x, dim)``: of the halves of x."""
    dim = next((a for a in args[1:] if type(a) is int), -1)
    half = tensors[0].narrow(dim, 0, outs[0].shape[dim])
    return _element_wise(outs, [half, half], args)


def _scaled_by_powers(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``ldexp(x, exponents)``: x times 2 to their power, which is contiguous."""
    return _element_wise(outs, [tensors[0], _empty(tensors[1])], args) if len(tensors) > 1 else outs


def _power(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """A number to the power of tensors is contiguous."""
    return outs if isinstance(args[0], torch.Tensor) else _dense(outs, tensors, args)


def _angle(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """Of complex numbers, contiguous."""
    return _dense(outs, tensors, args) if tensors[0].is_complex() else outs


def _training(args: tuple) -> bool:
    return any(a is True for a in args)


def _noisy(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``rrelu_with_noise(x, noise, lower, upper, training, generator)``: in training, made contiguous."""
    return _dense(outs, tensors, args) if _training(args) else outs


def _noisy_backward(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``rrelu_with_noise_backward(grad, x, noise, lower, upper, training, …)``: in training, noise times grad."""
    return _element_wise(outs, [tensors[2], tensors[0]], args) if _training(args) else outs


def _padded(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``pad(x, padding, mode, value)``: constants and circles are made of other steps."""
    modes = [a for a in args if a in ("reflect", "replicate")] if not tensors[1:] else []
    return _as_suggested_by(0)(outs, tensors, args) if modes else outs


def _rolled(x: torch.Tensor, shifts: Any, dims: Any) -> torch.Tensor:
    """One dimension after the other: what ``cat`` makes of two slices, each time."""
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        start = (size - shift) % size
        x = torch.cat([x.narrow(dim, start, size - start), x.narrow(dim, 0, start)], dim)
    return x


def _roll(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``roll(x, shifts, dims)``."""
    shifts, dims = ([a] if type(a) is int else list(a or ()) for a in (*args[1:3], ())[:2])
    return [_rolled(tensors[0], shifts, dims)] if dims and tensors[0].numel() else outs


def _centred(back: bool) -> Rule:
    """``fft_fftshift(x, dim=None)``: rolls by half of each size."""

    def rule(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
        x = tensors[0]
        given = args[1] if len(args) > 1 else None
        dims = [given] if type(given) is int else list(range(x.dim()) if given is None else given)
        return [_rolled(x, [(x.shape[d] + back) // 2 for d in dims], dims)] if x.numel() else outs

    return rule


def _shuffled(outs: list[Any], tensors: Tensors, args: tuple) -> Any:
    """Channels last where the input is; in three dimensions, not at all."""
    suggested = suggest_memory_format(tensors[0])
    return REFUSED if suggested is torch.channels_last_3d else [_empty(outs[0], suggested)]


def _pooled(outs: list[Any], tensors: Tensors, args: tuple) -> Any:
    """Pooling in three dimensions takes no volume without a batch that looks like an image with channels last."""
    images = [t for t in tensors if t.dim() == 4 and suggest_memory_format(t) is torch.channels_last]
    return REFUSED if images else outs


def _needs_memory_format(outs: list[Any], tensors: Tensors, args: tuple) -> Any:
    """``native_group_norm``: nothing but contiguous tensors, or channels last."""
    x = tensors[0]
    wanted = suggest_memory_format(x)
    return [_empty(outs[0], wanted), *outs[1:]] if x.is_contiguous(memory_format=wanted) else REFUSED


def _needs_contiguous(outs: list[Any], tensors: Tensors, args: tuple) -> Any:
    """``nll_loss2d_backward(grad, x, …)``: makes its result like x, and then wants it contiguous."""
    return outs if _strided(outs[0], _preserved(tensors[1])).is_contiguous() else REFUSED


def _distances_backward(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``_cdist_backward(grad, x1, …)``: where there is nothing to add up, zeros like x1."""
    return outs if all(t.numel() for t in tensors[:3]) else _like(1)(outs, tensors, args)


def _scattered(view: Callable[..., torch.Tensor]) -> Rule:
    """``select_scatter(x, part, …)``: what is put in has the sizes of what it takes the place of."""

    def rule(outs: list[Any], tensors: Tensors, args: tuple) -> Any:
        return outs if len(tensors) < 2 or view(args[0], *args[2:]).shape == tensors[1].shape else REFUSED

    return rule


def _put(outs: list[Any], tensors: Tensors, args: tuple) -> Any:
    """``index_put(x, indices, values)``: the values fit, unless masks leave open how many there are."""
    x, indices, values = args[:3]
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return outs
    wanted = torch.ops.aten.index.Tensor(x, indices).shape
    return outs if torch.broadcast_shapes(wanted, values.shape) == wanted else REFUSED


def _rows(rule: Rule, names: str) -> dict[str, Rule]:
    return {f"aten::{name}": rule for name in names.split()}


RULES: dict[str, Rule] = {
    **_rows(
        _dense,
        "huber_loss_backward mse_loss_backward smooth_l1_loss_backward log_sigmoid log_sigmoid_forward "
        "_log_softmax_backward_data _softmax_backward_data max_pool1d glu_backward normal isin nll_loss "
        "nll_loss_nd nll_loss_forward nll_loss2d nll_loss2d_forward cross_entropy_loss poisson "
        "_standard_gamma",
    ),
    **_rows(
        _as_suggested_by(0),
        "group_norm channel_shuffle native_channel_shuffle reflection_pad2d reflection_pad3d "
        "replication_pad2d replication_pad3d",
    ),
    **_rows(
        _as_suggested_by(1),
        "reflection_pad2d_backward reflection_pad3d_backward replication_pad2d_backward replication_pad3d_backward",
    ),
    **_rows(_like(0), "_prelu_kernel binary_cross_entropy prelu sort"),
    **_rows(_like(1), "binary_cross_entropy_backward"),
    **_rows(
        _element_wise,
        "copysign heaviside xlogy special_xlogy special_xlog1py logaddexp logaddexp2 native_dropout_backward",
    ),
    **_rows(_scaled, "rms_norm _fused_rms_norm"),
    **_rows(_with_statistics(_dense), "layer_norm native_layer_norm"),
    **_rows(_with_statistics(_as_suggested_by(0)), "_batch_norm_with_update"),
    **_rows(_gated, "glu"),
    **_rows(_scaled_by_powers, "ldexp"),
    **_rows(_power, "pow"),
    **_rows(_angle, "angle"),
    **_rows(_noisy, "rrelu_with_noise"),
    **_rows(_noisy_backward, "rrelu_with_noise_backward"),
    **_rows(_padded, "pad"),
    **_rows(_roll, "roll"),
    **_rows(_centred(False), "fft_fftshift"),
    **_rows(_centred(True), "fft_ifftshift"),
    **_rows(_shuffled, "pixel_shuffle pixel_unshuffle"),
    **_rows(_pooled, "max_pool3d max_pool3d_with_indices max_pool3d_with_indices_backward"),
    **_rows(_needs_memory_format, "native_group_norm"),
    **_rows(_needs_contiguous, "nll_loss2d_backward"),
    **_rows(_distances_backward, "_cdist_backward"),
    **_rows(_put, "index_put"),
    **_rows(_scattered(torch.select), "select_scatter"),
    **_rows(_scattered(torch.diagonal), "diagonal_scatter"),
}
