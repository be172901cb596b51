"""What a device is: the machine that computes there, and its memory (SPEC L1, R1)."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from ..remote.run_time import Computing

__all__ = ["Call", "Machine", "Timing", "set_timing", "this_machine"]

#: (id of a recorded call, the floats that it leaves open).
Call = tuple[int, tuple[float, ...]]


class Machine(NamedTuple):
    """name: of what computes, as its driver or operating system has it; node: the host's name; kind: ``cpu`` or
    ``cuda``; free, total: bytes of its memory, as it says now; processors: cores, or multiprocessors of a GPU;
    threads: of a CPU that one operation uses."""

    name: str
    node: str
    kind: str
    free: int
    total: int
    processors: int
    threads: int = 1


#: How long recorded calls take on each of several machines, in a program of so many bytes; None: not known.
Timing = Callable[[Sequence[Call | None], Sequence[Machine], int], "Computing | None"]
timing: Timing | None = None


def set_timing(timed: Timing) -> None:
    """What says how long recorded calls take (called once: imports go one way)."""
    global timing
    timing = timed


def this_machine(device: torch.device) -> Machine:
    """What ``device`` of this process is."""
    node = platform.node()
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        said = torch.cuda.get_device_properties(device)
        return Machine(said.name, node, "cuda", free, total, said.multi_processor_count)
    page = os.sysconf("SC_PAGE_SIZE")
    free, total = os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
    return Machine("cpu", node, "cpu", free, total, os.cpu_count() or 1, torch.get_num_threads())
