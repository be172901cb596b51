"""What calls give on the device of recorded tensors: what torch says on meta, laid out as the CPU's kernels do it.

On ``meta``, results are laid out as torch's own meta device does it.
"""

from __future__ import annotations

from typing import Any

import torch

from . import conv_layout
from .conv_layout import REFUSED
from .table import about

__all__ = ["REFUSED", "laid_out"]


def laid_out(name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the call gives on meta tensors, laid out as the kernel does it, or REFUSED."""
    if name in conv_layout.NAMES:
        return conv_layout.laid_out(name, out, args, kwargs)
    rule = about(name).layout
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
