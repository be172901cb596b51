"""Views of tensors of integers or booleans that were written with gradients.

Torch lets a program write a number that requires grad into such a tensor. Every view of it requires grad from then on,
and gets a new node. For its own tensors, torch describes that node by ``as_strided``. For a tensor subclass, it makes
the view again, and refuses the dtype there, when the write is already done. Here such a view gets a node of the same
name. No gradient can come through integers: a backward pass that reaches the node fails, as one of torch's own does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..._ext import lazy as _core
from .arguments import lazy_in

__all__ = ["give_nodes", "without_nodes"]
_base: Any = torch._C.TensorBase._base.__get__  # type: ignore[attr-defined]
_node: Any = torch._C.TensorBase.grad_fn.__get__  # type: ignore[attr-defined]
_requires: Any = torch._C.TensorBase.requires_grad.__get__  # type: ignore[attr-defined]


class _Gives(TorchDispatchMode):
    """Every call gives the same tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.tensor = tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> torch.Tensor:
        return self.tensor


def give_nodes(tensors: Iterable[torch.Tensor]) -> bool:
    """Give those of ``tensors`` a node that torch cannot make one for. False if there are none."""
    found = False
    with torch._C.DisableTorchFunction():  # type: ignore[attr-defined]
        for t in tensors:
            base = None if t.is_floating_point() or t.is_complex() else _base(t)
            if base is not None and _requires(base):
                _give_node(t)
                found = True
    return found


def _give_node(t: torch.Tensor) -> None:
    with torch.enable_grad():
        leaf = t.detach().new_zeros((), dtype=torch.float32).requires_grad_()
        view = leaf.as_strided(t.shape, [0] * t.dim())
    view.grad_fn.register_prehook(_refuse)  # type: ignore[union-attr]
    layers = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)  # type: ignore[attr-defined]
    with (
        torch._C._AutoDispatchBelowAutograd(),  # type: ignore[attr-defined]
        torch._C._ExcludeDispatchKeyGuard(layers),  # type: ignore[attr-defined]
        _Gives(view),
    ):
        _node(t)  # torch makes the view again, takes the node of what it gets, and keeps it until the next write


def _refuse(_gradients: Any) -> None:
    raise RuntimeError(
        "[backward] expected a graph of floating-point tensors, found a view of integers or booleans in it"
    )


def without_nodes(func: Any, before: int, again: bool, args: tuple, kwargs: dict) -> tuple | None:
    """After torch refused a call because it could not make a node: give the views among the arguments theirs.

    ``before``: the version, before the call, of the first argument, or of the first tensor in it if it is a list; -1 if
    that is no tensor of ours. ``again``: this is the second refusal. Gives what the call gives, in a tuple, if the
    first argument has been written and nothing is left to do; an empty tuple if the call may be made again; None if
    the refusal stands.
    """
    name = getattr(func, "__name__", "").split(".")[0]  # fill_, __setitem__, fill_.Tensor
    if name.endswith("_"):
        if before < 0:
            return None
        first = args[0] if args else kwargs.get("input", kwargs.get("self"))
        written = lazy_in(first)
        if written[0]._version != before:
            for t in written:
                _core.may_require_grad(_core.get_handle(t))
            if func is not torch.Tensor.__setitem__ or _names_all(args[1]):  # else a view of its own was written
                give_nodes(written)
            given = isinstance(first, torch.Tensor) or func is getattr(torch, name, None)  # not by operators on lists
            return (first if given and func is not torch.Tensor.__setitem__ else None,)
    found = not again and give_nodes(t for a in (*args, *kwargs.values()) for t in lazy_in(a))
    return () if found else None


def _names_all(index: Any) -> bool:
    """Does torch write the tensor itself that is assigned to at ``index``, and no slice of it?"""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        p.dim() > 0
        if isinstance(p, torch.Tensor)
        else p is ... or isinstance(p, list) or (isinstance(p, slice) and p == slice(None))
        for p in parts
    )
