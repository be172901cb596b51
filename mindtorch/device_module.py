"""``torch.remote_accelerator``: what torch asks of a device's module (SPEC L1)."""

from __future__ import annotations

import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import creation, tensors

__all__ = ["DeviceModule"]
_current = threading.local()  # .index: what `with torch.remote_accelerator.device(i):` chose


class DeviceModule(types.ModuleType):
    """``torch.remote_accelerator``: what torch asks of a device module. Unavailable to torch.accelerator on purpose:
    pinning, streams and default-device choices must stay as they are without us."""

    def is_available(self) -> bool:
        return False

    def is_initialized(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0  # of what torch.accelerator could use

    def current_device(self) -> int:
        return getattr(_current, "index", 0)

    def set_device(self, device: Any) -> None:
        """Which device the functions below mean when they are not told, in this thread."""
        _current.index = self._index(device)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def manual_seed_all(self, seed: int) -> None:
        """Nothing here: mindtorch's own torch.manual_seed does it, also where another backend owns the slot."""

    def manual_seed(self, seed: int) -> None:
        """Seed the current device's generator; torch.manual_seed seeds those of all."""
        creation.manual_seed(seed, self.current_device())

    def _is_in_bad_fork(self) -> bool:
        return False

    _initialized = True  # torch.utils.checkpoint then keeps the generator's state for the recomputation

    @contextmanager
    def device(self, index: Any) -> Iterator[None]:
        """Which generator the functions below mean when they are not told, in this thread."""
        previous = self.current_device()
        _current.index = self._index(index)
        try:
            yield
        finally:
            _current.index = previous

    def _index(self, device: Any) -> int:
        if device is None:
            return self.current_device()
        return device if isinstance(device, int) else tensors.index_of(device)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """State of a device's generator; runs its pending draws, since they come before."""
        index = self._index(device)
        tensors.materialize([], "get_rng_state", generator=index)
        with tensors.lock, tensors.executor().rng(index):
            return _generator().get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        index = self._index(device)
        tensors.materialize([], "set_rng_state", generator=index)
        with tensors.lock, tensors.executor().rng(index):
            _generator().set_state(state)

    def synchronize(self, device: Any = None) -> None:
        tensors.flush("synchronize")
        tensors.executor().sync()


def _generator() -> torch.Generator:
    device = tensors.executor().device
    return torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator
