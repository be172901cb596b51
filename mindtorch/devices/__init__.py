"""What a device is called, and which names stand for none that has data."""

from .names import device, get_default_device, set_default_device

__all__ = ["device", "get_default_device", "set_default_device"]
