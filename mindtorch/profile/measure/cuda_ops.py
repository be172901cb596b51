"""GPUs as a measured profile sees them: after each op, by torch's tracer, and by waiting (SPEC C2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from mindtorch._ext.collect import Collector
from mindtorch.profile.measure.cuda_tracer import Tracer
from mindtorch.profile.measure.device_time import Traced

__all__ = ["Cuda"]


class Cuda:
    """A `Kind`. The collector tells of every op, and what it gave."""

    name, tracer = "cuda", "torch's tracer"

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._tracer, self._wait = Tracer(), Wait()

    @property
    def running(self) -> bool:
        return self._tracer.running

    def listen(self, told: Callable[[Any], None] | None) -> None:
        self._collector.synchronize = told

    def capturing(self) -> bool:
        # Asking that of a GPU that was not used yet would start it.
        return not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing()

    def wait(self, where: Any) -> None:
        self._wait(where)

    def settle(self) -> None:
        _everything()

    def start(self) -> str:
        return self._tracer.start()

    def stop(self, threads: Mapping[int, int]) -> Traced:
        return self._tracer.stop(threads)

    def memory(self) -> dict[int, tuple[int, int]]:
        most = {i: (torch.cuda.max_memory_allocated(i), torch.cuda.max_memory_reserved(i))
                for i in range(torch.cuda.device_count())}  # fmt: skip
        return {device: figures for device, figures in most.items() if figures[1]}


def _everything() -> None:
    """Wait for every GPU that the program has used; waiting for others would start those."""
    for device in range(torch.cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(device):  # type: ignore[attr-defined]
            torch.cuda.synchronize(device)


class Wait:
    """Kernels on a GPU are queued: wait, so that an op's time is its own."""

    def __init__(self) -> None:
        # Devices that gave results: waiting for others would start those.
        self._seen: dict[torch.device | None, None] = {}

    def __call__(self, out: Any) -> None:
        while isinstance(out, (tuple, list)) and out:
            out = out[0]
        if isinstance(out, torch.Tensor) and out.is_cuda:
            self._seen[out.device] = None
            torch.cuda.synchronize(out.device)  # which need not be the current one
            return
        for device in tuple(self._seen) or (None,):  # nothing says where it was
            torch.cuda.synchronize(device)
