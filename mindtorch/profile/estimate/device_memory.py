"""What one device would hold: the ledger's storages through torch's allocator, and what is not torch's beside them.

Three numbers, each with the one before in it. *Allocated*: what tensors take, and the workspaces that libraries get
from torch, in the allocator's units. *Reserved*: the segments that the allocator got from the device. *Device*: also
what the driver takes: the context, kernels once they are loaded, and whatever else was said with `beside`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mindtorch._ext import context, ledger
from mindtorch.profile.estimate import workspaces
from mindtorch.profile.estimate.allocator_blocks import Block
from mindtorch.profile.estimate.allocator_settings import Settings
from mindtorch.profile.estimate.caching_allocator import CachingAllocator, Trace

_BLOCK, _CALL = np.dtype(ledger.BLOCK), np.dtype(ledger.CALL)
_ALIVE = 0xFFFFFFFF
_BACKWARD = context.PHASES.index("backward")
# What happens at one length of the log of calls, in this order: a call's results, what it takes while it runs, what is
# not needed after it, what the program asks the allocator for then.
_BIRTH, _CALL_RUNS, _DEATH, _ASKED = range(4)

#: (position in the log of calls, what, a number with it): what a program asked the allocator for.
Request = tuple[int, str, float]


class DeviceMemory:
    """One device's memory as far as the ledger has come; `advance` goes on.

    place: the ledger's number of the device. capacity: bytes that it has. capability, processors: CUDA's compute
    capability, streaming multiprocessors. kind: ``cuda``, ``npu``.
    others: bytes by name that are neither torch's nor the driver's own (NCCL's buffers), so far.
    trace: told of each step of the allocator, after `at` was set to the place in program order, and `event` to the
    storage (its index in the ledger's log) or the call (-1 - its index) that it is about; None: the program's request.
    """

    def __init__(
        self,
        place: int,
        capacity: int | None,
        capability: tuple[int, int] = (9, 0),
        processors: int = 132,
        kind: str = "cuda",
        settings: Settings | None = None,
        others: Callable[[], dict[str, int]] = dict,
        trace: Trace | None = None,
    ) -> None:
        self.place, self.capacity, self.kind = place, capacity or None, kind
        self.settings = Settings.of_environment(kind) if settings is None else settings
        self.library = workspaces.Library(capability, processors, kind)
        self._others = others
        self.context = self.library.context
        self.allocator = CachingAllocator(self.settings, self._room, trace)
        self.event: int | None = None
        self.at = 0
        self.highest_allocated = self.highest_reserved = 0  # whatever peaks the program has reset
        self.workspaces = 0
        self._replays = False  # calls are those of a graph, whose memory is that of its capture
        self._given: dict[int, Block] = {}  # by index of the storage
        self._handles: set[tuple[int, int, str]] = set()  # (thread, stream, library) that have a workspace
        self._blocks = self._calls = self._requests = 0  # seen of each log

    def advance(self, calls: Any, blocks: Any, requests: Sequence[Request] = ()) -> None:
        """Go on to the end of these logs, of which the beginning was seen before."""
        self.allocator.capacity = self._room
        new = np.flatnonzero(blocks["place"][self._blocks :] == self.place) + self._blocks
        before = np.fromiter(self._given, np.int64, len(self._given))
        candidates = np.concatenate([before, new])
        died = candidates[blocks["died"][candidates] != _ALIVE] if len(candidates) else candidates
        at, taken = self.library.of_calls(calls["sig"][self._calls :])
        at = at + self._calls
        asked = requests[self._requests :]
        positions = np.concatenate([blocks["born"][new], at + 1, blocks["died"][died], [row[0] for row in asked]])
        kinds = np.repeat([_BIRTH, _CALL_RUNS, _DEATH, _ASKED], [len(new), len(at), len(died), len(asked)])
        which = np.concatenate([new, np.arange(len(at)), died, np.arange(len(asked))]).astype(np.int64)
        order = np.lexsort((which, kinds, positions.astype(np.int64)))
        sizes = blocks["nbytes"]
        allocator, given = self.allocator, self._given
        rows = zip(positions[order].tolist(), kinds[order].tolist(), which[order].tolist(), strict=True)
        for self.at, kind, number in rows:
            self.event = number
            if kind == _BIRTH:
                given[number] = allocator.malloc(int(sizes[number]))
            elif kind == _DEATH:
                allocator.free(given.pop(number))
            elif kind == _CALL_RUNS:
                self.event = -1 - int(at[number])
                self._run(taken[number], int(calls["phase"][at[number]]) & 0xFF)
            else:
                self.event = None
                self._ask(asked[number][1], asked[number][2])
        self._blocks, self._calls, self._requests = len(blocks), len(calls), len(requests)
        self._remember()

    def _run(self, taken: workspaces.Taken, phase: int) -> None:
        """Memory that a call takes beside its results: of a library's handle for good, for itself while it runs."""
        if self._replays:
            return
        allocator = self.allocator
        thread = int(phase == _BACKWARD)  # autograd's thread has handles of its own
        handle = thread, allocator.stream, taken.handle
        if taken.handle and handle not in self._handles:
            self._handles.add(handle)
            size = self.library.handles[taken.handle]
            if size:
                self.workspaces += allocator.malloc(size).size
        for block in [allocator.malloc(size) for size in taken.bytes]:
            allocator.free(block)

    def _ask(self, what: str, value: float) -> None:
        if what == "empty_cache":
            self.allocator.empty_cache()
        elif what == "reset_peak":
            self._remember()
            self.allocator.reset_peak()
        elif what == "fraction":
            self.allocator.fraction = value
        elif what == "stream":
            self.allocator.stream = int(value)
        elif what == "capture":
            self.allocator.capture(int(value))
        elif what == "release_graph":
            self.allocator.release_graph(int(value))
        elif what == "replay":
            self._replays = bool(value)

    def _remember(self) -> None:
        self.highest_allocated = max(self.highest_allocated, self.allocator.peak_allocated)
        self.highest_reserved = max(self.highest_reserved, self.allocator.peak_reserved)

    @property
    def beside(self) -> dict[str, int]:
        """Bytes by name that are neither torch's nor the driver's own."""
        return self._others()

    @property
    def _room(self) -> int | None:
        """Bytes that are the allocator's at most."""
        return None if self.capacity is None else max(0, self.capacity - self.taken)

    @property
    def taken(self) -> int:
        """Bytes that are not the allocator's, once the device is used."""
        return self.context + sum(self.beside.values())

    @property
    def elsewhere(self) -> int:
        """Bytes that are not the allocator's, from the first use of the device on."""
        return self.taken if self._used else 0

    @property
    def _used(self) -> bool:
        return bool(self.allocator.device_allocations)

    def report(self) -> dict[str, Any]:
        """For the report's memory: the three peaks, what the last is made of, and whether the card holds it."""
        allocator = self.allocator
        device = self.highest_reserved + self.elsewhere
        facts: dict[str, Any] = {
            "peak_allocated_bytes": self.highest_allocated,
            "peak_reserved_bytes": self.highest_reserved,
            "peak_device_bytes": device,
            "context_bytes": self.context if self._used else 0,
            "workspace_bytes": self.workspaces,
            "beside": self.beside,
            "allocator": {
                "retries": allocator.retries,
                "ooms": allocator.ooms,
                "segments": allocator.segments_now,
                "expandable_segments": self.settings.expandable,
                "ignored": list(self.settings.ignored),
            },
        }
        if self.capacity is not None:
            facts["capacity_bytes"] = self.capacity
            facts["fits"] = device <= self.capacity and not allocator.ooms
            facts["spare_bytes"] = self.capacity - device
            room = self.capacity - self.elsewhere
            facts["devices"] = 1 if facts["fits"] else max(2, -(-self.highest_reserved // room)) if room > 0 else 0
        return facts


class Devices:
    """The memory of each device of a run, for the program that asks meanwhile, and for the report."""

    def __init__(
        self, capacity: int, capability: tuple[int, int], processors: int, kind: str, count: int,
        others: Callable[[], dict[str, int]] = dict,
    ) -> None:  # fmt: skip
        self.capacity, self.capability, self.processors, self.kind = capacity, capability, processors, kind
        self.count, self.others = count, others
        self.requests: dict[int, list[Request]] = {}
        self._known: dict[int, DeviceMemory] = {}

    def ask(self, place: int, what: str, value: float = 0.0) -> None:
        """The program asks the allocator of a device for this now."""
        self.requests.setdefault(place, []).append((ledger.position(), what, value))

    def of(self, place: int, logs: tuple[bytes, bytes] | None = None, advance: bool = True) -> DeviceMemory:
        """A device's memory now, or at the end of these logs; advance: False: as it was when last asked for."""
        found = self._known.get(place)
        if found is None:
            found = self._known[place] = self.fresh(place)
        if not advance:
            return found
        calls, blocks = ledger.logs() if logs is None else logs
        found.advance(np.frombuffer(calls, _CALL), np.frombuffer(blocks, _BLOCK), self.requests.get(place, ()))
        return found

    def fresh(self, place: int, trace: Trace | None = None) -> DeviceMemory:
        return DeviceMemory(
            place, self.capacity, self.capability, self.processors, self.kind,
            others=self.others, trace=trace,
        )  # fmt: skip
