"""What estimates take the values for that nobody knows: one number, and where that was done (SPEC C4).

Where the user names none, integers are 0, and floats almost: programs divide by losses and take their logarithm.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..._ext import context as _context
from ..._ext import lazy as _core
from ..._ext.strides import contiguous
from ...base import sourceline
from ...base.errors import NoDataError, UsageError
from ...engine.record import predict
from . import waiting_loops

__all__ = [
    "MOST_ASSUMED", "answer", "anything", "assumed", "begin", "full", "instead", "note", "too_large", "value_of",
]  # fmt: skip

#: Elements of unknown tensors that are made up for one op: 128 MB of the largest dtype.
MOST_ASSUMED = 1 << 24
#: Distinct source lines and ops that are told apart; all others are one row.
MOST_PLACES = 1000
_SOLVERS = ("scipy.optimize", "scipy.integrate")  # call the program back until its numbers suit them
#: Floats that nobody names a number for, or the smallest that the dtype divides by: below what loops wait for.
ALMOST_ZERO = 1e-12
_number: float | None = None
_assumed: dict[tuple[str, int, str], dict[str, Any]] = {}


def begin(number: float | None) -> None:
    """Take unknown values for ``number`` from now on, None: for 0 or almost; nothing has been assumed so far."""
    global _number
    if number is not None and (not isinstance(number, (int, float)) or not math.isfinite(number)):
        raise UsageError(f"[assume] expected a finite number, got {number!r}")
    _number = number
    _assumed.clear()
    waiting_loops.begin()


def assumed() -> list[dict[str, Any]]:
    """What was assumed since `begin`: one row per source line and op, most frequent first.

    Of each: file, line, function, source (text of the line), op, shape and dtype of the first tensor there, the value
    it was taken to be full of, the last time, too, calls, and the package that solves with it, if one does.
    """
    return sorted((dict(row) for row in _assumed.values()), key=lambda row: -row["calls"])


def anything() -> bool:
    """Whether anything was assumed since `begin`."""
    return bool(_assumed)


def full(t: torch.Tensor, op: str, value: Any = None, operand: bool = False) -> torch.Tensor:
    """A plain tensor like ``t``, full of the assumption, or of what follows from it; noted as made by the program's
    current line. operand: see `answer`."""
    dtype, size, stride, _offset, _place = _core.meta_of(_core.get_handle(t))
    value = value_of(dtype) if value is None else value
    _note(op, size, dtype, value, operand)
    return torch.empty_strided(size, stride or contiguous(size), dtype=dtype, device="cpu").fill_(value)


def answer(
    t: torch.Tensor, op: str, note: bool = True, value: Any = None, one: bool = False, operand: bool = False
) -> torch.Tensor:
    """The same for what the program, or its next size, depends on: what waits there comes to its end. one: a single
    element of it. operand: the op reads it, and makes something else of it, which the program is told."""
    dtype, size, stride, _offset, _place = _core.meta_of(_core.get_handle(t))
    value = value_of(dtype) if value is None else value
    if note:
        value = waiting_loops.turned(value, dtype, _note(op, size, dtype, value, operand))
    if one:
        return torch.full((), value, dtype=dtype, device="cpu")
    return torch.empty_strided(size, stride or contiguous(size), dtype=dtype, device="cpu").fill_(value)


def ranked(op: str, values: list[torch.Tensor], exact: bool) -> tuple[list[torch.Tensor], bool]:
    """(values, whether they are known) for a solver that a CPU's kernel refuses matrices of lower rank, which CUDA's
    does not look at: the first is the identity then."""
    first = values[0]
    if op != "aten::linalg_lstsq" or first.dim() < 2 or not first.numel():
        return values, exact
    with predict.quiet():
        matrix = torch.zeros_like(first)
        matrix.diagonal(0, -2, -1).fill_(1)
    return [matrix, *values[1:]], False


def note(t: torch.Tensor, op: str, value: Any) -> None:
    """What ``t`` gives is taken for that, at the program's current line."""
    _note(op, tuple(t.shape), t.dtype, value)


def duration(op: str) -> float:
    """Milliseconds that nobody measured: the assumption, or 1 where that is none, as programs divide by them."""
    value = float(_number or 1.0)
    _note(op, (), torch.float32, value)
    return value


@contextmanager
def instead(number: float | None) -> Iterator[None]:
    """Take unknown values for ``number`` within the block."""
    global _number
    before, _number = _number, number
    try:
        yield
    finally:
        _number = before


def number() -> float | None:
    """What unknown values are taken for now; None: for what suits their dtype."""
    return _number


def value_of(dtype: torch.dtype) -> Any:
    """The assumption as an element of a tensor."""
    if dtype is torch.bool:
        return bool(_number)
    if dtype.is_floating_point or dtype.is_complex:
        return max(ALMOST_ZERO, torch.finfo(dtype).tiny) if _number is None else float(_number)
    limits = torch.iinfo(dtype)
    return max(limits.min, min(limits.max, int(_number or 0)))


def _note(op: str, size: Any, dtype: torch.dtype, value: Any, operand: bool = False) -> int:
    """Calls of this kind at this line, with this one."""
    file, line, function = _context.location(_context.get_location()) or ("(no line of the program)", 0, "")
    key = (file, line, op)
    row = _assumed.get(key)
    if row is None and len(_assumed) >= MOST_PLACES:
        file, line, function, op = "(other lines)", 0, "", "(other ops)"
        key = (file, line, op)
        row = _assumed.get(key)
    if row is None:
        row = _assumed[key] = {
            **sourceline.facts((file, line, function)),
            "op": op.removeprefix("aten::"),
            "shape": tuple(size),
            "dtype": str(dtype).removeprefix("torch."),
            "value": value,
            "last": value,
            "calls": 0,
            "operand": operand,
            "solver": _solver(),
        }
    row["calls"] += 1
    row["last"] = value
    return int(row["calls"])


def _solver() -> str:
    """The package whose solver called the code that runs."""
    frame = sys._getframe() if any(name in sys.modules for name in _SOLVERS) else None
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        for name in _SOLVERS:
            if module.startswith(f"{name}."):
                return name
        frame = frame.f_back
    return ""


def too_large(op: str, elements: int) -> NoDataError:
    return NoDataError(
        f"[{op}] meta tensor has no data{sourceline.here()}: what the program does next depends on {elements} unknown "
        f"elements, and at most {MOST_ASSUMED} can be assumed (--assume); read a smaller tensor there"
    )
