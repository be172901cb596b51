"""``--oom raise``: what does not fit into the target's memory raises torch.OutOfMemoryError where it is asked for."""

from __future__ import annotations

from typing import NoReturn

import torch

from ..._ext import ledger
from ...devices.lazy_device import device_at, place_of
from .accelerator import Accelerator

__all__ = ["in_words", "limit"]


def limit(accelerator: Accelerator) -> None:
    """From now on, until the ledger is closed. Of the program's own tensors: live bytes against what the context of the
    driver leaves of the capacity."""
    room = accelerator.memory_bytes - accelerator.devices.of(place_of(accelerator.kind), advance=False).context

    def refuse(place: int, nbytes: int) -> NoReturn:
        live = ledger.live_bytes(place)[0]
        device = device_at(place)
        raise torch.OutOfMemoryError(
            f"{device.type.upper()} out of memory. Tried to allocate {in_words(nbytes)}. GPU {device.index or 0} has a "
            f"total capacity of {in_words(accelerator.memory_bytes)} of which {in_words(max(room - live, 0))} is free. "
            f"Of the allocated memory {in_words(live)} is allocated by PyTorch."
        )

    for index in range(accelerator.count):
        ledger.limit(place_of(f"{accelerator.kind}:{index}"), room, refuse)


def in_words(nbytes: int) -> str:
    """As torch writes it."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} bytes"
