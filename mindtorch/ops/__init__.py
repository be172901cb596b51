"""What mindtorch knows about each op: its name, its tag, its FLOPs, what torch does not say about it."""

from __future__ import annotations

from .flops import FlopCount, count_flops
from .names import op_name
from .row import TAGS, OpRow
from .table import ROWS, row

__all__ = ["ROWS", "TAGS", "FlopCount", "OpRow", "count_flops", "op_name", "row"]
