"""What an estimated program gets for streams and events: its work is in program order, its collectives are beside it.

Computation is counted on one stream, however many the program has. What a stream or an event of the program's stands
for beyond that is the last collective begun on it: who waits for it waits for that one (`exchanged`). Memory is of the
stream that is current where it is asked for, as in torch's allocator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...devices import mode
from ...devices.lazy_device import check_cuda, known_device
from . import assumptions, exchanged, kernel_limits

__all__ = ["Event", "Stream", "current", "make_current"]


_POOL = 32  # torch's streams of one priority (c10/cuda/CUDAStream.cpp)
_KINDS = {"cuda": torch.autograd.DeviceType.CUDA, "npu": torch.autograd.DeviceType.PrivateUse1}


class Stream:
    """Stands for torch.cuda.Stream. last: the number of the last collective begun on it; None: there is none. number:
    of the stream; 0: the main one. Those beyond so many of a device share one, as torch's do."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        named = isinstance(device, (str, torch.device, int))
        index = check_cuda(_index(device)) if named else mode.now.current_cuda()
        self.device = known_device(f"{mode.now.accelerator}:{index}")
        self.priority, self.cuda_stream, self.npu_stream = priority, 0, 0
        # FSDP2 names a stream by these three.
        self.stream_id, self.device_index = 0, self.device.index
        self.device_type = int(_KINDS[mode.now.accelerator or "cuda"])
        self.last: int | None = None
        self.number = 0 if kwargs.get("main") else _next_of_pool(index, priority < 0)
        self._before: list[tuple[list[Any], dict[int, Stream]]] = []

    def synchronize(self) -> None:
        if kernel_limits.capturing():
            kernel_limits.captured()
        exchanged.wait_for(self.last)

    def wait_stream(self, stream: Any) -> None:
        self._wait_for(getattr(stream, "last", None))

    def wait_event(self, event: Any) -> None:
        self._wait_for(getattr(event, "last", None))

    def _wait_for(self, number: int | None) -> None:
        if number is None:
            return
        if self is _main or self in _chosen.values() or not isinstance(self, Stream):
            with _Only(None):
                exchanged.wait_for(number)
        else:
            self.last = max(number, -1 if self.last is None else self.last)

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return kernel_limits.capturing()

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        if self is not _main:
            self._before.append((list(exchanged.streams), dict(_chosen)))
            exchanged.streams.append(self)
            _tell(self.device.index)
        return self

    def __exit__(self, *error: object) -> None:
        if self is not _main:
            exchanged.streams[:], chosen = self._before.pop()
            _chosen.clear()
            _chosen.update(chosen)
            _tell(self.device.index)


class Event:
    """Stands for torch.cuda.Event: nobody knows what passes between two, as nothing is computed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.last: int | None = None

    def record(self, stream: Any = None) -> Event:
        self.last = getattr(current() if stream is None else stream, "last", None)
        return self

    def wait(self, stream: Any = None) -> None:
        (current() if stream is None else stream).wait_event(self)

    def synchronize(self) -> None:
        exchanged.wait_for(self.last)

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return assumptions.duration("elapsed_time")  # nothing was computed: unknown


class _Only:
    """Within it no side stream is current."""

    def __init__(self, stream: Any) -> None:
        self._before: list[Any] = []

    def __enter__(self) -> None:
        self._before = list(exchanged.streams)
        exchanged.streams.clear()

    def __exit__(self, *error: object) -> None:
        exchanged.streams[:] = self._before


#: Told of the index of a device, and what its allocator is asked for, with a number: see `DeviceMemory`.
Told = Callable[[int, str, int], None]
_main: Stream | None = None
_index: Callable[[Any], int] = int
_told: Told | None = None
_made: dict[tuple[int, bool], int] = {}  # streams, by device and whether their priority is high
_chosen: dict[int, Stream] = {}  # by device: what `set_stream` made the main one of all that follows
_capturing: dict[int, int] = {}  # by device: the number of the stream that a graph is captured on
_of_captures: dict[int, Stream] = {}  # by device: torch's own stream for captures


def begin(index: Callable[[Any], int], told: Told | None = None) -> None:
    """A new program: its main stream. index: of a device that is named."""
    global _main, _index, _told
    _main, _index, _told = None, index, told
    for known in (_made, _chosen, _capturing, _of_captures):
        known.clear()


def _next_of_pool(device: int, high: bool) -> int:
    made = _made[device, high] = _made.get((device, high), 0) + 1
    return 1 + (made - 1) % _POOL + _POOL * high


def tell(device: int, what: str, number: int) -> None:
    """A device's allocator is asked for this now. A graph may be gone after the estimate: nobody is asked then."""
    if _told is not None and mode.now.estimate is not None:
        _told(device, what, number)


def _tell(device: int) -> None:
    there = [stream.number for stream in exchanged.streams if stream.device.index == device]
    chosen = _chosen[device].number if device in _chosen else 0
    tell(device, "stream", there[-1] if there else _capturing.get(device, chosen))


def current(device: Any = None) -> Stream:
    """The stream that is the current one."""
    if exchanged.streams:
        innermost: Stream = exchanged.streams[-1]
        return innermost
    index = -1 if device is None else _index(device)
    return _chosen.get(mode.now.current_cuda() if index < 0 else index) or main()


def make_current(stream: Stream | None) -> None:
    """``torch.cuda.set_stream``: all that follows is on that stream, until the block of another one ends around it. It
    is computed as on the main one: the program waits for its collectives."""
    if stream is None:
        return
    device = mode.now.current_cuda() if stream is _main else stream.device.index
    exchanged.streams[:] = [other for other in exchanged.streams if other.device.index != device]
    _chosen.pop(device, None)
    if stream is not _main:
        _chosen[device] = stream
    _tell(device)


def captures_on(stream: Stream | None, device: int) -> None:
    """A graph is captured on that stream from now on; None: on torch's own one for captures."""
    if stream is None:
        stream = _of_captures.get(device) or _of_captures.setdefault(device, Stream())
    _capturing[device] = stream.number
    _tell(device)


def captures_no_more(device: int) -> None:
    """The capture has ended."""
    _capturing.pop(device, None)
    _tell(device)


def main(device: Any = None) -> Stream:
    """The one that all programs begin on."""
    global _main
    if _main is None:
        _main = Stream(main=True)
    return _main
