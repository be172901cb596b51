"""Layout rules: how the CPU's kernels lay out their results, where torch's meta functions say otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false, suggest_memory_format

from .._ext import shapes as _shapes
from .conv_layout import REFUSED

#: rule(results that torch's meta function gives, tensors among the arguments, all arguments) -> results, or REFUSED
LayoutRule = Callable[[list[Any], list[torch.Tensor], tuple[Any, ...]], Any]


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


def dense(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """Contiguous."""
    return [None if o is None else _empty(o) for o in outs]


def as_suggested_by(place: int) -> LayoutRule:
    """Channels last where that input is, else contiguous."""

    def rule(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
        return [_empty(outs[0], suggest_memory_format(tensors[place])), *outs[1:]]

    return rule


def like(place: int) -> LayoutRule:
    """Where the result has the sizes of that input, its layout, too."""

    def rule(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
        x = tensors[place]
        return [_strided(o, _preserved(x)) if o.shape == x.shape else o for o in outs]

    return rule


def element_wise(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """As TensorIterator orders dimensions, where torch's meta function goes through Python's formulas."""
    like = [_facts(t) for t in tensors[:2]]
    found = _shapes.infer("aten::add", (like[0], like[1] if len(like) > 1 else 1.0), {})
    return outs if found is None else [_strided(o, found[0][1]) for o in outs]


def scaled(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``rms_norm(x, shape, weight, eps)``: x times one factor a row, times the weight, then made contiguous. What is
    empty passes for contiguous however it is laid out."""
    x = tensors[0]
    shape = next(a for a in args if isinstance(a, (int, tuple, list)))
    rows = x.shape[: x.dim() - (1 if isinstance(shape, int) else len(shape))]
    factors = torch.empty((*rows, *(1,) * (x.dim() - len(rows))), device="meta")
    made = element_wise(outs[:1], [x, factors], args)
    if tensors[1:]:
        made = element_wise(outs[:1], [*made, tensors[1]], args)
    return [made[0] if made[0].is_contiguous() else _empty(made[0]), *outs[1:]]


def with_statistics(layout: LayoutRule) -> LayoutRule:
    """``native_layer_norm(x, …)``: means and deviations are as precise as the weights, without those as x."""

    def rule(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
        dtype = tensors[min(1, len(tensors) - 1)].dtype
        out, *rest = layout(outs, tensors, args)
        return [out, *(torch.empty(o.shape, dtype=dtype, device="meta") for o in rest[:2]), *rest[2:]]

    return rule


def gated(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``glu(x, dim)``: of the halves of x."""
    dim = next((a for a in args[1:] if type(a) is int), -1)
    half = tensors[0].narrow(dim, 0, outs[0].shape[dim])
    return element_wise(outs, [half, half], args)


def scaled_by_powers(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``ldexp(x, exponents)``: x times 2 to their power, which is contiguous."""
    return element_wise(outs, [tensors[0], _empty(tensors[1])], args) if len(tensors) > 1 else outs


def power(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """A number to the power of tensors is contiguous."""
    return outs if isinstance(args[0], torch.Tensor) else dense(outs, tensors, args)


def angle(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """Of complex numbers, contiguous."""
    return dense(outs, tensors, args) if tensors[0].is_complex() else outs


def _training(args: tuple) -> bool:
    return any(a is True for a in args)


def noisy(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``rrelu_with_noise(x, noise, lower, upper, training, generator)``: in training, made contiguous."""
    return dense(outs, tensors, args) if _training(args) else outs


def noisy_backward(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``rrelu_with_noise_backward(grad, x, noise, lower, upper, training, …)``: in training, noise times grad."""
    return element_wise(outs, [tensors[2], tensors[0]], args) if _training(args) else outs


def padded(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``pad(x, padding, mode, value)``: constants and circles are made of other steps."""
    modes = [a for a in args if a in ("reflect", "replicate")] if not tensors[1:] else []
    return as_suggested_by(0)(outs, tensors, args) if modes else outs


def _rolled(x: torch.Tensor, shifts: Any, dims: Any) -> torch.Tensor:
    """One dimension after the other: what ``cat`` makes of two slices, each time."""
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        start = (size - shift) % size
        x = torch.cat([x.narrow(dim, start, size - start), x.narrow(dim, 0, start)], dim)
    return x


def roll(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``roll(x, shifts, dims)``."""
    shifts, dims = ([a] if type(a) is int else list(a or ()) for a in (*args[1:3], ())[:2])
    return [_rolled(tensors[0], shifts, dims)] if dims and tensors[0].numel() else outs


def centred(back: bool) -> LayoutRule:
    """``fft_fftshift(x, dim=None)``: rolls by half of each size."""

    def rule(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
        x = tensors[0]
        given = args[1] if len(args) > 1 else None
        dims = [given] if type(given) is int else list(range(x.dim()) if given is None else given)
        return [_rolled(x, [(x.shape[d] + back) // 2 for d in dims], dims)] if x.numel() else outs

    return rule


def shuffled(outs: list[Any], tensors: Tensors, args: tuple) -> Any:
    """Channels last where the input is; in three dimensions, not at all."""
    suggested = suggest_memory_format(tensors[0])
    return REFUSED if suggested is torch.channels_last_3d else [_empty(outs[0], suggested)]


def pooled(outs: list[Any], tensors: Tensors, args: tuple) -> Any:
    """Pooling in three dimensions takes no volume without a batch that looks like an image with channels last."""
    images = [t for t in tensors if t.dim() == 4 and suggest_memory_format(t) is torch.channels_last]
    return REFUSED if images else outs


def needs_memory_format(outs: list[Any], tensors: Tensors, args: tuple) -> Any:
    """``native_group_norm``: nothing but contiguous tensors, or channels last."""
    x = tensors[0]
    wanted = suggest_memory_format(x)
    return [_empty(outs[0], wanted), *outs[1:]] if x.is_contiguous(memory_format=wanted) else REFUSED


def needs_contiguous(outs: list[Any], tensors: Tensors, args: tuple) -> Any:
    """``nll_loss2d_backward(grad, x, …)``: makes its result like x, and then wants it contiguous."""
    return outs if _strided(outs[0], _preserved(tensors[1])).is_contiguous() else REFUSED


def distances_backward(outs: list[Any], tensors: Tensors, args: tuple) -> list[Any]:
    """``_cdist_backward(grad, x1, …)``: where there is nothing to add up, zeros like x1."""
    return outs if all(t.numel() for t in tensors[:3]) else like(1)(outs, tensors, args)


def scattered(view: Callable[..., torch.Tensor]) -> LayoutRule:
    """``select_scatter(x, part, …)``: what is put in has the sizes of what it takes the place of."""

    def rule(outs: list[Any], tensors: Tensors, args: tuple) -> Any:
        return outs if len(tensors) < 2 or view(args[0], *args[2:]).shape == tensors[1].shape else REFUSED

    return rule


def put(outs: list[Any], tensors: Tensors, args: tuple) -> Any:
    """``index_put(x, indices, values)``: the values fit, unless masks leave open how many there are."""
    x, indices, values = args[:3]
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return outs
    wanted = torch.ops.aten.index.Tensor(x, indices).shape
    return outs if torch.broadcast_shapes(wanted, values.shape) == wanted else REFUSED
