"""What the tests of `mindtorch.cache` share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import mindtorch

LAZY = "remote_accelerator:0"


@pytest.fixture
def nothing_counted() -> None:
    """Nothing is pending, and counts begin at 0."""
    mindtorch.flush("test")
    mindtorch.reset_stats()


def counts() -> tuple[int, int]:
    """Hits, misses."""
    found = mindtorch.stats()
    return found["cache_hits"], found["cache_misses"]


def again(first: Callable[[], torch.Tensor], second: Callable[[], torch.Tensor]) -> bool:
    """Are the values of `second` found, once `first` has run? Whatever is said, they are eager's."""
    with mindtorch.cache():
        first().cpu()
        before = counts()[0]
        second().cpu()
        return counts()[0] > before


def up(*numbers: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype).to(LAZY)
