"""What the tests of calls without Python share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mindtorch
from mindtorch._ext import replay
from mindtorch.base import torch_facts

CAN = pytest.mark.skipif(not torch_facts.native_calls_made(), reason="no calls without Python on this machine")


@pytest.fixture
def soon() -> Iterator[None]:
    """Calls that have run twice are made without Python."""
    before = replay.native_after(1)
    yield
    replay.native_after(before)


def made() -> int:
    """Calls without Python so far."""
    return int(mindtorch.stats()["passes"].get("native calls", 0))
