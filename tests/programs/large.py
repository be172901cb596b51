"""Random programs on large tensors in many layouts: the language of steps.py with other sizes, and more steps.

The engine tries small calls on the kernel as they are; of what it predicts for large ones, only such programs tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

MOST = 200_000  # elements of a tensor that a program holds on to
SHAPES: tuple[tuple[int, ...], ...] = (
    (150, 160), (160,), (20, 150), (160, 150), (20, 8, 150), (1, 160), (), (2, 8, 30, 50), (150, 1), (0, 150),
)  # fmt: skip
IMAGE = (2, 8, 30, 50)


def _image(t: Tensor) -> Tensor:
    """The first elements of a tensor as a batch of images; IndexError if there are too few."""
    if t.shape == IMAGE:
        return t
    count = torch.Size(IMAGE).numel()
    if t.numel() < count:
        raise IndexError("too few elements")
    return t.reshape(-1)[:count].reshape(IMAGE)


def _relaid(t: Tensor, b: int, c: int) -> Tensor:
    """The same elements with the dimensions in another order in memory."""
    if t.dim() > 4:
        return t
    orders = list(itertools.permutations(range(t.dim())))
    order = orders[(b + 12 * c) % len(orders)]
    return t.permute(order).contiguous().permute(sorted(range(t.dim()), key=order.__getitem__))


def _kernel(t: Tensor) -> Tensor:
    return t.reshape(-1)[:576].reshape(8, 8, 3, 3)


ONE: dict[str, Callable[[Tensor, int, int], Any]] = {
    "image": lambda t, b, c: _image(t),
    "channels_last_image": lambda t, b, c: _image(t).contiguous(memory_format=torch.channels_last),
    "relaid": _relaid,
    "every_second": lambda t, b, c: t[..., b % 2 :: 2],
    "with_image_rows_last": lambda t, b, c: _image(t).permute(0, 2, 3, 1),
    "group_norm": lambda t, b, c: F.group_norm(_image(t), 1 << b % 4),
    "instance_norm": lambda t, b, c: F.instance_norm(_image(t)),
    "norm_of_rows": lambda t, b, c: F.layer_norm(t, t.shape[-1:]),
    "log_softmax": lambda t, b, c: F.log_softmax(t, b % max(t.dim(), 1)),
    "pixel_shuffle": lambda t, b, c: F.pixel_shuffle(_image(t), 2),
    "pixel_unshuffle": lambda t, b, c: F.pixel_unshuffle(_image(t), 2),
    "channel_shuffle": lambda t, b, c: F.channel_shuffle(_image(t), 2),
    "reflected_edges": lambda t, b, c: F.pad(_image(t), (1, b % 3, 2, 1), mode="reflect"),
    "repeated_edges": lambda t, b, c: F.pad(_image(t), (1, b % 3, 2, 1), mode="replicate"),
    "rolled": lambda t, b, c: _image(t).roll((b, c), (2, 3)),
    "rolled_flat": lambda t, b, c: t.roll(b),
    "rrelu": lambda t, b, c: F.rrelu(t, training=b % 2 == 0),
    "dropped": lambda t, b, c: F.dropout(t, 0.5),
    "dropped_channels": lambda t, b, c: F.dropout2d(_image(t), 0.5),
    "glu": lambda t, b, c: F.glu(t, b % max(t.dim(), 1)),
    "least": lambda t, b, c: t.min() if b % 2 else t.max(),
    # Of an expanded tensor torch's kernel reads what lies behind its memory: eager differs from itself.
    "median": lambda t, b, c: t.median() if b % 2 else t.contiguous().median(0).values,
    "deviation": lambda t, b, c: t.std(b % max(t.dim(), 1)),
    "pooled": lambda t, b, c: (F.max_pool2d if b % 2 else F.avg_pool2d)(_image(t), 2),
    "pooled_to_5": lambda t, b, c: F.adaptive_avg_pool2d(_image(t), 5),
    "resized": lambda t, b, c: F.interpolate(_image(t), size=(20, 40), mode=("nearest", "bilinear")[b % 2]),
    # Values that a kernel refuses (NaN) are told at the read; eager tells at once.
    "drawn": lambda t, b, c: (
        torch.normal(t, t.detach().abs().nan_to_num()) if b % 2 else torch.bernoulli(t.detach().sigmoid().nan_to_num())
    ),
    "one_hot": lambda t, b, c: (
        F.one_hot(t.detach().nan_to_num().clamp(0, 3).long(), 4) if t.numel() < MOST // 4 else None
    ),
    "classified": lambda t, b, c: F.cross_entropy(
        _image(t), _image(t)[:, 0].detach().gt(0).long(), reduction=("mean", "none")[b % 2]
    ),
    "log_sigmoid": lambda t, b, c: F.logsigmoid(t),
    "two_to_the": lambda t, b, c: 2 ** t.clamp(-3, 3),
    "standardized": lambda t, b, c: F.batch_norm(_image(t), None, None, training=True),
    "whole": lambda t, b, c: t.long(),
    "double": lambda t, b, c: t.double(),
}
TWO: dict[str, Callable[[Tensor, Tensor, int], Any]] = {
    "copysign": lambda t, u, c: torch.copysign(t, u),
    "xlogy": lambda t, u, c: torch.xlogy(t, u.abs() + 1),
    "logaddexp": lambda t, u, c: torch.logaddexp(t, u),
    "huber_loss": lambda t, u, c: F.huber_loss(t, u, reduction=("mean", "none")[c % 2]),
    "smooth_l1_loss": lambda t, u, c: F.smooth_l1_loss(t, u),
    "mse_loss": lambda t, u, c: F.mse_loss(t, u, reduction=("mean", "none")[c % 2]),
    "conv2d": lambda t, u, c: F.conv2d(_image(t), _kernel(u), padding=1, stride=1 + c % 2),
    "conv_transpose2d": lambda t, u, c: F.conv_transpose2d(_image(t), _kernel(u), padding=1),
    "conv1d": lambda t, u, c: F.conv1d(_image(t)[:, :, c], _kernel(u)[:, :, 0]),
    "attention": lambda t, u, c: F.scaled_dot_product_attention(_image(t), _image(u), _image(u)),
    "product": lambda t, u, c: t @ u.mT,
}  # fmt: skip


def machine(language: Any) -> type:
    """The interpreter of steps.py with these sizes and steps."""
    more = {name: lambda m, a, b, c, f=f: f(m.pick(a), b, c) for name, f in ONE.items()}
    more |= {name: lambda m, a, b, c, f=f: f(m.pick(a), m.pick(b), c) for name, f in TWO.items()}

    class Large(language.Machine):  # type: ignore[misc]
        steps: ClassVar[dict[str, Any]] = {**language.STEPS, **more}
        shapes = SHAPES

        def start(self) -> list[Tensor]:
            return [
                torch.arange(24000.0, device=self.device).reshape(150, 160) / 6000 - 2,
                torch.randn(IMAGE, device=self.device).contiguous(memory_format=torch.channels_last),
            ]

        def keep(self, made: object) -> None:
            if not isinstance(made, Tensor) or made.numel() <= MOST:
                super().keep(made)

    return Large
