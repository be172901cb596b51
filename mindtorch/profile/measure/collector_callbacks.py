"""What the compiled collector asks: of torch (see `Collector.keep_apart`), and of the table of ops."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from mindtorch import ops
from mindtorch._ext.opinfo import Op
from mindtorch.engine.record import mixing
from mindtorch.engine.record.arguments import tensors_in
from mindtorch.ops import schema
from mindtorch.ops.flop_rules import PerOutput
from mindtorch.ops.op_row import FREE_TAGS

__all__ = ["ASKED", "count", "describe"]


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


def describe(func: Any) -> Op:
    """What is the same for all calls of `func`; asked once per operator. A name: for the runs of recorded calls."""
    name = func if isinstance(func, str) else ops.op_name(func)
    row = ops.about(name)
    if isinstance(func, str):
        return Op(None, None, name, row.tag, False, row.tag in FREE_TAGS, False, False, True)
    allocates, writes, is_view, may_copy = True, False, False, False  # of a higher-order operator: it has no schema
    if hasattr(func, "_schema"):
        may_copy = schema.may_copy(func)
        allocates, writes, is_view = schema.allocates(func), bool(schema.writes_told(func)), schema.is_view(func)
    category = "view" if is_view and not row.name else row.tag
    free = category in FREE_TAGS
    call = func._op if type(func) is torch._ops.OpOverload else func
    has_formula = not free and row.flops is not None
    by_output = has_formula and type(row.flops) is PerOutput
    return Op(func, call, name, category, has_formula, free, allocates, writes, by_output=by_output, may_copy=may_copy)


def count(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any) -> tuple[int, int] | None:
    """(FLOPs, MACs) of one call, None without a formula; asked once per signature."""
    found = ops.count_flops(func, args, kwargs, out)
    return None if found is None else (found.flops, found.macs)
