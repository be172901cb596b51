"""What torch's CPU kernels do not take of tensors as NPUs have them, and how a staged call gives it to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["HOST"]


def _layer_norm_backward(
    grad: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any
) -> tuple[Any, Any, Any]:
    """Of 16 bits, the NPU's mean and 1/std are in float32, which torch's CPU kernel takes beside such weights only."""
    of = torch.ops.aten.native_layer_norm_backward.default
    given = next((each.dtype for each in (weight, bias) if each is not None), x.dtype)
    if mean.dtype is x.dtype or given is mean.dtype:
        return of(grad, x, shape, mean, rstd, weight, bias, mask)
    scale = torch.ones(tuple(shape), dtype=mean.dtype) if weight is None else weight.to(mean.dtype)
    first, *others = of(grad, x, shape, mean, rstd, scale, None if bias is None else bias.to(mean.dtype), mask)
    slopes = (None if slope is None else slope.to(given) for slope in others)
    return first, next(slopes), next(slopes)


#: ATen -> what stands for it on the host.
HOST: dict[str, Callable[..., Any]] = {"aten::native_layer_norm_backward": _layer_norm_backward}
