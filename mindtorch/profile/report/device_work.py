"""What a measured program's GPUs or NPUs did, as far as they were traced, and what a report says of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class DeviceUse:
    """One device: ns of at least one kernel or copy, of none (of which nothing was queued either), and counts."""

    busy: int = 0
    idle: int = 0
    starved: int = 0  # of the idle time: what ran next was not launched yet
    longest: int = 0  # the longest stretch of idle time
    kernels: int = 0
    copies: int = 0
    copying: int = 0  # ns of copies and fills, whether or not kernels ran meanwhile
    streams: set[int] = field(default_factory=set)

    def add(self, more: DeviceUse) -> None:
        for name in ("busy", "idle", "starved", "kernels", "copies", "copying"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.longest = max(self.longest, more.longest)
        self.streams |= more.streams


@dataclass
class DeviceWork:
    """A stage's. Times are ns."""

    ops: dict[int, list[int]] = field(default_factory=dict)  # by signature: ns of all its kernels, how many
    uses: dict[int, DeviceUse] = field(default_factory=dict)  # by device
    busy: int = 0  # of the program's time: at least one device works, none does
    idle: int = 0
    lost: int = 0  # of kernels whose launch is not known
    unmoved: int = 0  # that stayed the host's, where they could not be given to the op
    dropped: int = 0  # stretches of the host for which there was no room
    memory: dict[int, tuple[int, int]] = field(default_factory=dict)  # by device: most bytes allocated, reserved
    kind: str = "cuda"
    how: str = "waited"
    why: str = ""  # the tracer was not used, or not to the end

    @property
    def called(self) -> str:
        """What a reader calls such a device."""
        return {"cuda": "GPU", "npu": "NPU"}[self.kind]

    def add(self, sig: int, ns: int, kernels: int) -> None:
        of = self.ops.setdefault(sig, [0, 0])
        of[0] += ns
        of[1] += kernels

    def plus(self, more: DeviceWork) -> None:
        for sig, (ns, kernels) in more.ops.items():
            self.add(sig, ns, kernels)
        for device, use in more.uses.items():
            self.uses.setdefault(device, DeviceUse()).add(use)
        for name in ("busy", "idle", "lost", "unmoved", "dropped"):
            setattr(self, name, getattr(self, name) + getattr(more, name))

    def within(self, time_ns: int) -> None:
        """Idle and busy time are no more than the program's time, of which recording was taken off."""
        self.idle = min(self.idle, max(time_ns - self.busy, 0))

    def report(self) -> dict[str, Any]:
        """The report's ``gpu``."""
        return {
            "how": self.how,
            "why": self.why,
            "busy_s": self.busy / 1e9,
            "idle_s": self.idle / 1e9,
            "unattributed_s": (self.lost + self.unmoved) / 1e9,
            "devices": [self._device(index) for index in sorted({*self.uses, *self.memory})],
        }

    def _device(self, index: int) -> dict[str, Any]:
        use, memory = self.uses.get(index, DeviceUse()), self.memory.get(index, (0, 0))
        return {
            "device": f"{self.kind}:{index}",
            "busy_s": use.busy / 1e9, "idle_s": use.idle / 1e9, "starved_s": use.starved / 1e9,
            "longest_idle_s": use.longest / 1e9, "kernels": use.kernels, "copies": use.copies,
            "copy_s": use.copying / 1e9, "streams": len(use.streams),
            "peak_allocated_bytes": memory[0], "peak_reserved_bytes": memory[1],
        }  # fmt: skip

    def notes(self) -> list[str]:
        """The report's warnings."""
        found = []
        if self.how != "traced":
            since = "" if self.how == "waited" else " from some point on"
            slows = f"genie waited for each op on the {self.called}{since}, which slows down a program that queues work"
            found.append(f"{slows}: {self.why}")
        if self.dropped or self.lost or self.unmoved:
            found.append(
                f"the op is unknown for {(self.lost + self.unmoved) / 1e9:.3g} s of kernels, which count as host time, "
                f"and for {self.dropped:,} stretches of host time, which were not kept"
            )
        return found
