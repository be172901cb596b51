"""The op table: every row, and the look-up by name.

A new op is one new row in the file of its family.
"""

from __future__ import annotations

from .op_row import OpRow
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
    return row(name) or _NOTHING


def row(name: str) -> OpRow | None:
    """The row of a normalized name (``aten::mm``); an in-place op (``aten::add_``) has that of the functional one.

    None if the table does not know the op.
    """
    found = _BY_NAME.get(name)
    if found is None and name.endswith("_"):
        found = _BY_NAME.get(name[:-1])
    return found
