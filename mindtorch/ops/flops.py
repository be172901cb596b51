"""Count the FLOPs of one call."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from .op_names import is_reflected, op_name
from .op_row import MATRIX_TAGS
from .table import row

_log = logging.getLogger(__name__)


class FlopCount(NamedTuple):
    """What one call computes.

    flops: floating-point operations; a multiply-add is 2.
    macs: multiply-adds of matrix work (half its FLOPs); 0 for everything else.
    category: the op's tag (``matmul``, ``attention``, ``elementwise`` ...).
    """

    flops: int
    macs: int
    category: str


def count_flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any) -> FlopCount | None:
    """FLOPs of ``out = func(*args, **kwargs)``; None if there is no formula, which is not the same as 0.

    `func` is anything `op_name` understands, or a name. Tensors may be anything with ``.shape`` and ``.dtype``; only
    shapes and plain arguments are looked at, so the result may be kept per signature. `args` are in the order of the
    ATen schema or of the public torch function, which are the same for every op that has a formula depending on it.
    """
    found = row(op_name(func))
    if found is None or found.flops is None:
        return None
    if len(args) == 2 and is_reflected(func):
        args = (args[1], args[0])
    try:
        flops = int(found.flops(args, kwargs or {}, out))
    except Exception as error:  # noqa: BLE001 - of arguments that a rule does not know, nested ones, anything may come
        _log.debug("no FLOP count for this call of %s: %s", found.name, error)
        return None
    return FlopCount(flops, flops // 2 if found.tag in MATRIX_TAGS else 0, found.tag)
