"""What a device is: the machine that computes there, and its memory (SPEC L1, R1)."""

from __future__ import annotations

import os
import platform
from typing import NamedTuple

import torch

__all__ = ["Machine", "this_machine"]


class Machine(NamedTuple):
    """name: of what computes, as its driver or operating system has it; node: the host's name; kind: ``cpu`` or
    ``cuda``; free, total: bytes of its memory, as it says now; processors: cores, or multiprocessors of a GPU."""

    name: str
    node: str
    kind: str
    free: int
    total: int
    processors: int


def this_machine(device: torch.device) -> Machine:
    """What ``device`` of this process is."""
    node = platform.node()
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        said = torch.cuda.get_device_properties(device)
        return Machine(said.name, node, "cuda", free, total, said.multi_processor_count)
    page = os.sysconf("SC_PAGE_SIZE")
    free, total = os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
    return Machine("cpu", node, "cpu", free, total, os.cpu_count() or 1)
