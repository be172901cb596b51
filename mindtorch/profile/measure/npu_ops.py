"""What a profiled program ran on NPUs: natively, or staged through the CPU (SPEC N5); each op is waited for."""

from __future__ import annotations

from typing import Any

from mindtorch._ext import blocks as _blocks
from mindtorch._ext import streams
from mindtorch._ext.collect import Collector
from mindtorch.npu import staging, tensor

__all__ = ["NpuOps"]


class NpuOps:
    """Counts calls from when it is made until :meth:`stop`, and waits for each while the collector is on.

    Else an op's time would be that of queueing it, and what first reads a result would have all the time before it.
    The collector is told of memory that is taken outside of ops, as for tensors that are created or moved there.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        for index in staging.device_counts:  # what was queued before is not the first op's
            streams.synchronize(index)
        self._before = _counts()
        self.native: dict[str, int] = {}
        self.staged: dict[str, int] = {}
        self.devices: list[str] = []
        self.peaks: dict[str, int] = {}
        staging.watchers.append(self._queued)
        tensor.watchers.append(collector.made)

    def stop(self) -> None:
        """Keep what was counted."""
        staging.watchers.remove(self._queued)
        tensor.watchers.remove(self._collector.made)
        native, staged, devices = (
            {key: calls - before.get(key, 0) for key, calls in now.items() if calls > before.get(key, 0)}
            for now, before in zip(_counts(), self._before, strict=True)
        )
        self.native, self.staged = native, staged
        self.devices = [f"npu:{index}" for index in sorted(devices, key=lambda index: -devices[index])]
        self.peaks = {name: _blocks.max_memory_allocated(name) for name in self.devices}

    def _queued(self, device: int) -> None:
        if self._collector.enabled:
            streams.synchronize(device)

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
    return dict(staging.native_counts), dict(staging.staged_counts), dict(staging.device_counts)
