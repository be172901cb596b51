"""Seeds and generators of the NPUs. Whoever draws numbers registers where the generators are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mindtorch._ext import pool

from .library import device_index

if TYPE_CHECKING:
    import torch

__all__ = [
    "generator", "get_rng_state", "get_rng_state_all", "initial_seed", "manual_seed", "manual_seed_all",
    "register_generators", "seed", "seed_all", "set_rng_state", "set_rng_state_all",
]  # fmt: skip

_provider: Callable[[int], torch.Generator] | None = None
_own: dict[int, torch.Generator] = {}


def register_generators(provider: Callable[[int], torch.Generator]) -> None:
    """``provider(index)`` is the generator of that device from now on."""
    global _provider
    _provider = provider


def generator(device: Any = None) -> torch.Generator:
    """The generator of ``device`` (None: the thread's current one)."""
    index = pool.check_index(device_index(device))
    if _provider is not None:
        return _provider(index)
    import torch

    return _own.setdefault(index, torch.Generator())


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator alike."""
    for index in range(pool.device_count()):
        generator(index).manual_seed(int(seed))


def seed() -> None:
    """Seed the current device's generator with a random number."""
    generator().seed()


def seed_all() -> None:
    """Seed every device's generator with one random number."""
    generator(0).seed()
    manual_seed_all(generator(0).initial_seed())


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
    generator(device).set_state(new_state)


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
