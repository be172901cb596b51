"""How many calls ran on each NPU, and how many through the CPU; who is told that something was queued there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from .._ext import in_flight, streams
from ..base import config
from ..engine.execute import counters

#: Calls since the start: op -> how often it ran on the device, and how often through the CPU.
native_counts: dict[str, int] = {}
staged_counts: dict[str, int] = {}
counters.more.update(npu_native=native_counts, npu_staged=staged_counts)
device_counts: dict[int, int] = {}  # both, by device
#: Each is told the device after something was queued there that nobody has waited for.
watchers: list[Callable[[int], object]] = []
if config.npu_waits():
    watchers.append(streams.synchronize)
_counting = threading.Lock()
os.register_at_fork(before=_counting.acquire, after_in_parent=_counting.release, after_in_child=_counting.release)


def queued(device: int, op: str) -> None:
    """Say that ``op`` was queued there."""
    in_flight.put(device, op)
    for watcher in watchers:
        watcher(device)


def count(counts: dict[str, int], name: str, device: int) -> None:
    """Count a call among the native or the staged ones."""
    with _counting:
        counts[name] = counts.get(name, 0) + 1
        device_counts[device] = device_counts.get(device, 0) + 1
