"""Sparse tensors in an estimate, which has strided ones only.

Gradients of tables (``nn.Embedding(sparse=True)``) are counted as of all rows, and the report says so. A matrix that is
made of its indices is refused: as a strided one it might be larger than all there is. So are jagged tensors, whose
lengths are no numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.jit._builtins import _register_builtin

from ...base.errors import UnsupportedOperationError

__all__ = ["counted_whole", "replacements"]

_MAKERS = ("sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor",
           "sparse_compressed_tensor")  # fmt: skip
_NESTED = ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged", "narrow")
_whole = False


def counted_whole() -> bool:
    """Whether a sparse gradient was counted as of all rows, since `replacements` were given."""
    return _whole


def replacements() -> list[tuple[Any, str, Any]]:
    """(owner, attribute, replacement)."""
    global _whole
    _whole = False
    return [
        *((torch, name, _refusing(name)) for name in _MAKERS),
        *((torch.nested, name, _unless_jagged(getattr(torch.nested, name))) for name in _NESTED),
        *(
            (kind, "forward", _with_whole_gradient(kind.forward))
            for kind in (torch.nn.Embedding, torch.nn.EmbeddingBag)
        ),
        (torch.optim.SparseAdam, "step", _step),
    ]


@functools.cache
def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedOperationError(f"[{name}] an estimate has no sparse tensors: how large they are is not known")

    _register_builtin(refuse, f"aten::{name}")  # for torch.jit.script, which looks functions up by what they are
    return refuse


def _unless_jagged(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def nest(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("layout") is torch.jagged or original.__name__ == "nested_tensor_from_jagged":
            raise UnsupportedOperationError(f"[torch.nested.{original.__name__}] an estimate has no jagged tensors")
        return original(*args, **kwargs)

    return nest


def _with_whole_gradient(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _whole
        if not self.sparse:
            return original(self, *args, **kwargs)
        _whole = _whole or torch.is_grad_enabled()
        self.sparse = False
        try:
            return original(self, *args, **kwargs)
        finally:
            self.sparse = True

    return forward


@torch.no_grad()
def _step(self: Any, closure: Any = None) -> Any:
    """Of SparseAdam: what it does to the rows of a gradient, to all of them."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    for group in self.param_groups:
        first, second = group["betas"]
        for p in (p for p in group["params"] if p.grad is not None):
            state = self.state[p]
            if not state:
                state |= {"step": 0, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            state["step"] += 1
            state["exp_avg"].lerp_(p.grad, 1 - first)
            state["exp_avg_sq"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
            p.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt().add_(group["eps"]), value=-group["lr"])
    return loss
