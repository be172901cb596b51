"""Executors behind messages, for one test at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mindtorch
from mindtorch.engine.remote.client import RemoteExecutor
from mindtorch.engine.remote.loopback import LoopbackExecutor
from mindtorch.engine.remote.pipe import PipeExecutor


@pytest.fixture
def loopback() -> Iterator[LoopbackExecutor]:
    executor = LoopbackExecutor()
    previous = mindtorch.set_executor(executor)
    yield executor
    mindtorch.set_executor(previous)


@pytest.fixture
def pipe() -> Iterator[PipeExecutor]:
    """With a process of its own, which takes seconds to begin."""
    executor = PipeExecutor()
    previous = mindtorch.set_executor(executor)
    yield executor
    mindtorch.set_executor(previous)


@pytest.fixture(scope="session")
def shared_pipe() -> PipeExecutor:
    return PipeExecutor()


@pytest.fixture(params=["loopback", "pipe"])
def elsewhere(request: pytest.FixtureRequest, shared_pipe: PipeExecutor) -> Iterator[RemoteExecutor]:
    executor = LoopbackExecutor() if request.param == "loopback" else shared_pipe
    previous = mindtorch.set_executor(executor)
    yield executor
    mindtorch.set_executor(previous)
