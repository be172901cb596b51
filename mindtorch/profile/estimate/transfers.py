"""Copies between the host's memory and an accelerator's of an estimated program: told, and in no time of the estimate.

What they take depends on what no program shows: whether memory is pinned, the host's own copies, other devices on the
bus. What they take at least is known: their bytes at the rate of the bus, each way by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from mindtorch._ext import lazy as _core
from mindtorch._ext import ledger
from mindtorch.base.words import bytes_in_words, counted, seconds
from mindtorch.devices.lazy_device import device_at, place_of
from mindtorch.profile.cost.targets import Target

__all__ = ["Transfer", "begin", "made", "moves", "none", "said"]

_MUCH = 1 << 20  # bytes: fewer take microseconds


class Transfer(NamedTuple):
    """Where in the log of calls, bytes, and whether they go to the accelerator."""

    position: int
    nbytes: int
    there: bool


made: list[Transfer] = []


def begin() -> None:
    """Nothing has been moved so far."""
    made.clear()


class _Of(threading.local):
    """A thread: whether what it does transfers nothing."""

    none = False


_now = _Of()


@contextmanager
def none() -> Iterator[None]:
    """Within the block nothing is transferred: what is on the CPU here would be made on the device there."""
    before, _now.none = _now.none, True
    try:
        yield
    finally:
        _now.none = before


def moves(t: Any, place: int, position: int | None = None) -> None:
    """``t`` is about to get to a place, which `device_at` knows by that number; position: if no call does it."""
    if _now.none:
        return
    source, target = t.device.type, device_at(place).type
    if source != target and "cpu" in (source, target) and "meta" not in (source, target):
        position = ledger.position() if position is None else position
        made.append(Transfer(position, t.numel() * t.element_size(), source == "cpu"))


def saves(t: torch.Tensor, done: set[int]) -> None:
    """``t`` is about to be written to a file, which reads its storage once. done: those that the same call has read."""
    handle = _core.get_handle(t)
    if handle is not None and (root := _core.root_slot(handle)) not in done:
        done.add(root)
        moves(t, place_of(torch.device("cpu"), anywhere=True), max(ledger.position() - 1, 0))  # after the last call


def said(transfers: Sequence[Transfer], target: Target) -> str | None:
    """The report's sentence about them; None where they are few."""
    ways = [sum(each.nbytes for each in transfers if each.there is there) for there in (True, False)]
    if sum(ways) < _MUCH:
        return None
    number = counted(len(transfers), "transfer")
    they, takes = ("it", "takes") if len(transfers) == 1 else ("they", "take")
    text = f"no time in this report includes {number} between host and device ({bytes_in_words(sum(ways))})"
    if not target.host_bandwidth:
        return text
    return (
        f"{text}: {they} {takes} at least {seconds(max(ways) / target.host_bandwidth)} "
        f"({target.host_bandwidth / 1e9:.3g} GB/s each way), and several times as long from pageable memory"
    )
