"""One cluster for all of these tests: it takes seconds to begin."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import mindtorch
from mindtorch.cluster.broker_client import Link
from mindtorch.cluster.ray_executor import RayExecutor

from ..executors import using


@pytest.fixture(scope="session")
def link() -> Iterator[Link]:
    made = Link(None, cpus=os.cpu_count() or 1, gpus=0)
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared_actor(link: Link) -> RayExecutor:
    return RayExecutor(link)


@pytest.fixture
def ray_executor(shared_actor: RayExecutor) -> Iterator[RayExecutor]:
    """The one that most tests share."""
    with using(shared_actor):
        yield shared_actor


@pytest.fixture
def own_actor(link: Link) -> Iterator[RayExecutor]:
    """One with a process of its own, which may be ended."""
    previous = mindtorch.set_executor(made := RayExecutor(link))
    try:
        yield made
    finally:
        mindtorch.set_executor(previous)
        made.close()
