"""How long a profiled program's GPUs and NPUs take for each op: traced, or by waiting for each op (SPEC C2).

Traced, nothing waits: the host's time is what it is without the profile, and `device_time` says afterwards to which op
each instant belongs. Where the tracer cannot be used, or what it says is not plausible, ops are waited for from then.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from mindtorch._ext import context, timeline
from mindtorch._ext.collect import Collector, now_ns
from mindtorch.base import config
from mindtorch.devices.lazy_device import cuda_present
from mindtorch.profile.measure import device_time
from mindtorch.profile.measure.device_time import Traced
from mindtorch.profile.measure.npu_ops import Npu
from mindtorch.profile.report.device_work import DeviceUse, DeviceWork

__all__ = ["DeviceOps", "Kind"]

log = logging.getLogger(__name__)

#: Stretches of the host (32 bytes) between two looks at the trace, in which torch keeps some 500 bytes a kernel.
WINDOW = 1 << 17
_SPAN = np.dtype(timeline.SPAN)
_LATE = 1_000_000  # ns that clocks may differ by: a kernel that begins so long before its launch is none of it
_LOST = 0.05  # of the kernels' time, without a launch: more is not plausible


class Kind(Protocol):
    """GPUs or NPUs, and their tracer."""

    name: str  # cuda, as in cuda:0
    tracer: str  # what the reports' reasons call it

    @property
    def running(self) -> bool:
        """The tracer."""

    def listen(self, told: Callable[[Any], None] | None) -> None:
        """Call ``told(where)`` after each op on such a device, to be handed to `wait`; None: no more."""

    def capturing(self) -> bool:
        """Launches are kept for later, and nothing may wait."""

    def wait(self, where: Any) -> None:
        """For one op."""

    def settle(self) -> None:
        """Wait for each device that the program has used; RuntimeError: one failed."""

    def start(self) -> str:
        """Trace; why it could not be, or nothing. RuntimeError: neither."""

    def stop(self, threads: Mapping[int, int]) -> Traced:
        """threads: identity → number of what `device_time.SPAN` calls a thread."""

    def memory(self) -> dict[int, tuple[int, int]]:
        """By device: most bytes allocated by tensors, reserved of the device."""


class DeviceOps:
    """Told of each op on a device, until a tracer runs. In a run without a device it does nothing.

    One kind of device is traced: that which is used first. Ops of another are waited for, in the host's time.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._kinds = tuple(_kinds(collector))
        self._kind: Kind | None = None  # the first that was used
        self.why = ""  # ops are waited for
        self.traced = False
        self._window = DeviceWork()  # since the last stage ended
        self.stages: dict[str, DeviceWork] = {}
        self._hidden: Counter[tuple[int, ...]] = Counter()  # by row: see `behind`
        self.hidden = 0  # ns of that so far
        for kind in self._kinds:
            self._listen(kind)

    @property
    def _running(self) -> Kind | None:
        """The kind that is traced now."""
        return self._kind if self._kind is not None and self._kind.running else None

    def _listen(self, kind: Kind) -> None:
        kind.listen(lambda where: self._ran(kind, where))

    def _ran(self, kind: Kind, where: Any) -> None:
        """After an op on such a device."""
        if not self._collector.enabled or kind.capturing():
            return
        kind.wait(where)
        if self._kind is None:
            self._kind = kind
            asked = config.profile_device(kind.name)
            self.why = "" if asked == "trace" else f"{config.PROFILES[kind.name]} is {asked}"
        if kind is self._kind and not self.why:
            since = now_ns()
            kind.settle()  # what ran before is no op's
            self._start(kind)
            self._collector.aside(since)

    def _start(self, kind: Kind) -> None:
        try:
            self.why = kind.start()
        except RuntimeError as error:  # CUPTI may be in use, or forbidden to this user
            self.why = f"{kind.tracer} did not start: {error}"
        if not self.why:
            self.traced = True
            kind.listen(None)
            self._collector.spans.keep(2 * WINDOW, self.look)

    def give_way(self) -> None:
        """The program starts torch's own profiler, of which there is only one: from now on GPUs' ops are waited for."""
        if self._kind is not None and self._kind.name != "cuda":
            return
        if self._running is not None:
            self.look(again=False)
        self._fall_back("the program used torch's own profiler")

    def _fall_back(self, why: str) -> None:
        self.why = self.why or why
        self._collector.spans.keep(0, None)
        if self._kind is not None:
            self._listen(self._kind)

    def marked(self) -> None:
        """A model is called, or an iteration ends: a good moment where there is much to look at."""
        if self._collector.spans.n > WINDOW and self._running is not None:
            self.look()

    def look(self, again: bool = True) -> int:
        """Give what was traced until now to the ops; the time, for which the program waited for its GPUs.

        Nothing of that is in the program's time, but for what its GPUs still had to do.
        """
        kind = self._running
        if kind is None or kind.capturing():
            return now_ns()
        error = ""
        try:
            kind.settle()
        except RuntimeError as failed:  # a kernel failed: the program will hear of it
            error = f"a device failed: {failed}"
        now = now_ns()
        collector = self._collector
        collector.up_to(now)
        spans, dropped = collector.spans.take()
        traced = kind.stop({ident: here.number for ident, here in collector.threads.copy().items()})
        if error:
            self._fall_back(error)
        elif collector.enabled and spans:
            self._attribute(kind, np.frombuffer(spans, _SPAN), traced, dropped)
        if again and not self.why:
            self._start(kind)
        collector.aside(now)
        return now_ns()

    def _attribute(self, kind: Kind, spans: Any, traced: Traced, dropped: int) -> None:
        keys, rows = np.unique(spans[["sig", "module", "location", "phase"]], return_inverse=True)
        given = np.zeros(len(spans), device_time.SPAN)
        given["start"], given["ns"] = spans["start"], spans["ns"]
        given["row"], given["thread"] = rows.reshape(-1), spans["thread"]
        if why := implausible(given, traced, kind.tracer):
            self._fall_back(why)
            return
        found = device_time.attribute(given, traced.launches, traced.kernels)
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
            phase = context.INFERENCE if phase == context.CANDIDATE else phase
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
        self.look(again=False)
        if self._running is not None:  # within the capture of a graph
            self._running.stop({})
        self._collector.spans.keep(0, None)
        for kind in self._kinds:
            kind.listen(None)

    def report(self, stage: str) -> DeviceWork | None:
        """Of a stage; None where the program used no device."""
        if self._kind is None:
            return None
        work = self.stages.get(stage, DeviceWork())
        work.kind = self._kind.name
        work.how = "waited" if not self.traced else "traced, then waited" if self.why else "traced"
        work.why = self.why
        work.memory = self._kind.memory()
        return work


def _kinds(collector: Collector) -> Iterator[Kind]:
    """What a program may use on this machine."""
    if cuda_present():
        from mindtorch.profile.measure.cuda_ops import Cuda  # and torch's tracer

        yield Cuda(collector)
    yield Npu()


def implausible(spans: Any, traced: Traced, who: str) -> str:
    """Why what the tracer said cannot be used, or nothing."""
    launches, kernels = traced.launches, traced.kernels
    if not len(kernels):
        return f"{who} reported no kernels" if len(launches) else ""
    at, _ = device_time.launched(launches, kernels)
    known = at >= 0
    whole = int(kernels["ns"].sum())
    if int(kernels["ns"][~known].sum()) > _LOST * whole:
        return f"{who} reported {int((~known).sum()):,} of {len(kernels):,} kernels without their launch"
    if (kernels["ns"] < 0).any() or (kernels["start"][known] < at[known] - _LATE).any():
        return f"{who} reported kernels that began before their launch"
    low, high = int(spans["start"].min()), int((spans["start"] + spans["ns"]).max())
    if (kernels["start"] < low - _LATE).any() or (kernels["start"] + kernels["ns"] > high + _LATE).any():
        return f"{who} reported kernels outside the traced time"
    return ""
