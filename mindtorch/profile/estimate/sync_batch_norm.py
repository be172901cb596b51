"""What SyncBatchNorm calls on a GPU, of which torch knows no shapes: by operations that read and write as much."""

from __future__ import annotations

from typing import Any

import torch

from ...base.patching import Patch

__all__ = ["patches"]


def patches() -> list[Patch]:
    return [(torch, name, instead) for name, instead in _INSTEAD.items()]


def _others(t: torch.Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [d for d in range(t.dim()) if d != 1]


def _along(values: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return values.to(t.dtype).view(1, -1, *[1] * (t.dim() - 2))


def _stats(t: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    variance, mean = torch.var_mean(t, _others(t))
    return mean.float(), variance.float().add_(eps).rsqrt_()


def _gathered(t: torch.Tensor, means: torch.Tensor, invstds: torch.Tensor, running_mean: Any, running_var: Any,
              momentum: float, eps: float, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    mean, invstd = means.mean(0), invstds.mean(0)
    for running, value in ((running_mean, mean), (running_var, invstd)):
        if running is not None:
            running.lerp_(value.to(running.dtype), momentum)
    return mean, invstd


def _elements(t: torch.Tensor, weight: Any, bias: Any, mean: torch.Tensor, invstd: torch.Tensor,
              eps: float = 0.0) -> torch.Tensor:  # fmt: skip
    return torch.mul(t, _along(invstd if weight is None else weight, t))


def _backward_sums(grad: torch.Tensor, t: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, weight: Any,
                   of_input: bool, of_weight: bool, of_bias: bool) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    summed = grad.sum(_others(grad), dtype=torch.float32)
    products = t.sum(_others(t), dtype=torch.float32)
    like = summed if weight is None else weight
    return (
        summed,
        products,
        products.to(like.dtype) if of_weight else None,
        summed.to(like.dtype) if of_bias else None,
    )


def _backward_elements(grad: torch.Tensor, t: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, weight: Any,
                       sums: torch.Tensor, products: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:  # fmt: skip
    return torch.addcmul(grad, t, _along(invstd, t))


_INSTEAD = {
    "batch_norm_stats": _stats,
    "batch_norm_gather_stats_with_counts": _gathered,
    "batch_norm_elemt": _elements,
    "batch_norm_backward_reduce": _backward_sums,
    "batch_norm_backward_elemt": _backward_elements,
}
