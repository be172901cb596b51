"""Executors behind messages, for one test at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mindtorch.engine.remote.client import RemoteExecutor
from mindtorch.engine.remote.loopback import LoopbackExecutor
from mindtorch.engine.remote.pipe import PipeExecutor

from ..executors import using


@pytest.fixture
def loopback() -> Iterator[LoopbackExecutor]:
    with using(LoopbackExecutor()) as executor:
        yield executor


@pytest.fixture
def pipe() -> Iterator[PipeExecutor]:
    """With a process of its own, which takes seconds to begin."""
    with using(PipeExecutor()) as executor:
        yield executor


@pytest.fixture(scope="session")
def shared_pipe() -> PipeExecutor:
    return PipeExecutor()


@pytest.fixture(params=["loopback", "pipe"])
def elsewhere(request: pytest.FixtureRequest, shared_pipe: PipeExecutor) -> Iterator[RemoteExecutor]:
    with using(LoopbackExecutor() if request.param == "loopback" else shared_pipe) as executor:
        yield executor
