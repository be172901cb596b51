"""Torch's fused optimizer steps on NPU tensors: their formulas, op by op on the device.

Formulas: torch's CPU kernels (aten/src/ATen/native/cpu/Fused*Kernel.cpp). Steps, scales and rates that are tensors are
read once for all parameters; weights, gradients and states stay on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .tensor import is_npu

__all__ = ["STEPS"]

Tensors = list[torch.Tensor]
_HALF = (torch.float16, torch.bfloat16)


def _read(*given: Any) -> list[Any]:
    """Numbers for the tensors among these, and among lists of these, by one copy to the host; the rest as it is."""
    flat = [t for a in given for t in (a if isinstance(a, list) else [a]) if isinstance(t, torch.Tensor) and is_npu(t)]
    numbers = iter(torch.stack([t.reshape(()).float() for t in flat]).cpu().tolist() if flat else ())

    def number(a: Any) -> Any:
        return a if not isinstance(a, torch.Tensor) else next(numbers) if is_npu(a) else a.item()

    return [[number(t) for t in a] if isinstance(a, list) else number(a) for a in given]


def _gradient(p: torch.Tensor, grad: torch.Tensor, scale: float | None, maximize: bool, decay: float) -> torch.Tensor:
    """The gradient as the step takes it; it is unscaled where it lies, as torch's kernels leave it."""
    if scale is not None:
        grad.div_(scale)
    grad = grad.neg() if maximize else grad
    return grad.add(p, alpha=decay) if decay else grad


def _each(update: Callable[..., None], numbers: list[Any], *lists: Tensors) -> None:
    """`update(number, tensor of each list …)` for each parameter, in float32 where it has 16 bits."""
    for i, number in enumerate(numbers):
        mine = [tensors[i] for tensors in lists]
        wide = [t.float() if t.dtype in _HALF else t for t in mine]
        update(number, *wide)
        for t, computed in zip(mine, wide, strict=True):
            if computed is not t:
                t.copy_(computed)


def _adam(decoupled: bool) -> Callable[..., None]:
    def step(
        params: Tensors, grads: Tensors, averages: Tensors, squares: Tensors, largest: Tensors, steps: Tensors, *,
        lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool,
        grad_scale: Any = None, found_inf: Any = None,
    ) -> None:  # fmt: skip
        lr, scale, skipped, numbers = _read(lr, grad_scale, found_inf, steps)
        if skipped:
            return

        def update(n: float, p: Any, grad: Any, average: Any, square: Any, most: Any = None) -> None:
            if decoupled and weight_decay:
                p.mul_(1 - lr * weight_decay)
            grad = _gradient(p, grad, scale, maximize, 0.0 if decoupled else weight_decay)
            average.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            if most is not None:
                most.copy_(torch.maximum(most, square))
                square = most
            denominator = square.sqrt().div_(math.sqrt(1 - beta2**n)).add_(eps)
            p.addcdiv_(average, denominator, value=-lr / (1 - beta1**n))

        _each(update, numbers, params, grads, averages, squares, *[largest] * amsgrad)

    return step


def _sgd(
    params: Tensors, grads: Tensors, buffers: Tensors, *, weight_decay: float, momentum: float, lr: Any,
    dampening: float, nesterov: bool, maximize: bool, is_first_step: bool, grad_scale: Any = None,
    found_inf: Any = None,
) -> None:  # fmt: skip
    lr, scale, skipped = _read(lr, grad_scale, found_inf)
    if skipped:
        return

    def update(_: None, p: Any, grad: Any, buffer: Any = None) -> None:
        grad = _gradient(p, grad, scale, maximize, weight_decay)
        if buffer is not None:
            if is_first_step:
                buffer.copy_(grad)
            else:
                buffer.mul_(momentum).add_(grad, alpha=1 - dampening)
            grad = grad.add(buffer, alpha=momentum) if nesterov else buffer
        p.add_(grad, alpha=-lr)

    _each(update, [None] * len(params), params, grads, *[buffers] * bool(momentum))


def _adagrad(
    params: Tensors, grads: Tensors, sums: Tensors, steps: Tensors, *, lr: Any, lr_decay: float, weight_decay: float,
    eps: float, maximize: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    lr, scale, skipped, numbers = _read(lr, grad_scale, found_inf, steps)
    if skipped:
        return

    def update(n: float, p: Any, grad: Any, total: Any) -> None:
        grad = _gradient(p, grad, scale, maximize, weight_decay)
        total.addcmul_(grad, grad)
        p.addcdiv_(grad, total.sqrt().add_(eps), value=-lr / (1 + (n - 1) * lr_decay))

    _each(update, numbers, params, grads, sums)


#: By the op's name.
STEPS: dict[str, Callable[..., None]] = {
    "aten::_fused_adam_": _adam(False), "aten::_fused_adamw_": _adam(True), "aten::_fused_sgd_": _sgd,
    "aten::_fused_adagrad_": _adagrad,
}  # fmt: skip
