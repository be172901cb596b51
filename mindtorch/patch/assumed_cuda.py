"""Functions that mean CUDA where no device is named, or that only know torch's own devices (SPEC N3).

Those are torch 2.12's; later releases ask which accelerator there is. `torch_facts.assumes_cuda` says which one is
installed, and only that one imports this.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .. import npu
from ..base.patching import Patch
from ..devices.places import NPU, where
from ..npu import moves as npu_moves

_torch_fork_rng = torch.random.fork_rng


def patches() -> Iterator[Patch]:
    """(owner, attribute, what stands in for it)."""
    yield torch.random, "fork_rng", _fork_rng
    for owner in (torch.storage._StorageBase, torch.storage.TypedStorage):
        yield owner, "pin_memory", _of_the_accelerator(owner.pin_memory, npu_moves.pins)
        yield owner, "is_pinned", _of_the_accelerator(owner.is_pinned, npu.is_the_accelerator)


@functools.wraps(_torch_fork_rng)
def _fork_rng(
    devices: Iterable[Any] | None = None,
    enabled: bool = True,
    _caller: str = "fork_rng",
    _devices_kw: str = "devices",
    device_type: str = "cuda",
) -> Any:
    if where(device_type) is NPU:
        return _fork_npus(devices, enabled)
    return _torch_fork_rng(devices, enabled, _caller, _devices_kw, device_type)


@contextlib.contextmanager
def _fork_npus(devices: Iterable[Any] | None, enabled: bool) -> Iterator[None]:
    """The generators of the CPU and of the NPUs are afterwards what they were before: of all NPUs if none is given."""
    if not enabled:
        yield
        return
    chosen = range(npu.device_count()) if devices is None else list(devices)
    cpu, states = torch.get_rng_state(), [npu.get_rng_state(device) for device in chosen]
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        for device, state in zip(chosen, states, strict=True):
            npu.set_rng_state(state, device)


def _of_the_accelerator(original: Callable[..., Any], npus: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def asks(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(device is not None for device in (*args, *kwargs.values())):
            return original(self, *args, **kwargs)
        return original(self, None) if npus() else original(self)

    return asks
