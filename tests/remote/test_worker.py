"""R2, R4: what a worker says of storages: where there is memory for them, where there is none, where they are gone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch

import mindtorch
from mindtorch.engine.remote import held_storages as module
from mindtorch.engine.remote.loopback import LoopbackExecutor
from mindtorch.engine.remote.wire import WireError
from mindtorch.engine.remote.worker import Worker


@pytest.fixture
def worker() -> Worker:
    return Worker(parcels={})


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called on, no storage gets memory."""

    def none(*_given: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    def now() -> None:
        monkeypatch.setattr(module, "on_device", none)
        monkeypatch.setattr(module, "reserved", none)

    return now


def test_R4_what_there_is_no_memory_for_has_failed_and_all_else_stays(worker: Worker, full: Callable[[], None]) -> None:
    assert worker.upload(1, b"abcd") is None and worker.reserve(2, 4) is None
    assert worker.fill(2, 1, b"xy") is None
    full()
    assert worker.upload(3, b"abcd") == (1, "no room") and worker.reserve(4, 4) == (2, "no room")
    assert worker.fill(4, 0, b"xy") is None and worker.copy(5, 3) is None
    assert [worker.has(number) for number in range(1, 7)] == [True, True, True, True, True, False]
    assert worker.storage(1) == ("bytes", b"abcd")
    assert [worker.storage(number) for number in (3, 4, 5)] == [("failed", 1), ("failed", 2), ("failed", 1)]
    kind, data = worker.storage(2)
    assert (kind, data[1:3]) == ("bytes", b"xy")
    assert worker.small([1, 3, 6, 1]) == [b"abcd", None, None, b"abcd"]
    worker.free([1, 3, 9])
    assert worker.small([1, 3]) == [None, None] and not worker.has(3)
    for ask in (lambda: worker.storage(1), lambda: worker.copy(7, 1), lambda: worker.write(1, b"")):
        with pytest.raises(WireError, match="expected the number of a storage, got 1"):
            ask()


def test_R4_what_another_worker_gave_comes_whole_or_has_failed(worker: Worker, full: Callable[[], None]) -> None:
    other = Worker(parcels=worker._parcels)
    worker.upload(1, b"abcd")
    for ticket in (10, 11, 12, 14):
        worker.give(1, ticket)
    assert other.take(5, 4, 10) is None and other.storage(5) == ("bytes", b"abcd")
    assert other.take(6, 5, 11) == (1, 0)  # fewer bytes
    assert other.take(6, 3, 12) == (2, 0)  # more
    assert other.take(7, 4, 10) == (3, 0)  # it was taken
    assert other.storage(7) == ("failed", 3)
    full()
    assert worker.upload(2, b"ef") == (1, "no room")
    worker.give(2, 13)
    assert other.take(8, 2, 13) == (4, 1)  # what failed there
    assert other.take(9, 4, 14) == (5, "no room")
    assert worker._parcels == {}


def test_R3_a_storage_is_written_as_a_whole(worker: Worker) -> None:
    worker.upload(1, b"abcd")
    worker.copy(2, 1)
    worker.write(1, b"efgh")
    assert (worker.storage(1), worker.storage(2)) == (("bytes", b"efgh"), ("bytes", b"abcd"))
    for data in (b"abc", b"abcde"):
        with pytest.raises(WireError, match=f"expected 4 bytes for storage 1, got {len(data)}"):
            worker.write(1, data)


@pytest.mark.parametrize(("sizes", "strides", "offset", "fits"), [
    ((4,), (1,), 0, True), ((5,), (1,), 0, False), ((3,), (1,), 1, True), ((4,), (1,), 1, False),
    ((2, 2), (2, 1), 0, True), ((2,), (3,), 0, True), ((2,), (4,), 0, False), ((0,), (1,), 9, True),
    ((), (), 3, True), ((), (), 4, False), ((4,), (-1,), 0, False), ((-1,), (1,), 0, False), ((1,), (1,), -1, False),
])  # fmt: skip
def test_R3_a_tensor_is_within_its_storage(
    sizes: tuple[int, ...], strides: tuple[int, ...], offset: int, fits: bool, worker: Worker
) -> None:
    worker.upload(1, torch.arange(4.0).numpy().tobytes())
    described = (1, torch.float32, sizes, strides, offset, 0)
    if fits:
        expected = torch.arange(4.0).as_strided(sizes, strides, offset) if 0 not in sizes else torch.empty(sizes)
        assert torch.equal(worker._tensor(described), expected)
    else:
        with pytest.raises(WireError, match="expected a tensor within the 16 bytes of storage 1"):
            worker._tensor(described)


def test_R3_after_a_message_that_was_refused_comes_none(worker: Worker) -> None:
    with pytest.raises(WireError):
        worker.handle(b"nothing")
    with pytest.raises(WireError, match="expected no message after one that was refused"):
        worker.handle(b"")


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("name", ["_ran", "call", "fetch", "small", "storage"])
def test_R4_each_kind_of_request_may_find_no_memory_and_the_session_goes_on(
    name: str, timed: bool, loopback: LoopbackExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the worker answers then is an answer to what was asked: no session ends with it."""
    lazy = "remote_accelerator:0"
    x, written = torch.arange(100_000.0).to(lazy), torch.zeros(3).to(lazy)
    assert x.sum().item() > 0 and written.sum().item() == 0
    asked: list[str] = []

    def none(*_given: object) -> object:
        asked.append(name)
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Worker, name, none)
        with contextlib.ExitStack() as watched:
            if timed:
                watched.enter_context(mindtorch.register_segment_hook(lambda _segment: None))
            written.add_(1)
            reads = (lambda: (x + 1).sum().item(), x.unique, x.cpu, x[9::2].cpu, x.untyped_storage, written.tolist)
            for read in reads:
                with contextlib.suppress(torch.OutOfMemoryError, MemoryError):  # the program may calculate it itself
                    read()
    assert asked
    assert (x + 1).sum().item() == torch.arange(1.0, 100_001).sum().item()
    assert torch.equal(x.cpu(), torch.arange(100_000.0))
    assert (torch.zeros(3).to(lazy) + 1).tolist() == [1] * 3
