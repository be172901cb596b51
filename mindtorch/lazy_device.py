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


def is_ours(device: Any) -> bool:
    """True if ``device`` (string, torch.device, mindtorch.device) names a remote_accelerator."""
    if isinstance(device, str):
        return device.startswith(DEVICE_TYPE)
    return getattr(device, "type", None) == DEVICE_TYPE


def index_of(device: Any) -> int:
    """The index a device names; a bare ``remote_accelerator`` is the current one, 0."""
    return mindtorch_device(device).index or 0
