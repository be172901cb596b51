"""What mindtorch knows about each op: its name, its tag, its FLOPs, what torch does not say about it."""

from __future__ import annotations

from typing import Any

import torch

from . import decision_ops, schema  # here: `__getattr__` below would answer for them
from .flops import FlopCount, count_flops
from .op_names import op_name
from .op_row import TAGS, OpRow
from .table import ROWS, about, row


def __getattr__(name: str) -> Any:
    return getattr(torch.ops, name)  # `import mindtorch as torch`: torch.ops is reachable here (SPEC D6)


__all__ = ["ROWS", "TAGS", "FlopCount", "OpRow", "about", "count_flops", "decision_ops", "op_name", "row", "schema"]
