"""``--oom raise``: what does not fit into the target's memory raises torch.OutOfMemoryError where it is asked for."""

from __future__ import annotations

from typing import NoReturn

import torch

from ..._ext import ledger
from ...base.words import bytes_in_words
from ...devices.lazy_device import device_at, place_of
from .accelerator import Accelerator

__all__ = ["limit"]


def limit(accelerator: Accelerator) -> None:
    """From now on, until the ledger is closed. Of the program's own tensors: live bytes against what the context of the
    driver leaves of the capacity."""
    room = accelerator.memory_bytes - accelerator.devices.of(place_of(accelerator.kind), advance=False).context

    def refuse(place: int, nbytes: int) -> NoReturn:
        live = ledger.live_bytes(place)[0]
        device, words = device_at(place), bytes_in_words
        raise torch.OutOfMemoryError(
            f"{device.type.upper()} out of memory. Tried to allocate {words(nbytes)}. GPU {device.index or 0} has a "
            f"total capacity of {words(accelerator.memory_bytes)} of which {words(max(room - live, 0))} is free. "
            f"Of the allocated memory {words(live)} is allocated by PyTorch."
        )

    for index in range(accelerator.count):
        ledger.limit(place_of(f"{accelerator.kind}:{index}"), room, refuse)
