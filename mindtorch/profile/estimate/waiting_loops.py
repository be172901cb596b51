"""Loops that wait for values nobody knows: an estimate ends them, and says which (SPEC C4).

A ``while`` whose test reads an unknown value gets the same answer each time. Where nothing else can end it, it is told
the opposite once it has gone many rounds and made many calls, then numbers further and further off. One whose test has
another part, or that has another way out, may end by itself: it is told the opposite once in `MANY` rounds.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from ..._ext import context as _context
from ..._ext import ledger as _ledger
from ...base.errors import NoDataError
from ...base.file_names import short_names

__all__ = ["MANY", "begin", "ended", "in_while", "said", "turned"]

MANY = 10_000  # reads at one line before it is told the opposite of the assumption
FEW_ROUNDS, MUCH_WORK = 100, 200_000  # of a loop that nothing else can end: rounds, and calls that it has made
_NEVER = 100  # times `MUCH_WORK`: what none of the answers ended, the estimate cannot tell the end of
_FURTHER = (1, -1, 10**3, -(10**3), 10**6, -(10**6), 10**9, -(10**9))  # what numbers are taken for then
_EACH = 4  # reads: a test may have several

_rounds: dict[tuple[types.CodeType, int], _Loop] = {}


class _Loop:
    """One that waits: in which frame, since which call, how often it has asked, and whether only that ends it."""

    def __init__(self, frame: types.FrameType, line: int, alone: bool) -> None:
        self.frame, self.line, self.alone = id(frame), line, alone
        self.since, self.rounds, self.told = _ledger.position(), 0, 0


_ended: dict[tuple[str, int], int] = {}  # lines of loops that were told the opposite → after how many rounds


def begin() -> None:
    """Nothing has waited so far."""
    _rounds.clear()
    _ended.clear()


def ended() -> list[tuple[str, int, int]]:
    """(file, line, rounds) of the loops that were told something else than the assumption, so that they end."""
    return [(*where, rounds) for where, rounds in _ended.copy().items()]


def said() -> Iterator[str]:
    """What a report says of loops that went round as long as assumed values had them."""
    asked = [(code.co_filename, line) for code, line in list(_rounds) if (code.co_filename, line) not in _ended]
    names = short_names(file for file, _line in (*asked, *_ended))
    if asked:
        lines = ", ".join(f"{names[file]}:{line}" for file, line in asked[:5])
        yield f"assumed values decided how many iterations loops ran ({lines}): a run may differ"
    if _ended:
        lines = ", ".join(f"{names[file]}:{line} after {n:,}" for (file, line), n in list(_ended.items())[:5])
        yield f"loops waited for unknown values, and the estimate ended them ({lines} iterations)"


def turned(value: Any, dtype: torch.dtype, reads: int) -> Any:
    """What a read of an unknown value gives, which is assumed to be ``value``: something else in a loop without end.

    reads: how often its line has read one. In what is no loop, as far as its text says, each `MANY`th gives another.
    """
    found = _loop()
    if found is None:
        if reads % MANY:
            return value
        file, line, _function = _context.location(_context.get_location()) or ("(no line of the program)", 0, "")
        return _other(value, dtype, 0, file, line, reads)
    loop, code = found
    loop.rounds += 1
    work = _ledger.position() - loop.since
    if work > _NEVER * MUCH_WORK:
        raise NoDataError(
            f"[while] meta tensor has no data ({code.co_filename}:{loop.line}): this loop waits for unknown values, "
            f"and no value that the estimate assumed ended it in {loop.rounds} iterations (--assume)"
        )
    if loop.rounds % MANY and not (loop.alone and loop.rounds > FEW_ROUNDS and work > MUCH_WORK):
        return value
    loop.told += 1
    step = min((loop.told - 1) // _EACH, len(_FURTHER) - 1)
    return _other(value, dtype, step, code.co_filename, loop.line, loop.rounds)


def in_while() -> bool:
    """Is the program's line in a ``while``?"""
    file, line, _function = _context.location(_context.get_location()) or ("", 0, "")
    return any(line in lines for lines in _bodies(file))


@functools.lru_cache(256)
def _bodies(file: str) -> list[range]:
    """The lines of each ``while`` of the file."""
    loops = [each for each in ast.walk(_tree(file)) if isinstance(each, ast.While)]
    return [range(loop.lineno, (loop.end_lineno or loop.lineno) + 1) for loop in loops]


_parsing = threading.Lock()  # CPython 3.11 fails where two threads make syntax trees at once


def _tree(file: str) -> ast.Module:
    """Empty, of a program that Python compiled from something else."""
    try:
        with _parsing:
            return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _other(value: Any, dtype: torch.dtype, step: int, file: str, line: int, rounds: int) -> Any:
    if (file, line) not in _ended:
        _ended[file, line] = rounds
        warnings.warn(
            f"{file}:{line} waits for an unknown value, assumed to be {value!r}: after {rounds} iterations the "
            "estimate uses other values, so that the loop ends; --assume sets another value",
            stacklevel=2,
        )
    if dtype is torch.bool:
        return not value
    if not step:
        return 0 if value else 1
    limits = torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)
    return max(limits.min, min(limits.max, _FURTHER[step]))


def _loop() -> tuple[_Loop, types.CodeType] | None:
    """The innermost loop of those whose test is under way: in this function, or in one that has called it."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        if tests := _tests(frame.f_code):
            test = tests.get(frame.f_lineno)
            if test is not None:
                loop = _rounds.get((frame.f_code, test[0]))
                if loop is None or loop.frame != id(frame):
                    loop = _rounds[frame.f_code, test[0]] = _Loop(frame, *test)
                return loop, frame.f_code
        frame = frame.f_back
    return None


@functools.lru_cache(4096)
def _tests(code: types.CodeType) -> dict[int, tuple[int, bool]]:
    """Lines of the code on which a loop may end → the loop's line, and whether nothing else can end it."""
    if not code.co_filename or (tests := _tests_in(code.co_filename)) is None:
        return {}
    last = max((line for _begin, _end, line in code.co_lines() if line), default=0)
    return {line: test for line, test in tests.items() if code.co_firstlineno <= line <= last}


@functools.lru_cache(256)
def _tests_in(file: str) -> dict[int, tuple[int, bool]]:
    found: dict[int, tuple[int, bool]] = {}
    for loop in ast.walk(_tree(file)):
        if isinstance(loop, ast.While):
            for_ever = isinstance(loop.test, ast.Constant)
            ways = list(_ways_out(loop.body))
            tests: list[Any] = [test for test in ways if test is not None] if for_ever else [loop.test, *_flags(loop)]
            several = any(isinstance(test, ast.BoolOp) for test in tests) or len(ways) > for_ever
            for test in tests:
                lines = range(test.lineno, (test.end_lineno or test.lineno) + 1)
                found.update(dict.fromkeys(lines, (loop.lineno, not several)))
    return found


def _flags(loop: ast.While) -> list[ast.stmt]:
    """Where the name is set that the test consists of: `while not done`."""
    test = loop.test.operand if isinstance(loop.test, ast.UnaryOp) else loop.test
    name = test.id if isinstance(test, ast.Name) else ""
    return [
        each
        for each in ast.walk(loop)
        if isinstance(each, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == name for target in each.targets for t in ast.walk(target))
    ]


def _ways_out(body: list[ast.stmt], test: ast.expr | None = None) -> Any:
    """The test of each ``break``, ``return`` and ``raise`` that leaves the loop; None: of one without."""
    for statement in body:
        if isinstance(statement, (ast.Break, ast.Return, ast.Raise)):
            yield test
        elif isinstance(statement, ast.If):
            yield from _ways_out([*statement.body, *statement.orelse], statement.test)
        elif isinstance(statement, (ast.For, ast.While)):
            inner = [s for s in ast.walk(statement) if isinstance(s, (ast.Return, ast.Raise))]
            yield from [None for _s in inner]
        elif isinstance(statement, (ast.With, ast.Try)):
            yield from _ways_out(statement.body, test)
            for handler in getattr(statement, "handlers", ()):
                yield from _ways_out(handler.body, test)
