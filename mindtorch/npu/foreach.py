"""Torch's ``_foreach_`` forms on NPU tensors: the op itself on each tensor, as torch's CPU kernels do it."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["apart"]

_SAME = "abs add clamp_max clamp_min copy cos div exp lerp log mul neg pow reciprocal rsqrt sigmoid sqrt sub tanh zero"
_NAMES = {name: name for name in (*_SAME.split(), "addcmul", "addcdiv")} | {"norm": "linalg_vector_norm"}


def apart(base: str, args: tuple, kwargs: dict) -> Any:
    """``args[0]`` has the tensors; other lists have as many, and what is no list is for each of them.

    ``NotImplemented`` for what is written in another way than the op itself.
    """
    name = base.removeprefix("aten::_foreach_")
    in_place = name.endswith("_")
    single = _NAMES.get(name.removesuffix("_"))
    lists = [a for a in (*args, *kwargs.values()) if isinstance(a, (list, tuple))]
    if single is None or not isinstance(args[0], (list, tuple)) or any(len(a) != len(args[0]) for a in lists):
        return NotImplemented
    if single.startswith("addc") and len(args) > 3:
        args, kwargs = args[:3], {"value": args[3]}
    if name == "norm" and len(args) > 2:
        args, kwargs = args[:2], {"dtype": args[2]}
    if isinstance(kwargs.get("value"), torch.Tensor):
        return NotImplemented  # a tensor of numbers
    func = getattr(torch.ops.aten, single + "_" * in_place)
    out = []
    for i in range(len(args[0])):
        mine = [a[i] if isinstance(a, (list, tuple)) else a for a in args]
        out.append(func(*mine, **{k: v[i] if isinstance(v, (list, tuple)) else v for k, v in kwargs.items()}))
    if not in_place:
        return out
    torch.autograd.graph.increment_version(args[0])
    return None
