"""An executor behind messages, for one test at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mindtorch
from mindtorch.engine.remote.loopback import LoopbackExecutor


@pytest.fixture
def loopback() -> Iterator[LoopbackExecutor]:
    executor = LoopbackExecutor()
    previous = mindtorch.set_executor(executor)
    yield executor
    mindtorch.set_executor(previous)
