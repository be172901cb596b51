"""The pickle that torch's memory viewer opens (pytorch.org/memory_viz): as `torch.cuda.memory._snapshot()` gives it.

Its keys are those of torch 2.13 (torch/csrc/cuda/Module.cpp, `THCPModule_memorySnapshot`). Times are places in program
order: nothing ran.
"""

from __future__ import annotations

from typing import Any

from mindtorch._ext import context
from mindtorch.base import sourceline
from mindtorch.profile.estimate.allocator_blocks import Block
from mindtorch.profile.estimate.device_memory import Devices
from mindtorch.profile.estimate.memory_timeline import MemoryTimeline, op_name

Frames = list[dict[str, Any]]


class Snapshot:
    """Replays a run once more and notes every step of the allocator, of the device that most memory is on."""

    def __init__(self, timeline: MemoryTimeline, devices: Devices, place: int) -> None:
        self._timeline = timeline
        self._blocks = timeline.all_blocks
        self._frames: dict[tuple[int, int, int], Frames] = {}
        self._index = 0 if ":" not in timeline.device else int(timeline.device.partition(":")[2])
        self._trace: list[dict[str, Any]] = []
        self._given: dict[int, Frames] = {}  # by address: what asked for it
        self._streams: dict[int, int] = {}  # by address: it is of one stream alone, as its segment is
        self._graphs: dict[int, int] = {}  # the same of private pools
        self._memory = devices.fresh(place, self._note)
        self._memory.library = devices.of(place, None, advance=False).library  # it knows the calls by now
        self._memory.advance(timeline.calls, self._blocks, devices.requests.get(place, ()))

    def _note(self, action: str, address: int, nbytes: int) -> None:
        event = self._memory.event
        at, frames = self._about(event)
        current = self._memory.allocator.stream
        stream = current if action == "oom" else self._streams.setdefault(address, current)
        self._graphs.setdefault(address, self._memory.allocator.graph)
        entry = {"action": action, "addr": address, "size": nbytes, "stream": stream, "time_us": at, "frames": frames}
        if action == "oom":
            entry["device_free"], entry["addr"] = address, 0
        elif action == "alloc":
            self._given[address] = frames
        self._trace.append(entry)

    def _about(self, event: int | None) -> tuple[int, Frames]:
        """(place in program order, who asked) of a storage, or of a call."""
        if event is None:
            return self._memory.at, []
        if event < 0:
            call = self._timeline.calls[-1 - event]
            return self._memory.at, self._of(call, "workspace of ")
        return self._memory.at, self._of(self._blocks[event])

    def _of(self, row: Any, prefix: str = "") -> Frames:
        sig, location, module = int(row["sig"]), int(row["location"]), int(row["module"])
        key = (sig, location, module if not prefix else -1 - module)
        found = self._frames.get(key)
        if found is None:
            found = []
            name = op_name(sig)
            if name:
                found.append({"filename": "torch", "line": 0, "name": prefix + name})
            line = sourceline.facts(context.location(location))
            if line.get("file"):
                found.append({"filename": line["file"], "line": line["line"], "name": line.get("function") or ""})
            path = self._timeline.names[module]
            if path:
                found.append({"filename": "module", "line": 0, "name": path})
            self._frames[key] = found
        return found

    def facts(self) -> dict[str, Any]:
        """The whole of it."""
        settings = self._memory.settings
        return {
            "segments": [self._segment(head) for head in self._memory.allocator.segments()],
            "device_traces": [[] for _ in range(self._index)] + [self._trace],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": "",
                "max_split_size": settings.max_split if settings.limits_splits else -1,
                "garbage_collection_threshold": settings.gc_threshold,
                "expandable_segments": settings.expandable,
            },
            "external_annotations": [],
        }

    def _segment(self, head: Block) -> dict[str, Any]:
        blocks = []
        block: Block | None = head
        while block is not None:
            if block.mapped:
                blocks.append({
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested if block.given else 0,
                    "state": "active_allocated" if block.given else "inactive",
                    "frames": self._given.get(block.address, []) if block.given else [],
                })  # fmt: skip
            block = block.after
        given = [row for row in blocks if row["state"] == "active_allocated"]
        return {
            "device": self._index,
            "address": blocks[0]["address"] if blocks else head.address,
            "total_size": sum(row["size"] for row in blocks),
            "allocated_size": sum(row["size"] for row in given),
            "active_size": sum(row["size"] for row in given),
            "requested_size": sum(row["requested_size"] for row in given),
            "stream": self._streams.get(head.address, 0),
            "segment_type": "small" if head.pool.small else "large",
            "segment_pool_id": (0, self._graphs.get(head.address, 0)),
            "is_expandable": head.expandable,
            "frames": [],
            "blocks": blocks,
        }
