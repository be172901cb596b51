"""N2-N4 under load: many threads, devices and streams at once. Values right, nothing left, no deadlock.

``pytest tests/npu/test_load.py --npu-load full`` is 64 threads with 1,000 operations each. The test library checks,
with a clock for each stream, that whatever touches the same memory is ordered, however the threads happen to run.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from device_memory import get, put

from mindtorch._ext import blocks

STREAMS = 32  # of all devices, shared by all threads: their segments are more than there is where memory is short
SIZES = [0, 1, 100, 5000, 100_000, 600_000, (1 << 20) + 1, 3 << 20]


class Held:
    """A block all of whose bytes have the value, once ``event`` is over."""

    def __init__(self, block: blocks.Block, value: int, event: Any) -> None:
        self.block, self.value, self.event = block, value, event


class Worker:
    """One thread's operations. Its blocks are its own; devices and streams are everybody's."""

    def __init__(self, npu: Any, streams: list[list[Any]], seed: int, count: int) -> None:
        self.npu, self.streams, self.count = npu, streams, count
        self.random = random.Random(seed)
        self.held: list[Held] = []

    def stream(self, device: int | None = None) -> Any:
        return self.random.choice(self.streams[self.random.randrange(len(self.streams)) if device is None else device])

    def fresh(self) -> None:
        """A new block, filled on the device."""
        with self.stream() as stream:
            block = blocks.allocate(stream.device_index, self.random.choice(SIZES))
            value = self.random.randrange(256)
            blocks.fill(block, 0, value, block.nbytes)
            self.held.append(Held(block, value, stream.record_event()))

    def sent(self) -> None:
        """A new block, filled from the host."""
        with self.stream() as stream:
            block = blocks.allocate(stream.device_index, self.random.choice(SIZES))
            value = self.random.randrange(256)
            put(block, bytes([value]) * block.nbytes)
            self.held.append(Held(block, value, stream.record_event()))

    def pinned(self) -> None:
        """A new block, filled from pinned memory that dies at once."""
        with self.stream() as stream:
            block = blocks.allocate(stream.device_index, self.random.choice(SIZES))
            value = self.random.randrange(256)
            memory = blocks.Pinned(block.nbytes)
            memoryview(memory)[:] = bytes([value]) * block.nbytes
            blocks.copy_in(block, 0, memory.address, block.nbytes, wait=False)
            self.held.append(Held(block, value, stream.record_event()))

    def copied(self) -> None:
        """A copy on any device, made on any streams of the two."""
        one = self.random.choice(self.held)
        with self.stream(one.block.device) as source, self.stream() as target:
            if target.device_index == source.device_index:
                source = target
            source.wait_event(one.event)
            block = blocks.allocate(target.device_index, one.block.nbytes)
            copy = blocks.copy_within if source is target and self.random.random() < 0.5 else blocks.copy_across
            copy(block, 0, one.block, 0, block.nbytes)
            one.event = source.record_event()
            self.held.append(Held(block, one.value, target.record_event()))

    def written(self) -> None:
        """Other values, on another stream."""
        one = self.random.choice(self.held)
        with self.stream(one.block.device) as stream:
            one.event.wait()
            one.value = self.random.randrange(256)
            blocks.fill(one.block, 0, one.value, one.block.nbytes)
            one.event = stream.record_event()

    def read(self) -> None:
        one = self.random.choice(self.held)
        with self.stream(one.block.device) as stream:
            stream.wait_event(one.event)
            size = min(one.block.nbytes, 5000)
            offset = self.random.randrange(one.block.nbytes - size + 1)
            got = get(one.block, offset, size)
            assert got == bytes([one.value]) * size, (one.value, set(got))

    def dropped(self) -> None:
        self.held.pop(self.random.randrange(len(self.held)))

    def asked(self) -> None:
        """What needs no order: waits, questions, settings of the thread."""
        stream = self.stream()
        device = stream.device_index
        with self.npu.device(device), stream:
            assert self.npu.current_device() == device and self.npu.current_stream() == stream
            choice = self.random.randrange(6)
            if choice == 0:
                stream.synchronize()
            elif choice == 1:
                stream.query()
                self.npu.memory_stats()
            elif choice == 2:
                event = self.npu.Event(enable_timing=True)
                event.record()
                event.query()
            elif choice == 3:
                stream.wait_stream(self.stream())
            elif choice == 4 and self.held:
                one = self.random.choice(self.held)
                one.block.record_stream(self.stream(one.block.device))
            elif choice == 5 and self.random.random() < 0.1:
                self.npu.empty_cache(device)

    def run(self) -> None:
        some: list[Callable[[], None]] = [self.fresh, self.sent, self.pinned, self.asked]
        rest = [self.copied, self.copied, self.written, self.read, self.read, self.dropped, self.dropped, self.asked]
        for _ in range(self.count):
            self.random.choice(some + rest if self.held else some)()
            if len(self.held) > 6:
                self.held.pop(0)
        self.held.clear()


@pytest.mark.parametrize("memory", ["enough", "short"])
def test_N2_many_threads_devices_and_streams(npu, library, pytestconfig, memory):
    """``short``: so little is left on each device that the allocator has to give back and borrow all the time."""
    threads, count = (64, 1000) if pytestconfig.getoption("--npu-load") == "full" else (24, 80)
    devices = range(min(npu.device_count(), 4))
    streams = [[npu.Stream(device, -(i % 2)) for i in range(STREAMS // len(devices))] for device in devices]
    npu.empty_cache()
    room = 32 + 8 * threads // len(devices) << 20
    taken = [blocks.allocate(device, npu.mem_get_info(device)[0] - room) for device in devices if memory == "short"]
    before = [npu.memory_stats(device) for device in devices]
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            Worker(npu, streams, seed, count).run()
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=run, args=(seed,), daemon=True) for seed in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(500)
        if thread.is_alive():
            faulthandler.dump_traceback(sys.__stderr__)
            pytest.fail("a thread hangs")
    if failures:
        raise failures[0]
    assert library.violations() == []
    for device in devices:
        npu.synchronize(device)
    npu.empty_cache()
    for device, was in zip(devices, before):
        now = npu.memory_stats(device)
        for name in ("allocation", "allocated_bytes", "requested_bytes", "active_bytes"):
            assert now[f"{name}.all.current"] == was[f"{name}.all.current"], (device, name)
        assert now["reserved_bytes.all.current"] <= was["reserved_bytes.all.current"]
        assert now["num_alloc_retries"] > was["num_alloc_retries"] or memory == "enough"
        assert now["num_ooms"] == was["num_ooms"]
    taken.clear()
    npu.empty_cache()
