"""The lazy device's name: ``remote_accelerator[:i]`` as a string, a torch.device or a mindtorch.device (SPEC D5)."""

from __future__ import annotations

from typing import Any

import torch

from .devices import device as mindtorch_device

DEVICE_TYPE = "remote_accelerator"
_torch_devices: dict[int, Any] = {}


def torch_device(index: int) -> Any:
    """The device object of remote_accelerator ``index``: torch's own where torch can express it."""
    device = _torch_devices.get(index)
    if device is None:
        try:
            device = torch.device(DEVICE_TYPE, index)
        except RuntimeError:
            return mindtorch_device(DEVICE_TYPE, index)
        _torch_devices[index] = device
    return device


#: Devices that hold no data: place -1 is the first. A tensor's place is a small integer in the engine (MetaS.device).
DATALESS: list[Any] = [torch.device("meta")]


def device_at(place: int) -> Any:
    """The device object of a place: a remote_accelerator's index, or negative, one that holds no data."""
    return torch_device(place) if place >= 0 else DATALESS[-1 - place]


def place_of(device: Any) -> int:
    """The place of a device of ours or of a ``meta[:i]``."""
    spec = mindtorch_device(device)
    if spec.type == DEVICE_TYPE:
        return spec.index or 0
    if spec.type != "meta":
        raise ValueError(f"[place_of] expected a {DEVICE_TYPE} or meta device, got {device}")
    wanted = torch.device("meta") if spec.index is None else torch.device("meta", spec.index)
    if wanted not in DATALESS:
        DATALESS.append(wanted)
    return -1 - DATALESS.index(wanted)


def is_meta(device: Any) -> bool:
    """True if ``device`` (string, torch.device, mindtorch.device) names ``meta[:i]``."""
    return (device.split(":")[0] if isinstance(device, str) else getattr(device, "type", None)) == "meta"


def is_ours(device: Any) -> bool:
    """True if ``device`` (string, torch.device, mindtorch.device) names a remote_accelerator."""
    if isinstance(device, str):
        return device.startswith(DEVICE_TYPE)
    return getattr(device, "type", None) == DEVICE_TYPE


def index_of(device: Any) -> int:
    """The index a device names; a bare ``remote_accelerator`` is the current one, 0."""
    return mindtorch_device(device).index or 0
