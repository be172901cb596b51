"""NPUs as a measured profile sees them: what ran natively, or staged through the CPU, and when (SPEC N5, C2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mindtorch._ext import blocks as _blocks
from mindtorch._ext import in_flight, streams
from mindtorch._ext.collect import Collector
from mindtorch.npu import counts, tensor
from mindtorch.profile.measure.device_time import ANY, KERNEL, LAUNCH, Traced

__all__ = ["Npu", "NpuOps"]

_DONE = np.dtype(in_flight.DONE)
_LOST = 0.05  # of the launches: more is not plausible


class Npu:
    """A `Kind`. An op is told of once it is queued, with its device's index; what is traced are launches and copies."""

    name, tracer = "npu", "the tracing of NPUs by events"

    def __init__(self) -> None:
        self.running = False
        self._told: Callable[[Any], None] | None = None
        self._before = dict(counts.device_counts)

    def listen(self, told: Callable[[Any], None] | None) -> None:
        if self._told is not None:
            counts.watchers.remove(self._told)
        self._told = told
        if told is not None:
            counts.watchers.append(told)

    def capturing(self) -> bool:
        return False  # there are no graphs of NPUs

    def wait(self, where: Any) -> None:
        streams.synchronize(where)

    def settle(self) -> None:
        for index in counts.device_counts:
            streams.synchronize(index)

    def start(self) -> str:
        in_flight.start()
        self.running = True
        return ""

    def stop(self, threads: Mapping[int, int]) -> Traced:
        """Launches of which an event failed have no work: where they are many, nothing is told of any."""
        self.running = False
        found, lost = in_flight.stop()
        done = np.frombuffer(found, _DONE).copy()
        if lost > _LOST * (lost + len(done)):
            done = done[:0]
        for device in np.unique(done["device"]):  # no work begins before its launch: so far its clock was misread
            mine = (done["device"] == device) & (done["waited"] == 0)
            if mine.any():
                done["start"][mine] += max((done["launched"][mine] - done["start"][mine]).max(), 0)
        launched, kernels = np.zeros(len(done) + (lost and not len(done)), LAUNCH), np.zeros(len(done), KERNEL)
        launched["correlation"] = np.arange(len(launched))
        kernels["correlation"] = np.arange(len(kernels))
        for name in ("start", "ns", "stream", "device", "copy"):
            kernels[name] = done[name]
        if len(done):
            launched["at"] = done["launched"]
            launched["thread"] = [threads.get(ident, ANY) for ident in done["thread"].tolist()]
        return Traced(launched, kernels)

    def memory(self) -> dict[int, tuple[int, int]]:
        return {index: (_blocks.max_memory_allocated(index), _blocks.max_memory_reserved(index))
                for index, calls in _counts()[2].items() if calls > self._before.get(index, 0)}  # fmt: skip


class NpuOps:
    """Counts calls from when it is made until :meth:`stop`.

    The collector is told of memory that is taken outside of ops, as for tensors that are created or moved there.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        for index in counts.device_counts:  # what was queued before is not the first op's
            streams.synchronize(index)
        self._before = _counts()
        self.native: dict[str, int] = {}
        self.staged: dict[str, int] = {}
        self.devices: list[str] = []
        self.peaks: dict[str, int] = {}
        tensor.watchers.append(collector.made)

    def stop(self) -> None:
        """Keep what was counted."""
        tensor.watchers.remove(self._collector.made)
        native, staged, devices = (
            {key: calls - before.get(key, 0) for key, calls in now.items() if calls > before.get(key, 0)}
            for now, before in zip(_counts(), self._before, strict=True)
        )
        self.native, self.staged = native, staged
        self.devices = [f"npu:{index}" for index in sorted(devices, key=lambda index: -devices[index])]
        self.peaks = {name: _blocks.max_memory_allocated(name) for name in self.devices}

    def report(self) -> dict[str, Any] | None:
        """``native`` and ``staged``: op → calls, most first; ``devices``; ``peak_bytes``: device → most bytes that its
        tensors held, since the program began or last reset it. None where the program used no NPU."""
        if not self.devices:
            return None
        native, staged = (
            dict(sorted(kind.items(), key=lambda item: (-item[1], item[0]))) for kind in (self.native, self.staged)
        )
        return {"devices": self.devices, "native": native, "staged": staged, "peak_bytes": self.peaks}


def _counts() -> tuple[dict[Any, int], dict[Any, int], dict[Any, int]]:
    return dict(counts.native_counts), dict(counts.staged_counts), dict(counts.device_counts)
