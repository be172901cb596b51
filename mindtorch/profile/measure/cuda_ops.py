"""How long a profiled program's GPUs take for each op: by torch's tracer, or by waiting for each op (SPEC C2).

Traced, nothing waits: the host's time is what it is without the profile, and `device_time` says afterwards to which op
each instant belongs. Where the tracer cannot be used, or what it says is not plausible, ops are waited for from then.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import numpy as np
import torch

from mindtorch._ext import context, timeline
from mindtorch._ext.collect import Collector, now_ns
from mindtorch.base import config
from mindtorch.devices.lazy_device import cuda_present
from mindtorch.profile.measure import device_time
from mindtorch.profile.measure.cuda_tracer import Traced, Tracer
from mindtorch.profile.report.device_work import DeviceUse, DeviceWork

__all__ = ["CudaOps"]

log = logging.getLogger(__name__)

#: Stretches of the host (32 bytes) between two looks at the trace, in which torch keeps some 500 bytes a kernel.
WINDOW = 1 << 17
_SPAN = np.dtype(timeline.SPAN)
_LATE = 1_000_000  # ns that clocks may differ by: a kernel that begins so long before its launch is none of it
_LOST = 0.05  # of the kernels' time, without a launch: more is not plausible


class CudaOps:
    """Called by the collector after each op, until the tracer runs. In a run without CUDA it does nothing."""

    def __init__(self, collector: Collector, tracer: Tracer | None = None) -> None:
        self._collector = collector
        self._tracer = Tracer() if tracer is None else tracer
        self._wait = Wait()
        self.why = "GENIE_PROFILE_CUDA is wait" if config.profile_cuda() == "wait" else ""  # ops are waited for
        self.used = self.traced = False
        self._window = DeviceWork()  # since the last stage ended
        self.stages: dict[str, DeviceWork] = {}
        self._hidden: Counter[tuple[int, ...]] = Counter()  # by row: see `behind`
        self.hidden = 0  # ns of that so far
        if cuda_present():
            collector.synchronize = self

    def __call__(self, out: Any) -> None:
        """After an op; `out` is what it gave."""
        if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
            return
        self.used = True
        self._wait(out)
        if not self.why:
            since = now_ns()
            _everything()  # what ran before is no op's
            self._start()
            self._collector.aside(since)

    def _start(self) -> None:
        try:
            self.why = self._tracer.start()
        except RuntimeError as error:  # CUPTI may be in use, or forbidden to this user
            self.why = f"torch's tracer did not start: {error}"
        if not self.why:
            self.traced = True
            self._collector.synchronize = None
            self._collector.spans.keep(2 * WINDOW, self.look)

    def give_way(self) -> None:
        """The program starts torch's own profiler, of which there is only one: from now on ops are waited for."""
        if self._tracer.running:
            self.look(again=False)
        self._fall_back("the program used torch's own profiler")

    def _fall_back(self, why: str) -> None:
        self.why = self.why or why
        self._collector.spans.keep(0, None)
        if self._collector.synchronize is None and cuda_present():
            self._collector.synchronize = self

    def marked(self) -> None:
        """A model is called, or an iteration ends: a good moment where there is much to look at."""
        if self._tracer.running and self._collector.spans.n > WINDOW:
            self.look()

    def look(self, again: bool = True) -> int:
        """Give what was traced until now to the ops; the time, for which the program waited for its GPUs.

        Nothing of that is in the program's time, but for what its GPUs still had to do.
        """
        if not self._tracer.running or torch.cuda.is_current_stream_capturing():
            return now_ns()
        error = ""
        try:
            _everything()
        except RuntimeError as failed:  # a kernel failed: the program will hear of it
            error = f"a GPU failed: {failed}"
        now = now_ns()
        collector = self._collector
        collector.up_to(now)
        spans, dropped = collector.spans.take()
        traced = self._tracer.stop({ident: here.number for ident, here in collector.threads.items()})
        if error:
            self._fall_back(error)
        elif collector.enabled and spans:
            self._attribute(np.frombuffer(spans, _SPAN), traced, dropped)
        if again and not self.why:
            self._start()
        collector.aside(now)
        return now_ns()

    def _attribute(self, spans: Any, traced: Traced, dropped: int) -> None:
        keys, rows = np.unique(spans[["sig", "module", "location", "phase"]], return_inverse=True)
        given = np.zeros(len(spans), device_time.SPAN)
        given["start"], given["ns"] = spans["start"], spans["ns"]
        given["row"], given["thread"] = rows.reshape(-1), spans["thread"]
        if why := implausible(given, traced):
            self._fall_back(why)
            return
        found = device_time.attribute(given, *traced)
        names = keys.tolist()
        unmoved = 0
        for (host, whose), ns in found.moved.items():
            unmoved += 0 if self._collector.table.move(names[host], names[whose], ns) else ns
        lost = int(traced.kernels["ns"].sum()) - sum(found.device.values())
        work = self._window
        for row, ns in found.device.items():
            work.add(names[row][0], ns, found.kernels[row])
        for row, ns in found.hidden.items():
            self._hidden[names[row]] += ns
        for device, use in found.uses.items():
            work.uses.setdefault(device, DeviceUse()).add(use)
        work.busy, work.idle = work.busy + found.busy, work.idle + found.idle
        work.lost += lost
        work.dropped += dropped
        work.unmoved += unmoved

    def behind(self, overhead: int) -> list[tuple[int, ...]]:
        """Rows of kernels that ran while the host was only watched, since the last call: of that `overhead`, in ns.

        It costs the program nothing while its GPU works, and is that op's time as any other.
        """
        hidden, self._hidden = self._hidden, Counter()
        whole = hidden.total()
        found: list[tuple[int, ...]] = []
        for (sig, module, location, phase), ns in hidden.items():
            ns = ns if whole <= overhead else ns * overhead // whole  # between ops were also imports, and compiling
            phase = context.PHASES.index("forward") if phase == context.CANDIDATE else phase
            found.append((sig, module, location, phase, 0, ns, 0))
            self._window.busy += ns
            self.hidden += ns
        return found

    def end(self, stage: str) -> None:
        """What was seen since the last stage ended is that stage's."""
        work, self._window = self._window, DeviceWork()
        if stage in self.stages:
            self.stages[stage].plus(work)
        else:
            self.stages[stage] = work

    def stop(self) -> None:
        """The program ends, or nothing more is to be seen of it."""
        if self._tracer.running:
            self.look(again=False)
        if self._tracer.running:  # within the capture of a graph
            self._tracer.stop({})
        self._collector.spans.keep(0, None)
        self._collector.synchronize = None

    def report(self, stage: str) -> DeviceWork | None:
        """Of a stage; None where the program used no GPU."""
        if not self.used:
            return None
        work = self.stages.get(stage, DeviceWork())
        work.how = "waited" if not self.traced else "traced, then waited" if self.why else "traced"
        work.why = self.why
        for device in range(torch.cuda.device_count()):
            if reserved := torch.cuda.max_memory_reserved(device):
                work.memory[device] = (torch.cuda.max_memory_allocated(device), reserved)
        return work


def implausible(spans: Any, traced: Traced) -> str:
    """Why what the tracer said cannot be used, or nothing."""
    launches, kernels = traced
    if not len(kernels):
        return "torch's tracer gave no kernels" if len(launches) else ""
    at, _ = device_time.launched(launches, kernels)
    known = at >= 0
    whole = int(kernels["ns"].sum())
    if int(kernels["ns"][~known].sum()) > _LOST * whole:
        return f"torch's tracer gave {int((~known).sum()):,} of {len(kernels):,} kernels without their launch"
    if (kernels["ns"] < 0).any() or (kernels["start"][known] < at[known] - _LATE).any():
        return "torch's tracer gave kernels that began before their launch"
    low, high = int(spans["start"].min()), int((spans["start"] + spans["ns"]).max())
    if (kernels["start"] < low - _LATE).any() or (kernels["start"] + kernels["ns"] > high + _LATE).any():
        return "torch's tracer gave kernels at times at which it did not run"
    return ""


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
