"""R1, R4: what a worker has no memory for fails by itself, and nothing else is lost."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Iterator

import pytest
import torch

import mindtorch
from mindtorch.engine.execute import values
from mindtorch.engine.remote import set_aside
from mindtorch.engine.remote.pipe import PipeExecutor
from mindtorch.engine.remote.wire import WireError, dumps

from ..executors import greeted, using

LAZY = "remote_accelerator:0"
MiB = 1 << 20
FOR_MESSAGES = set_aside._NBYTES
pytestmark = pytest.mark.usefixtures("nothing_pending", "fresh_workers")  # the C library reads its settings at a start


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """A worker in a process of its own, and what lets it have so many bytes more.

    It takes over the values that are alive. Where they have been freed, the C library may keep their memory for others,
    and 64 MiB of addresses for each thread, which it gives back when it finds no more: here it is to do neither.
    """
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(64 << 10))
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    gc.collect()
    with using(PipeExecutor()) as executor:
        assert torch.ones(2, device=LAZY).sum().item() == 2

        def size() -> int:
            with open(f"/proc/{executor.process}/statm") as file:
                return int(file.read().split()[0]) * resource.getpagesize()

        def limit(more: int) -> None:
            gc.collect()
            assert executor.process is not None
            resource.prlimit(executor.process, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            executor.sync()  # now it holds what is set aside for messages, and nothing that has died here
            now = size()
            resource.prlimit(executor.process, resource.RLIMIT_AS, (now + more, resource.RLIM_INFINITY))

        yield limit


@pytest.mark.sample(2)
@pytest.mark.parametrize("nbytes", [63 * MiB, 64 * MiB, 64 * MiB + 4, 200 * MiB])
def test_R4_an_upload_without_memory_fails_by_itself(small: Callable[[int], None], nbytes: int) -> None:
    """Asked for first, or not; what was there stays, and the same tensor crosses once there is memory."""
    x = torch.arange(10.0).to(LAZY)
    assert x.sum().item() == 45
    big = torch.ones(nbytes // 4)
    small(nbytes - MiB)
    there = big.to(LAZY)
    with pytest.raises(torch.OutOfMemoryError, match=rf"no memory for {nbytes:,} bytes on the worker: ."):
        (there + 1).sum().item()
    assert (x * 2).tolist() == [2.0 * i for i in range(10)]
    small(nbytes + 128 * MiB)
    again = big.to(LAZY)
    assert again[-3:].tolist() == [1, 1, 1] and (x + 1).sum().item() == 55
    small(4 << 30)
    assert again.int().sum().item() == nbytes // 4


@pytest.mark.sample(1)
@pytest.mark.parametrize("nbytes", [4, 1 * MiB, 8 * MiB, 8 * MiB + 4])
def test_R4_a_message_is_read_where_there_is_no_memory_for_what_it_asks_for(
    small: Callable[[int], None], nbytes: int
) -> None:
    """In one part and in two. Each request fails by itself, at its line, and can be made again."""
    x = torch.arange(10.0).to(LAZY)
    assert x.sum().item() == 45
    big = torch.ones(nbytes // 4)
    small(-MiB)
    there = big.to(LAZY)
    with pytest.raises(torch.OutOfMemoryError, match=rf"no memory for {nbytes:,} bytes on the worker: ."):
        (there + 1).sum().item()
    with pytest.raises(torch.OutOfMemoryError, match=r"aten::mul.*test_no_memory\.py"):
        (x * 2).sum().item()
    assert x.tolist() == list(range(10)), "a small value is read"
    small(4 << 30)
    assert (big.to(LAZY) + 1).sum().item() == nbytes // 2 and (x * 2).sum().item() == 90


@pytest.mark.sample(1)
@pytest.mark.parametrize("length", [1, 300])
def test_R4_a_plan_is_read_where_there_is_no_memory_to_run_it(small: Callable[[int], None], length: int) -> None:
    x = torch.arange(10.0).to(LAZY)
    written = torch.zeros(10).to(LAZY)
    assert x.sum().item() == 45 and written.sum().item() == 0

    def run() -> torch.Tensor:
        y = x
        for k in range(length):
            y = (y + k, y - k, y * 1, y / 1, y.neg().neg())[k % 5]
        return y

    expected = sum(range(10)) + 10 * sum((k if k % 5 == 0 else -k if k % 5 == 1 else 0) for k in range(length))
    small(-MiB)
    with pytest.raises(torch.OutOfMemoryError, match="for messages"):
        run().sum().item()
    with pytest.raises(torch.OutOfMemoryError, match="for messages"):
        written.add_(1).sum().item()
    assert written.tolist() == [0] * 10, "the program has been told"
    small(4 << 30)
    assert run().sum().item() == expected
    assert (x.repeat_interleave(x.long()[:3].sum().item())).sum().item() == 135


def test_R4_a_value_is_read_once_there_is_memory_to_send_it(small: Callable[[int], None]) -> None:
    x, y = torch.ones(25 * MiB, device=LAZY), torch.arange(10.0).to(LAZY)
    x += 1
    assert y.sum().item() == 45 and x[5].item() == 2
    small(FOR_MESSAGES + 20 * MiB)
    with pytest.raises(torch.OutOfMemoryError, match="no memory on the worker to send a value"):
        x.cpu()
    with pytest.raises(torch.OutOfMemoryError, match="no memory on the worker to send a value"):
        x.untyped_storage()
    assert (y * 2).sum().item() == 90
    small(4 << 30)
    assert x.cpu().sum().item() == 50 * MiB


def test_R4_a_value_is_read_once_the_program_has_memory_for_it(small: Callable[[int], None]) -> None:
    """The reply stays where it is until then."""
    x = torch.ones(50 * MiB, device=LAZY)
    assert x[5].item() == 1
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 30 * MiB, resource.RLIM_INFINITY))
    try:
        with pytest.raises(torch.OutOfMemoryError, match="no memory in the program"):
            x.cpu()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert x.cpu().sum().item() == 50 * MiB and (x[:3] + 1).tolist() == [2, 2, 2]


def test_R4_whatever_there_is_too_little_memory_for_the_session_goes_on(small: Callable[[int], None]) -> None:
    """At sizes around what is set aside for messages: the right numbers, or an error of memory."""

    def program(device: str) -> list[float]:
        x = torch.linspace(0, 1, 700_000).to(device)
        for k in range(6):
            x = x * 2 + torch.full((700_000,), float(k), device=device)
        x[::2] = 1
        return [x.sum().item(), x[77].item(), *x[::100_000].tolist()]

    expected, failed = program("cpu"), 0
    for more in range(-6, 40, 5):
        small(more * MiB)
        try:
            assert program(LAZY) == expected
        except torch.OutOfMemoryError:
            failed += 1
    assert 0 < failed < 10
    small(4 << 30)
    assert program(LAZY) == expected


@pytest.mark.parametrize("length", [9_000, 30_000])
def test_R4_a_plan_of_very_many_operations_stays_pending_until_there_is_memory_for_it(
    small: Callable[[int], None], length: int
) -> None:
    """It is larger than what is set aside for messages: it ended the session. The smaller one just fails."""
    x = torch.arange(10.0).to(LAZY)
    assert x.sum().item() == 45

    def run() -> torch.Tensor:
        y = x
        for k in range(length):
            y = y + 1 if k % 2 else y * 1
        return y

    small(-MiB)
    y = run()
    why = "no memory for a plan of 30,001 operations on the worker" if length == 30_000 else "for messages"
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match=why):
            y.sum().item()
    small(4 << 30)
    assert (y if length == 30_000 else run()).sum().item() == 45 + 5 * length


@pytest.mark.parametrize("more", [FOR_MESSAGES + 20 * MiB, -MiB])
def test_R4_other_contents_for_a_large_value_arrive_where_there_is_no_memory_for_a_message_with_them(
    small: Callable[[int], None], more: int
) -> None:
    """As an operator of the program's own writes them: they cross in parts. One message with them ended the session."""
    x = torch.ones(25 * MiB, device=LAZY)
    assert x[5].item() == 1
    (value,) = values.materialize([x], "test")
    worker = mindtorch.get_executor()
    assert isinstance(worker, PipeExecutor)
    data = torch.arange(25 * MiB, dtype=torch.float32).numpy().tobytes()
    small(more)
    worker.write(value, data)
    worker.finish()
    small(4 << 30)
    assert x.cpu().equal(torch.arange(25 * MiB, dtype=torch.float32))


def test_R3_a_part_is_within_its_storage_also_where_a_call_has_made_that() -> None:
    worker = greeted()
    parts = [("fill", 1, 2, b"xy"), ("fill", 1, 4, b""), ("storage", 1)]
    assert worker.answers(dumps([("upload", 1, b"abcd"), *parts])) == [None, None, None, ("bytes", b"abxy")]
    worker._checks.made(1)
    with pytest.raises(WireError, match="a part of the 4 bytes of storage 1, got 2 from 3"):
        worker.answers(dumps([("fill", 1, 3, b"xy")]))


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
