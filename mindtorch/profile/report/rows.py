"""Rows of a profile as columns of numbers, and their exact sums by some of them.

A row says how often one call was made at one place: (sig, module, location, phase, calls, ns, bytes). A model of many
layers has thousands; reports want them by op, by module, by line, by phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mindtorch._ext import context


class Row(NamedTuple):
    """How often one call was made at one place, and what its calls took together."""

    sig: int
    module: int
    location: int
    phase: int
    calls: int
    ns: int
    nbytes: int


#: The columns of a table of rows.
SIG, MODULE, LOCATION, PHASE, CALLS, NS, BYTES = range(len(Row._fields))
#: Phases of a forward pass, by index.
FORWARD = [context.PHASES.index(name) for name in ("forward", "prefill", "decode")]
_SAFE = float(1 << 62)  # what sums up to less fits 64 bits


def as_table(rows: Any) -> Any:
    """The rows as an array of shape (rows, 7): of int64, or of Python's integers where sums would not fit."""
    try:
        found = np.asarray(rows, np.int64).reshape(-1, 7)
    except OverflowError:
        found = np.array(rows, object).reshape(-1, 7)
    return found if _fits(found[:, CALLS:]) else found.astype(object)


def exact(values: Sequence[int], times: Any) -> Any:
    """`values` as an array; of Python's integers if their products with the numbers `times` could not be summed."""
    most = max((abs(int(v)) for v in values), default=0)
    return np.array(values, np.int64 if most * float(np.sum(times)) < _SAFE else object)


def _fits(columns: Any) -> bool:
    return not len(columns) or float(np.abs(columns.astype(float)).sum(axis=0).max()) < _SAFE


def told_phases(phases: Any) -> Any:
    """The phases that a report tells, of an array: calls without gradients are "forward" there, as the others are."""
    return np.where(phases == context.INFERENCE, phases.dtype.type(FORWARD[0]), phases)


def told_as(rows: Any) -> Any:
    """The rows with these phases."""
    found = rows.copy()
    found[:, PHASE] = told_phases(rows[:, PHASE])
    return found


def grouped(rows: Any, *columns: int) -> list[Row]:
    """The rows of a table with equal `columns` (two at most) as one, in order of first appearance; other ids are 0."""
    if not len(rows):
        return []
    ids = rows[:, columns].astype(np.int64)
    order, starts = _runs(ids[:, 0] << 32 | ids[:, -1])
    first = order[starts]
    found = np.zeros((len(starts), 7), rows.dtype)
    found[:, columns] = ids[first]
    found[:, CALLS:] = np.add.reduceat(rows[order, CALLS:], starts)
    return [Row._make(row) for row in found[np.argsort(first)].tolist()]


def summed(keys: Any, values: Any) -> dict[int, Any]:
    """{key: sum of its values}."""
    if not len(keys):
        return {}
    order, starts = _runs(keys.astype(np.int64))
    sums = np.add.reduceat(values[order], starts)
    return dict(zip(keys[order[starts]].tolist(), sums.tolist(), strict=True))


def _runs(keys: Any) -> tuple[Any, Any]:
    """(order in which equal keys lie together, where each begins in it); equal keys stay in their order."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    return order, np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
