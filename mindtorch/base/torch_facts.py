"""What differs between the releases of torch that mindtorch works with, in one place."""

from __future__ import annotations

from typing import Any

import torch

#: Releases that the whole suite passes with.
RELEASES = ("2.12", "2.13", "2.14", "2.15")


def data_pointers() -> list[Any]:
    """The methods that give a tensor's address. ``const_data_ptr`` came with torch 2.13."""
    base: Any = torch._C.TensorBase
    return [getattr(base, name) for name in ("data_ptr", "const_data_ptr") if hasattr(base, name)]


def cross_entropy_options() -> Any:
    """The class by which ``F.linear_cross_entropy`` looks up its precision; None before torch 2.13, which has none."""
    try:
        from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions
    except ImportError:
        return None
    return LinearCrossEntropyOptions
