"""A generator per NPU, seeded by ``torch.manual_seed`` like every device's (SPEC L7).

Draws are made by torch's CPU generator with the state of the device's swapped in, so a seed gives the CPU's numbers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mindtorch._ext import pool

from .library import device_index

if TYPE_CHECKING:
    import torch

__all__ = [
    "drawing", "generator", "get_rng_state", "get_rng_state_all", "initial_seed", "manual_seed", "manual_seed_all",
    "seed", "seed_all", "set_rng_state", "set_rng_state_all",
]  # fmt: skip

_generators: dict[int, torch.Generator] = {}
_seed: int | None = None  # of devices that were not used yet
_lock = threading.RLock()
# Workers seed their generators: no other thread may hold the lock at the fork, and keep it for good.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def _generator(index: int) -> torch.Generator:
    import torch  # not before it must be: `genie devices` asks this package, too

    with _lock:
        if index not in _generators:
            _generators[index] = torch.Generator()
            if _seed is not None:
                _generators[index].manual_seed(_seed)
        return _generators[index]


@contextmanager
def drawing(index: int) -> Iterator[None]:
    """Torch's default generator goes on from where that of ``npu:index`` stands, and back."""
    import torch

    with _lock:
        default, own = torch.default_generator, _generator(index)
        outside = default.get_state()
        default.set_state(own.get_state())
        try:
            yield
        finally:
            own.set_state(default.get_state())
            default.set_state(outside)


def generator(device: Any = None) -> torch.Generator:
    """The generator of ``device`` (None: the thread's current one)."""
    return _generator(pool.check_index(device_index(device)))


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    with _lock:
        generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator alike, those that will be used later included. Needs no device."""
    global _seed
    with _lock:
        _seed = int(seed)
        for each in _generators.values():
            each.manual_seed(_seed)


def seed() -> None:
    """Seed the current device's generator with a random number."""
    with _lock:
        generator().seed()


def seed_all() -> None:
    """Seed every device's generator with one random number."""
    import torch

    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """What the current device's generator was seeded with."""
    return generator().initial_seed()


def get_rng_state(device: Any = "npu") -> torch.Tensor:
    """The state of a device's generator, a ByteTensor on the CPU."""
    return generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(pool.device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = "npu") -> None:
    """Put back what `get_rng_state` gave."""
    with _lock:
        generator(device).set_state(new_state)


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
