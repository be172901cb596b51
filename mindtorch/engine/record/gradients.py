"""Gradient formulas that torch chooses by the kind of tensor they get.

Some of torch's C++ formulas (cumprod, prod, masked_fill, ormqr, max of all elements) compute in another way when handed
a tensor subclass: right, but with other last bits or strides than eager. Their backward step runs on computed, plain
tensors instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..._ext import lazy as _core


def on_values(call: Callable[[], Any], runtime: Any, name: str) -> Any:
    """The result of ``call()``, one differentiable op, whose backward will run on computed values, here.

    runtime: what reads them, and has the executor that is given the result.

    A backward pass that is differentiated itself (``create_graph=True``) keeps lazy tensors: only they carry a graph.
    So does one whose values are on a GPU: torch believes that its node is on the CPU, and refuses others.
    """
    if runtime.executor().device.type == "cuda":
        return call()

    def plain(t: Any) -> Any:
        if torch.is_grad_enabled() or _core.get_handle(t) is None:
            return t
        return runtime.read([t], f"{name} backward")[0].detach()

    def pack(t: torch.Tensor) -> Any:
        # A name of its own: the saved result must not hold the node that holds it.
        return t.detach(), t._version

    def unpack(saved: tuple[torch.Tensor, int]) -> Any:
        t, version = saved
        if t._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{tuple(t.shape)}], which is an input or the output of {name}, is at version {t._version}; "
                f"expected version {version} instead."
            )
        return plain(t)

    device = 0

    def before(gradients: tuple) -> tuple:
        nonlocal device
        device = next((_core.device_index(g) for g in gradients if _core.get_handle(g) is not None), device)
        return tuple(plain(g) for g in gradients)

    def after(made: tuple, _gradients: tuple) -> tuple:
        if torch.is_grad_enabled():
            return made
        plain = [g for g in made if type(g) is torch.Tensor]
        held = iter(_core.hold(value, device) for value in runtime.executor().adopt(plain, device))
        return tuple(next(held) if type(g) is torch.Tensor else g for g in made)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        out = call()
    node = out.grad_fn
    node.register_prehook(before)
    node.register_hook(after)
    return out
