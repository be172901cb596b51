"""R1, R4: what a worker has no memory for fails by itself, and nothing else is lost."""

from __future__ import annotations

import gc
import re
import resource
from collections.abc import Callable, Iterator

import pytest
import torch

import mindtorch
from mindtorch.engine.remote.pipe import PipeExecutor
from mindtorch.engine.remote.wire import dumps

from ..executors import greeted, using

LAZY = "remote_accelerator:0"
MiB = 1 << 20
pytestmark = pytest.mark.usefixtures("nothing_pending")


@pytest.fixture
def small() -> Iterator[Callable[[int], None]]:
    """A worker in a process of its own, and what lets it have so many bytes more."""
    gc.collect()  # a worker takes over the values that are alive, and what earlier tests have left would be freed there
    with using(PipeExecutor()) as executor:
        assert torch.ones(2, device=LAZY).sum().item() == 2

        def size() -> int:
            with open(f"/proc/{executor.process}/statm") as file:
                return int(file.read().split()[0]) * resource.getpagesize()

        def limit(more: int) -> None:
            gc.collect()
            executor.sync()
            now = size()
            assert executor.process is not None
            resource.prlimit(executor.process, resource.RLIMIT_AS, (now + more, resource.RLIM_INFINITY))

        yield limit


@pytest.mark.parametrize("nbytes", [63 * MiB, 64 * MiB, 64 * MiB + 4, 200 * MiB])
def test_R4_an_upload_without_memory_fails_by_itself(small: Callable[[int], None], nbytes: int) -> None:
    """Asked for first, or not; what was there stays, and the same tensor crosses once there is memory."""
    x = torch.arange(10.0).to(LAZY)
    assert x.sum().item() == 45
    big = torch.ones(nbytes // 4)
    why = f"no memory for {nbytes:,} bytes on the worker: ."
    for _ in range(3):  # what earlier tests left on the worker is room for more, once it is freed there
        small(28 * MiB)  # messages of 8 MiB have to be read
        there = big.to(LAZY)
        with pytest.raises(mindtorch.MaterializationError) as raised:
            (there + 1).sum().item()
        if re.search(why, str(raised.value)):
            break
        del there
    assert re.search(why, str(raised.value))
    assert isinstance(raised.value, torch.OutOfMemoryError)
    assert (x * 2).tolist() == [2.0 * i for i in range(10)]
    small(4 << 30)
    again = big.to(LAZY)
    assert again.int().sum().item() == nbytes // 4 and (x + 1).sum().item() == 55


def test_R2_what_crosses_in_parts_has_all_of_them(small: Callable[[int], None]) -> None:
    data = torch.arange(17 * MiB + 3, dtype=torch.int32)
    assert torch.equal(data.to(LAZY).flip(0).cpu().flip(0), data)


def test_R4_more_than_the_machine_has_is_not_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux lends it, and ends the process that uses it."""
    monkeypatch.setattr("mindtorch.engine.remote.results.available_memory", lambda: 99)
    worker = greeted()
    assert worker.answers(dumps([("reserve", 1, 100)])) == [(1, "99 bytes are free")]
    assert worker.answers(dumps([("reserve", 2, 99), ("fill", 1, 0, b"ab"), ("fill", 2, 97, b"cd")])) == [None] * 3
    assert worker.answers(dumps([("storage", 1), ("storage", 2)]))[0] == ("failed", 1)
    assert worker.answers(dumps([("storage", 2)]))[0][1][97:] == b"cd"
