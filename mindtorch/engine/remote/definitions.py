"""Calls without their tensors and numbers, as a worker is told of them once (SPEC R1, R3)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..._ext import intern as _intern
from ..._ext import lazy as _core
from . import functions
from .wire import HERE, Hole, Reference

__all__ = ["Definition", "Numbers", "definition", "floats_in", "numbers_in"]


class Definition(NamedTuple):
    """Which function, the arguments with holes for tensors and numbers, which results are outputs, as predicted."""

    function: str
    args: tuple
    kwargs: dict[str, Any]
    random: int  # index of the device whose generator it draws from; -1: none
    view: bool
    writes: tuple[int, ...]  # tensors' holes
    single: bool  # it returns one tensor, not several
    outputs: tuple[int | None, ...]  # for each result the output's number, less than 0: an input, None: no tensor
    predicted: tuple[tuple[torch.dtype, int, bool], ...]  # of each output: dtype, dimensions, are its strides told?


def definition(sig: int) -> Definition:
    """That of an interned call.

    Its numbers, in order, are those of `mindtorch._ext.encoder`: ints and floats of the arguments, then of each output
    sizes, strides where they are told, offset.
    """
    info = _core.sig_info(sig)
    holes = tuple(Reference(k) for k in range(len(_core.input_metas(sig))))
    args, kwargs = _core.call_template(sig, holes, HERE, (Hole.FLOAT,) * _core.sig_floats(sig))
    returns = _core.sig_returns(sig)
    outputs: tuple[int | None, ...] = (0,) if returns is None else tuple(returns[1:])
    single = returns is None or returns[0] in (_intern.TENSOR, _intern.NOTHING)
    if returns is not None and returns[0] == _intern.NOTHING:
        outputs = ()
    predicted = []
    for k in range(_core.sig_outputs(sig)):
        dtype, sizes, strides, _offset, _place = _core.sig_output_meta(sig, k)
        predicted.append((dtype, len(sizes), strides is not None))
    return Definition(
        functions.name_of(info),
        _emptied(args),
        {name: _emptied(a) for name, a in kwargs.items()},
        _core.sig_generator(sig),
        _core.sig_is_view(sig),
        _core.sig_written(sig),
        single,
        outputs,
        tuple(predicted),
    )


_KINDS = {int: Hole.INT, float: Hole.FLOAT, complex: Hole.COMPLEX}


def _emptied(a: Any) -> Any:
    """An argument with holes in place of numbers."""
    if type(a) in (tuple, list):
        return type(a)(_emptied(item) for item in a)
    return _KINDS.get(type(a), a)


def numbers_in(made: Definition) -> int:
    """How many numbers a call takes."""
    n = sum(ndim * (1 + told) + 1 for _dtype, ndim, told in made.predicted)
    return n + sum(_count(a) for a in (*made.args, *made.kwargs.values()))


def _count(a: Any) -> int:
    if type(a) in (tuple, list):
        return sum(map(_count, a))
    return 0 if not isinstance(a, Hole) else 2 if a is Hole.COMPLEX else 1


def floats_in(made: Definition) -> list[int]:
    """Which of them are floats."""
    found: list[int] = []
    at = 0
    for a in (*made.args, *made.kwargs.values()):
        at = _find_floats(a, at, found)
    return found


def _find_floats(a: Any, at: int, found: list[int]) -> int:
    if type(a) in (tuple, list):
        for item in a:
            at = _find_floats(item, at, found)
        return at
    if a is Hole.FLOAT:
        found.append(at)
    return at + _count(a)


class Numbers:
    """Those of a run, one after the other. ``ints``, ``floats``: two looks at the same memory."""

    def __init__(self, ints: memoryview[int], floats: memoryview[float], at: int) -> None:
        self._ints, self._floats, self.at = ints, floats, at

    def several(self, n: int) -> tuple[int, ...]:
        """The next ``n`` as ints."""
        begin, self.at = self.at, self.at + n
        return tuple(self._ints[begin : self.at])

    def fill(self, a: Any) -> Any:
        """An argument with numbers in its holes."""
        if isinstance(a, Hole):
            self.at += 1
            if a is Hole.INT:
                return self._ints[self.at - 1]
            real = self._floats[self.at - 1]
            if a is Hole.FLOAT:
                return real
            self.at += 1
            return complex(real, self._floats[self.at - 1])
        if type(a) in (tuple, list):
            return type(a)([self.fill(item) for item in a])
        return a
