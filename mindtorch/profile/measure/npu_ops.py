"""What a profiled program ran on NPUs: natively, or staged through the CPU (SPEC N5)."""

from __future__ import annotations

from typing import Any

from mindtorch._ext import blocks as _blocks
from mindtorch.npu import staging

__all__ = ["NpuOps"]


class NpuOps:
    """Counts calls from when it is made until :meth:`stop`."""

    def __init__(self) -> None:
        self._before = _counts()
        self.native: dict[str, int] = {}
        self.staged: dict[str, int] = {}
        self.devices: list[str] = []
        self.peaks: dict[str, int] = {}

    def stop(self) -> None:
        """Keep what was counted."""
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
    return dict(staging.native_counts), dict(staging.staged_counts), dict(staging.device_counts)
