"""Backward runs each step on the stream that its forward ran on, as torch's engine does for CUDA (SPEC N5).

To torch's engine our tensors are on the CPU, which has no streams, so it is done here. Which stream was current is
noted by autograd's sequence number whenever another one is chosen; a node's number says when its forward ran. Before
the first call of a node on another stream than the last, that stream waits for the last one; in the end the stream that
was current before waits for the last of them. So all of a backward is ordered, though by more than it needs: two
streams never work at once in it. What has no forward, summing up in ``.grad``, runs on the stream that was current.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from typing import Any

from .._ext import streams

_NO_NUMBER = (1 << 64) - 1  # of nodes that sum up in a leaf
_MOST = 1 << 16  # choices remembered; the oldest half is forgotten: backward of those is as without this


def _engine() -> Any:
    """torch's C++ side; None where nothing has imported torch, and so made no node. Nothing here has to."""
    return getattr(sys.modules.get("torch"), "_C", None)


class _Choices:
    """Which stream was current on a device, from which sequence number on."""

    def __init__(self, default: Any) -> None:
        self.numbers, self.streams = [0], [default]

    def add(self, number: int, stream: Any) -> None:
        if self.numbers[-1] == number:  # no node was made meanwhile
            self.numbers.pop(), self.streams.pop()
        if not self.streams or self.streams[-1] != stream:
            self.numbers.append(number)
            self.streams.append(stream)
        if len(self.numbers) > _MOST:
            del self.numbers[: _MOST // 2], self.streams[: _MOST // 2]

    def at(self, number: int) -> Any:
        """The stream then; None where that is forgotten."""
        index = bisect_right(self.numbers, number) - 1
        return self.streams[index] if index >= 0 else None


class _Run:
    """One backward in progress: the streams that were current before it, and the last one used, by device."""

    def __init__(self, task: int) -> None:
        self.task = task
        self.before: dict[int, Any] = {}
        self.last: dict[int, Any] = {}

    def use(self, device: int, stream: Any) -> None:
        last = self.last.get(device)
        if last is None:
            last = self.before[device] = streams.selected_stream(device)
        if stream is None:
            stream = self.before[device]
        self.last[device] = stream
        if stream != last:
            stream.wait_stream(last)
        streams.choose_stream(stream)

    def end(self) -> None:
        for device, stream in self.before.items():
            self.use(device, stream)


class _Here(threading.local):
    def __init__(self) -> None:
        self.choices: dict[int, _Choices] = {}  # by device
        self.runs: list[_Run] = []  # outermost first: a node may run a backward of its own


_here = _Here()


def chosen(device: int) -> None:
    """Another stream is current on ``device`` in the calling thread than before."""
    choices = _here.choices.get(device)
    if choices is None:
        choices = _here.choices[device] = _Choices(streams.default_stream(device))
    engine = _engine()
    number = 0 if engine is None else engine._autograd._get_sequence_nr()
    choices.add(number, streams.selected_stream(device))


def follow() -> None:
    """Make the streams current that those were on which the running node's forward ran (`_ext.streams.follow`)."""
    engine = _engine()
    if not _here.choices or engine is None:
        return
    task = engine._current_graph_task_id()
    while _here.runs and _here.runs[-1].task != task and (task < 0 or task in {run.task for run in _here.runs[:-1]}):
        _here.runs.pop().end()  # that failed: nobody told us
    node = engine._current_autograd_node() if task >= 0 else None
    if node is None:
        return
    if not _here.runs or _here.runs[-1].task != task:
        _here.runs.append(_Run(task))
        sys.modules["torch"].autograd.Variable._execution_engine.queue_callback(_end)
    number = node._sequence_nr()
    for device, choices in tuple(_here.choices.items()):
        _here.runs[-1].use(device, None if number == _NO_NUMBER else choices.at(number))


def _end() -> None:
    """The engine is through with a backward."""
    if _here.runs and _here.runs[-1].task == _engine()._current_graph_task_id():
        _here.runs.pop().end()
