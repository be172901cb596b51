"""The reader of torch's tracer of GPUs: all that rests on the private interface of torch's profiler.

Only CUDA is traced, no op of the host: of GPT-2 small's step in bfloat16 that costs a tenth of what both cost. Kernels
and the calls that launched them come with a common number, and with times of day, which are brought to our clock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mindtorch.profile.measure.device_time import ANY, KERNEL, LAUNCH, Traced

_LAUNCH = re.compile(r"cu.*(Launch(?!HostFunc)|Memcpy|Memset|MemPrefetch)")
__all__ = ["Tracer", "read"]


class Tracer:
    """Between `start` and `stop` it traces. There is one tracer in a process: torch's own profiler uses it, too."""

    def __init__(self) -> None:
        self.running = False

    def why_not(self) -> str:
        """Empty where it can be used."""
        needed = ("_prepare_profiler", "_enable_profiler", "_disable_profiler", "_profiler_enabled")
        if missing := [name for name in needed if not hasattr(torch.autograd, name)]:
            return f"this torch has no torch.autograd.{missing[0]}"
        if torch.profiler.ProfilerActivity.CUDA not in torch.autograd._supported_activities():
            return "this torch cannot trace GPUs (it has no CUPTI)"
        if torch.autograd._profiler_enabled():
            return "the program uses torch's own profiler"
        return ""

    def start(self) -> str:
        """Why it could not be started, or nothing."""
        if why := self.why_not():
            return why
        _start({torch.profiler.ProfilerActivity.CUDA})
        self.running = True
        return ""

    def stop(self, threads: Mapping[int, int]) -> Traced:
        """threads: identity → number of what `SPAN` calls a thread."""
        self.running = False
        return read(_stop(), threads)


def _start(activities: set[Any]) -> None:
    profiler: Any = torch.autograd.profiler
    config = profiler.ProfilerConfig(
        profiler.ProfilerState.KINETO, False, False, False, False, False,
        torch._C._profiler._ExperimentalConfig(),  # type: ignore[attr-defined]
    )  # fmt: skip
    # Not by the names that `ProfilerWatch` listens at, those in torch.autograd.profiler: this is not the program's.
    torch.autograd._prepare_profiler(config, activities)  # type: ignore[attr-defined]
    torch.autograd._enable_profiler(config, activities)  # type: ignore[attr-defined]


def _stop() -> Any:
    return torch.autograd._disable_profiler().events()  # type: ignore[attr-defined]


def read(events: Any, threads: Mapping[int, int], apart: int | None = None) -> Traced:
    """From torch's events. apart: ns that our clock is behind the time of day; else as it is now.

    A host's event is a launch if it is such a call of CUDA's (``cudaLaunchKernel``, ``cuLaunchKernelEx``,
    ``cudaGraphLaunch``, ``cudaMemcpyAsync``): others launch nothing, and torch's notes of what the tracer does have
    numbers of launches, too. Of a thread, the lower half of its identity is told, as a signed number.
    """
    if apart is None:
        apart = _apart()
    number = {ident & 0xFFFFFFFF: thread for ident, thread in threads.items()}
    cuda = torch.autograd.DeviceType.CUDA
    launches, kernels = [], []
    for event in events:
        if event.device_type() == cuda:
            name = event.name()
            copy = name.startswith(("Memcpy", "Memset"))
            kernels.append((event.correlation_id(), event.start_ns() - apart, event.duration_ns(),
                            event.device_resource_id(), event.device_index(), copy))  # fmt: skip
        elif _LAUNCH.match(event.name()):
            thread = number.get(event.device_resource_id() & 0xFFFFFFFF, ANY)
            launches.append((event.correlation_id(), event.start_ns() - apart, thread))
    return Traced(np.array(launches, LAUNCH), np.array(kernels, KERNEL))


def _apart() -> int:
    """The time of day less our clock: the reading between two of ours that are closest together."""
    found = []
    for _ in range(5):
        before, day, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        found.append((after - before, day - (before + after) // 2))
    return min(found)[1]
