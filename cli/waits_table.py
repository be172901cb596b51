"""The lines of a program that wait for values computed elsewhere, as ``genie run --explain`` lists them (SPEC C9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mindtorch.base.file_names import short_names
from mindtorch.base.words import counted

from . import units

if TYPE_CHECKING:
    from mindtorch.engine.execute.triggers import Waits

__all__ = ["line_of", "lines"]

_MOST = 20  # lines that are listed


def lines(waits: Sequence[Waits], seconds: float) -> list[str]:
    """Of a run of so many seconds; of each line of the program: its reads, messages that they waited for, and time."""
    if not waits:
        return ["genie run: the program never waited: it read no value that another process computed"]
    reads, messages, spent = _sums(waits)
    names = short_names([row.where[0] for row in waits if row.where is not None])
    found = [
        (
            f"genie run: {counted(reads, 'read')} of values took {units.seconds(spent)} of {units.seconds(seconds)} "
            f"and waited for the replies to {counted(messages, 'message')}; by line:"
        ),
        f"  {'reads':>9}{'messages':>10}{'time':>10}{'a message':>11}   line",
    ]
    for row in waits[:_MOST]:
        each = units.seconds(row.seconds / row.messages) if row.messages else "-"
        found.append(_line(row.reads, row.messages, row.seconds, each, line_of(row, names)))
    if rest := waits[_MOST:]:
        found.append(_line(*_sums(rest), "", counted(len(rest), "other line")))
    return found


def _sums(waits: Sequence[Waits]) -> tuple[int, int, float]:
    return sum(row.reads for row in waits), sum(row.messages for row in waits), sum(row.seconds for row in waits)


def _line(reads: int, messages: int, seconds: float, each: str, where: str) -> str:
    return f"  {reads:>9,}{messages:>10,}{units.seconds(seconds):>10}{each:>11}   {where}"


def line_of(row: Waits, names: dict[str, str] | None = None) -> str:
    """``train.py:12``"""
    if row.where is None:
        return "unknown lines"
    file, line = row.where
    return f"{(names or short_names([file]))[file]}:{line}"
