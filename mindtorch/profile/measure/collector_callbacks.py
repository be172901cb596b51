"""What the compiled collector asks torch: see `Collector.keep_apart`."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from mindtorch.engine.record import mixing
from mindtorch.engine.record.arguments import tensors_in

__all__ = ["ASKED"]


def _has_symbols(value: Any) -> bool:
    """Is there a tensor of a compiler's whose sizes are not chosen yet? To count what it is for would choose them."""
    return any(isinstance(t, FakeTensor) and t._has_symbolic_sizes_strides for t in tensors_in(value))


ASKED = (
    torch._C._len_torch_function_stack,
    torch._C._is_torch_function_enabled,
    torch._C.DisableTorchFunction,
    # Not a function of Python: it is asked at every detach.
    functools.partial(torch._C._dispatch_tls_is_dispatch_key_excluded, torch._C.DispatchKey.ADInplaceOrView),
    FakeTensor,
    _has_symbols,
    mixing.parts,
)
