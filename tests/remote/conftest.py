"""Executors behind messages, for one test at a time."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mindtorch.engine.remote import pipe as pipe_module
from mindtorch.engine.remote import speculation
from mindtorch.engine.remote.client import RemoteExecutor
from mindtorch.engine.remote.loopback import LoopbackExecutor
from mindtorch.engine.remote.pipe import PipeExecutor
from mindtorch.engine.remote.worker import Worker

from ..executors import using
from ..forked_workers import ForkedWorkers


@pytest.fixture(autouse=True, scope="module")
def workers_are_forks(request: pytest.FixtureRequest) -> Iterator[None]:
    if sys.platform != "linux":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipe_module, "subprocess", request.getfixturevalue("forked_workers"))
        yield


@pytest.fixture
def fresh_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They start as they do in a program: for what is about that."""
    monkeypatch.setattr(pipe_module, "subprocess", subprocess)


@pytest.fixture(scope="session")
def forked_workers(forked_after_torch: Any, tmp_path_factory: pytest.TempPathFactory) -> ForkedWorkers:
    return ForkedWorkers(forked_after_torch, tmp_path_factory.mktemp("workers"))


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


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait takes a second, however much comes with it: running ahead pays."""
    monkeypatch.setattr(speculation, "clock", itertools.count().__next__)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Requests that workers did, in order."""
    found: list[tuple] = []
    for name in ("run", "speculate", "undo"):
        does = getattr(Worker, name)

        def do(self: Worker, *given: Any, does: Any = does, name: str = name) -> Any:
            answer = does(self, *given)
            found.append((name, given, answer))
            return answer

        monkeypatch.setattr(Worker, name, do)
    return found
