"""Whose a device is, and so what becomes of a tensor there: what all that are told a device ask first (SPEC D5, C4).

`_ext/hooks.pyx` asks the same table about what torch's functions are told. Which of the devices of its kind it is
(``place_of``, ``index_of``): `lazy_device.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .._ext import hooks as _hooks
from .._ext.hooks import type_of
from . import mode

__all__ = ["BY_TYPE", "ESTIMATED", "META", "NPU", "RECORDED", "TORCHS", "Place", "take", "type_of", "where"]


class Place(NamedTuple):
    """A kind of device. has_data: its tensors hold values. records: calls on them are recorded."""

    kind: str
    has_data: bool
    records: bool

    @property
    def ours(self) -> bool:
        """Is it no device of torch's own?"""
        return self.records or self is NPU


RECORDED = Place("remote_accelerator", has_data=True, records=True)
#: Any device while an estimate is under way.
ESTIMATED = Place("estimated", has_data=False, records=True)
#: An NPU that we drive: calls run at once.
NPU = Place("npu", has_data=True, records=False)
#: Torch's own; where a file calls this package ``torch``, what is made there is recorded (`mindtorch.patch.namespace`).
META = Place("meta", has_data=False, records=False)
TORCHS = Place("torch", has_data=True, records=False)
#: By a device's type. All others are torch's.
BY_TYPE = {"remote_accelerator": RECORDED, "npu": NPU, "meta": META}


def where(device: Any) -> Place:
    """The place of a device: a string, torch.device, mindtorch.device. Of what is none, as None is: torch's."""
    return ESTIMATED if mode.now.estimate is not None else BY_TYPE.get(type_of(device), TORCHS)


def take(kind: str, place: Place | None) -> Place | None:
    """Devices of this type are this place from now on; None: torch's. Returns which they were."""
    before = BY_TYPE.get(kind)
    if place is None:
        BY_TYPE.pop(kind, None)
    else:
        BY_TYPE[kind] = place
    _hooks.take_types(frozenset(name for name, place in BY_TYPE.items() if place.ours))
    return before


take("meta", META)  # tells the hooks
