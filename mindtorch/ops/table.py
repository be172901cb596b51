"""The op table: every row, and the look-up by name.

A new op is one new row in the file of its family. What torch's own tags and schemas tell all about has none: views,
their copies, element-wise math.
"""

from __future__ import annotations

import functools

from . import schema
from .flop_rules import elementwise
from .op_row import OpRow, op
from .table_data import ROWS as _DATA
from .table_math import ROWS as _MATH
from .table_matrix import ROWS as _MATRIX
from .table_nn import ROWS as _NN
from .table_optim import ROWS as _OPTIM

ROWS: tuple[OpRow, ...] = (*_MATRIX, *_NN, *_MATH, *_DATA, *_OPTIM)

_BY_NAME: dict[str, OpRow] = {row.name: row for row in ROWS}

#: What is known about an op without a row.
_NOTHING = OpRow("", "other")


def about(name: str) -> OpRow:
    """The row of a normalized name, or one without a name that knows nothing."""
    return _BY_NAME.get(name) or row(name) or _NOTHING


def row(name: str) -> OpRow | None:
    """The row of a normalized name (``aten::mm``); an in-place op (``aten::add_``) has that of the functional one.

    None if neither the table nor torch knows the op.
    """
    found = _BY_NAME.get(name)
    if found is None and name.endswith("_"):
        found = _BY_NAME.get(name[:-1])
    return _by_torch(name) if found is None else found


@functools.cache
def _by_torch(name: str) -> OpRow | None:
    if name.endswith("_") and (found := _by_torch(name[:-1])) is not None:
        return found
    tag = schema.tag(name)
    return op(name, tag, elementwise if tag == "elementwise" else None) if tag else None
