"""R1, L9: an exception of a signal handler, at any line of the program side, passes; what was asked for is neither lost
nor done twice.

At every line: ``pytest tests/remote/test_interrupts.py --lines 1``.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.engine.execute import values
from mindtorch.engine.remote import speculation

LAZY = "remote_accelerator:0"
FILES = (
    "client.py",
    "exchange.py",
    "sent_segments.py",
    "reads.py",
    "small_values.py",
    "mirrors.py",
    "definitions.py",
    "shared_storages.py",
    "speculation.py",
)


class Struck(Exception):
    """What the handler raises."""


def at(frame: FrameType) -> tuple[str, int]:
    return frame.f_code.co_filename, frame.f_lineno


@functools.cache
def is_no_place(name: str, line: int) -> bool:
    """As a block is left, Python 3.11 takes an exception of its tracer's for the block's own, at another depth, and a
    `try` that begins within one is no part of it. Signals come at neither.
    """
    return linecache.getline(name, line).lstrip().startswith(("with ", "try:"))


class Handler:
    """Raises at the n-th line of the files, as a signal handler would that came then. Python's tracing calls it so.

    lines: how many each read has where nothing strikes; those that end before the n-th are not traced, which takes most
    of the time.
    """

    def __init__(self, nth: int, lines: Sequence[int] = ()) -> None:
        self.left = nth
        self.where = ""
        self.lines: list[int] = []  # of the reads so far
        self._known = iter(lines)
        self._before = nth
        self.entering, self.stepping = self.enter, self.line  # Python 3.11 loses count of those made when needed

    def begin(self) -> None:
        """A read begins."""
        lines = next(self._known, 0)
        if self.where:
            return
        if 0 < lines <= self.left:
            self.left -= lines
        else:
            self._before = self.left
            sys.settrace(self.entering)

    def end(self) -> None:
        sys.settrace(None)
        self.lines.append(self._before - self.left)

    def enter(self, frame: FrameType, event: str, arg: object) -> Any:
        name = frame.f_code.co_filename
        return self.stepping if "/engine/remote/" in name and name.endswith(FILES) else None

    def line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and not self.where and not is_no_place(*at(frame)):
            self.left -= 1
            if self.left < 0:
                self.where = ":".join(map(str, at(frame)))
                raise Struck
        return self.stepping


class Resuming(mindtorch.LoopbackExecutor):
    """Takes messages as they arrive, each once, and gives its reply to who asks, as a way to another process does."""

    _resumes = True

    def __init__(self) -> None:
        super().__init__()
        self._handle, self._send, self._post = self._send, self._reply, self._arrives  # type: ignore[assignment]
        self._arrived: list[bytearray] = []
        self._replies: list[Any] = []

    def _arrives(self, message: bytearray) -> None:
        if not any(known is message for known in self._arrived):
            self._arrived.append(message)

    def _reply(self, message: bytearray) -> Any:
        self._arrives(message)
        tracing = sys.gettrace()
        sys.settrace(None)  # the worker is elsewhere
        try:
            while len(self._replies) < len(self._arrived):
                self._replies.append(self._handle(self._arrived[len(self._replies)]))
        finally:
            sys.settrace(tracing)
        return next(reply for known, reply in zip(self._arrived, self._replies, strict=True) if known is message)


def reader(seen: list[object], handler: Handler | None) -> Callable[[torch.Tensor], None]:
    """Reads a value, once more where that is struck."""

    def read(t: torch.Tensor) -> None:
        while True:
            try:
                if handler is not None:
                    handler.begin()
                seen.append(t.tolist())
                return
            except Struck:
                pass
            finally:
                if handler is not None:
                    handler.end()

    return read


def program(device: str, handler: Handler | None = None) -> list[object]:
    """New shapes, writes, small integers, and reads, the n-th of whose lines is struck."""
    seen: list[object] = []
    p, count = torch.linspace(-1, 1, 40).to(device), torch.zeros(1, dtype=torch.int64).to(device)
    read = reader(seen, handler)
    for step in range(3):
        p.mul_(0.5 + step)
        q = p * 2 + step
        count.add_(step + 1)
        read(q.sum())
        p.add_(q[: 10 * (step + 1)].sum())
        count.mul_(2)
        read(count)
        read(p[:3])
    return seen


def loop(device: str, handler: Handler | None = None) -> list[object]:
    """Steps that are run ahead, draws among them, until something else is done."""
    seen: list[object] = []
    torch.manual_seed(3)
    x = torch.ones(1).to(device)
    read = reader(seen, handler)
    for step in range(14):
        x = torch.cat([x, torch.rand(1, device=device) + x[-1:] * 0.5])
        if step == 9:
            x = x * 2
        read(x.sum() > step)
    read(x)
    read(torch.rand(2, device=device))
    return seen


def trains(device: str, handler: Handler | None = None) -> list[object]:
    """Steps of which a part runs behind the message that is waited for, until one does something else."""
    seen: list[object] = []
    p = torch.linspace(-1, 1, 6).to(device)
    read = reader(seen, handler)
    for step in range(7):
        read((p * 2).exp().sum())
        gradient = (p * (3 if step == 5 else 2)).exp() * 0.1
        if device == LAZY:
            with values.lock:
                values.go_on()  # as where a backward pass ends
        p.sub_(gradient)
    read(p)
    return seen


@pytest.mark.parametrize("run", [program, loop, trains])
@pytest.mark.usefixtures("nothing_pending", "loopback")
def test_R1_an_interrupt_at_any_line_loses_nothing(
    run: Callable[..., list[object]], pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculation, "clock", itertools.count().__next__)  # running ahead pays
    mindtorch.set_executor(Resuming())
    expected = run("cpu")
    for counting in (Handler(sys.maxsize), Handler(sys.maxsize)):  # the first time, some of it is compiled
        run(LAZY, counting)
    total = sum(counting.lines)
    assert total > 2000
    struck, lines = set(), pytestconfig.getoption("--lines")
    for nth in range(0, total, lines):
        handler = Handler(nth, counting.lines)
        assert run(LAZY, handler) == expected, handler.where
        struck.add(handler.where)
    assert len(struck - {""}) > min(100, total // lines // 3)
