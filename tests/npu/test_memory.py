"""N2, N3: the caching allocator of each device."""

from __future__ import annotations

import gc
import subprocess
import textwrap
import threading
import time

import pytest
import torch
from device_memory import block_of, get

from mindtorch._ext import blocks

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def empty(npu):
    """Nothing is kept of what earlier tests had."""
    gc.collect()
    npu.empty_cache()
    return npu


# Allocation.


def test_N2_sizes_with_their_padding_are_rounded_to_512_bytes(empty):
    before, asked = empty.memory_allocated(0), empty.memory_stats(0)["requested_bytes.all.current"]
    held = [blocks.allocate(0, size) for size in (1, 480, 481, 512, 100_000)]
    assert [block.nbytes for block in held] == [1, 480, 481, 512, 100_000]
    assert empty.memory_allocated(0) - before == 512 + 512 + 1024 + 1024 + 100_352
    assert empty.memory_stats(0)["requested_bytes.all.current"] - asked == 1 + 480 + 481 + 512 + 100_000
    assert all(block.ptr % 512 == 0 for block in held) and len({block.ptr for block in held}) == 5
    held.clear()
    assert empty.memory_allocated(0) == before


@pytest.mark.parametrize(
    ("size", "segment"),
    [(1, 2 * MIB), (MIB - 32, 2 * MIB), (MIB, 20 * MIB), (10 * MIB - 544, 20 * MIB), (10 * MIB - 32, 10 * MIB),
     (10 * MIB, 12 * MIB), (33 * MIB + 1, 34 * MIB)],
)  # fmt: skip
def test_N2_segments(empty, size, segment):
    before = empty.memory_reserved(0)
    with empty.Stream(0):  # a stream that has nothing
        block = blocks.allocate(0, size)
    assert empty.memory_reserved(0) - before == segment
    del block
    assert empty.memory_reserved(0) - before == segment
    empty.empty_cache()
    assert empty.memory_reserved(0) == before


def test_N2_memory_is_used_again_split_and_merged(empty):
    with empty.Stream(0):
        first = blocks.allocate(0, 300 * KIB - 32)
        start = first.ptr
        second, third = blocks.allocate(0, 300 * KIB - 32), blocks.allocate(0, 300 * KIB - 32)
        assert [second.ptr - start, third.ptr - start] == [300 * KIB, 600 * KIB]
        del first
        assert blocks.allocate(0, 200 * KIB).ptr == start  # split, and given back at once
        del second
        whole = blocks.allocate(0, 600 * KIB - 32)  # the two as one
        assert whole.ptr == start
        reserved = empty.memory_reserved(0)
        del third, whole
        assert blocks.allocate(0, MIB - 32).ptr == start
        assert empty.memory_reserved(0) == reserved


def test_N2_the_best_fit_is_taken(empty):
    with empty.Stream(0):
        held = [blocks.allocate(0, size * KIB) for size in (100, 1, 40, 1, 60, 1)]
        places = [block.ptr for block in held]
        held[0] = held[2] = held[4] = None
        assert blocks.allocate(0, 50 * KIB).ptr == places[4]
        assert blocks.allocate(0, 40 * KIB).ptr == places[2]
        assert blocks.allocate(0, 61 * KIB).ptr == places[0]


def test_N2_no_bytes_need_no_memory(empty):
    before = empty.memory_allocated(0)
    block = blocks.allocate(0, 0)
    assert (block.ptr, block.nbytes, block.device) == (0, 0, 0) and empty.memory_allocated(0) == before
    blocks.copy_in(block, 0, 0, 0)
    blocks.copy_out(block, 0, 0, 0)
    blocks.fill(block, 0, 1, 0)
    blocks.copy_within(block, 0, block, 0, 0)
    blocks.used_by(block)
    block.record_stream(empty.Stream(0))
    with pytest.raises(ValueError, match="not negative, got -1"):
        blocks.allocate(0, -1)
    with pytest.raises(TypeError, match="made by allocate"):
        blocks.Block()


def test_N2_blocks_say_what_they_are(npu):
    with npu.Stream(0) as stream:
        block = blocks.allocate(0, 100)
    assert block.owner_stream == block.stream == stream
    assert repr(block) == f"<npu block of 100 bytes at {block.ptr:#x} on npu:0>"


def test_N3_each_device_has_its_own_memory(empty, devices):
    devices(2)
    before = [empty.memory_allocated(index) for index in (0, 1)]
    free = empty.mem_get_info(1)[0]
    with empty.Stream(1):
        block = blocks.allocate(1, 30 * MIB - 32)
    assert [empty.memory_allocated(index) - was for index, was in zip((0, 1), before)] == [0, 30 * MIB]
    assert empty.mem_get_info("npu:1") == (free - 30 * MIB, empty.mem_get_info(0)[1])
    with empty.device(1):
        assert empty.memory_allocated() == empty.memory_allocated(1)
    del block


# Streams and reuse.


def test_N2_memory_of_one_stream_is_not_handed_to_another(empty, library):
    one, two = empty.Stream(0), empty.Stream(0)
    library.hold(one.npu_stream)
    with one:
        block = blocks.allocate(0, 700 * KIB)
        blocks.fill(block, 0, 1, block.nbytes)
        place = block.ptr
        del block
    with two:
        other = blocks.allocate(0, 700 * KIB)
        assert other.ptr != place
    with one:
        assert blocks.allocate(0, 700 * KIB).ptr == place  # its own order is enough


def test_N2_what_another_stream_used_is_reused_behind_an_event(empty, library):
    owner, user = empty.Stream(0), empty.Stream(0)
    with owner:
        block = block_of(0, b"v" * 700 * KIB)
        owner.synchronize()
        place = block.ptr
    library.hold(user.npu_stream)
    with user:
        target = blocks.allocate(0, block.nbytes)
        blocks.copy_within(target, 0, block, 0, block.nbytes)  # notes its use itself
    del block
    with owner:
        other = blocks.allocate(0, 700 * KIB)
        assert other.ptr != place
        blocks.fill(other, 0, 1, other.nbytes)
        library.release()
        user.synchronize()
        again = blocks.allocate(0, 700 * KIB)
        assert again.ptr == place
    assert get(target) == b"v" * 700 * KIB


@pytest.mark.parametrize("how", ["record_stream", "used_by"])
def test_N2_record_stream(empty, library, how):
    owner, user = empty.Stream(0), empty.Stream(0)
    with owner:
        block = blocks.allocate(0, 700 * KIB - 32)
    place = block.ptr
    for _ in range(2):
        if how == "record_stream":
            block.record_stream(user)
        else:
            with user:
                blocks.used_by(block)
    library.hold(user.npu_stream)
    active = empty.memory_stats(0)["active_bytes.all.current"]
    allocated = empty.memory_allocated(0)
    del block  # the event that tells is recorded now
    assert empty.memory_allocated(0) == allocated - 700 * KIB
    assert empty.memory_stats(0)["active_bytes.all.current"] == active
    with owner:
        assert blocks.allocate(0, 700 * KIB).ptr != place
    library.release()
    user.synchronize()
    with owner:
        held = [blocks.allocate(0, 700 * KIB) for _ in range(2)]
        assert place in [each.ptr for each in held]
    assert library.violations() == []


def test_N2_record_stream_of_another_device_is_refused(npu, devices):
    devices(2)
    block = blocks.allocate(0, 10)
    with pytest.raises(RuntimeError, match="block on npu:0 cannot be used by a stream of npu:1"):
        block.record_stream(npu.Stream(1))


def test_N2_a_block_may_die_in_any_thread(empty):
    before = empty.memory_allocated(0)
    held = [blocks.allocate(0, 1000) for _ in range(1000)]
    lock = threading.Lock()

    def drop():
        while True:
            with lock:
                if not held:
                    return
                block = held.pop()
            del block

    threads = [threading.Thread(target=drop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert empty.memory_allocated(0) == before


# Out of memory.


def test_N2_what_is_cached_is_given_back_before_giving_up(empty):
    free, total = empty.mem_get_info(0)
    before = empty.memory_stats(0)
    half = total // 5 * 3 // MIB * MIB
    first = blocks.allocate(0, half)
    del first
    with empty.Stream(0):
        second = blocks.allocate(0, half)  # of another stream: only fits when the first one's segment is gone
    after = empty.memory_stats(0)
    assert after["num_alloc_retries"] == before["num_alloc_retries"] + 1
    assert after["num_ooms"] == before["num_ooms"]
    assert free > half and second.nbytes == half


def test_N2_out_of_memory_says_what_was_asked_and_what_there_is(in_npu_process):
    said = in_npu_process(
        """
        from mindtorch import npu
        from mindtorch._ext import blocks
        assert set(npu.memory_stats(1).values()) == {0}, "nothing was used yet"
        held = [blocks.allocate(1, (100 << 20) - 32), blocks.allocate(1, (5 << 20) - 32)]
        try:
            blocks.allocate(1, 1 << 30)
        except RuntimeError as error:
            print(error.detail)
        print(npu.memory_stats(1)["num_ooms"], blocks.allocate(1, 1 << 20).nbytes)
        """
    )
    assert said.splitlines() == [
        (
            "NPU out of memory. Tried to allocate 1.00 GiB (1073741824 bytes). npu:1 has a total capacity of 1.00 GiB "
            "of which 904.00 MiB is free. Of the memory reserved here, 120.00 MiB, 105.00 MiB is allocated and "
            "15.00 MiB is reserved but unallocated."
        ),
        "1 1048576",
    ]


def test_N2_another_streams_free_memory_is_used_before_giving_up(empty, library):
    """Segments that are partly in use cannot be given back; what is free in them serves, in the right order."""
    owner, taker = empty.Stream(0), empty.Stream(0)
    kept, sizes = [], []
    with owner:
        while True:  # every other piece of the device's memory stays in use
            try:
                piece, gap = blocks.allocate(0, 2 * MIB), blocks.allocate(0, 8 * MIB)
            except RuntimeError:
                break
            kept.append(piece)
            sizes.append(gap)
    library.stall(owner.npu_stream, 20)
    with owner:
        for gap in sizes:
            blocks.fill(gap, 0, 1, gap.nbytes)
    del gap
    sizes.clear()
    failures = empty.memory_stats(0)["num_ooms"]
    with taker:
        taken = [blocks.allocate(0, 8 * MIB) for _ in range(10)]
        for block in taken:
            blocks.fill(block, 0, 2, block.nbytes)
    assert empty.memory_stats(0)["num_ooms"] == failures
    taker.synchronize()
    assert {get(block, 0, 100) for block in taken} == {b"\2" * 100}
    taken.clear()
    kept.clear()
    owner.synchronize()
    empty.empty_cache()


@pytest.fixture
def scarce(empty, library):
    """npu:0 with room for one segment of 20 MiB; calls for its memory take 20 ms."""
    taken = blocks.allocate(0, empty.mem_get_info(0)[0] // (2 * MIB) * 2 * MIB - 22 * MIB)
    library.delay_memory(20)
    yield empty
    library.delay_memory(0)
    del taken
    empty.empty_cache()


def in_threads(count, job):
    """What `job` gives, or raises, in each of so many threads at once. The results live until all are there."""
    results = [None] * count
    begin = threading.Barrier(count)

    def run(index):
        begin.wait()
        try:
            results[index] = job(index)
        except RuntimeError as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_N2_what_another_thread_is_just_getting_is_not_missed(scarce):
    """Four threads that find room for one segment share it, whoever gets it, each on a stream of its own."""
    streams, before = [scarce.Stream(0) for _ in range(4)], scarce.memory_stats(0)

    def get_block(index):
        with streams[index]:
            return blocks.allocate(0, 2 * MIB)

    found = in_threads(4, get_block)
    assert [type(block) for block in found] == [blocks.Block] * 4, found
    after = scarce.memory_stats(0)
    assert after["num_ooms"] == before["num_ooms"] and after["segment.all.current"] == before["segment.all.current"] + 1
    del found


def test_N2_what_another_thread_is_just_giving_back_is_not_missed(scarce):
    """A segment of another size is being given back by `empty_cache`; what it held fits afterwards."""
    blocks.allocate(0, 12 * MIB)  # of its own size, free at once
    stream, before = scarce.Stream(0), scarce.memory_stats(0)

    def get_block(index):
        if index == 0:
            return scarce.empty_cache(0)
        time.sleep(0.005)  # by now it is no more in the list of free ones, and not yet the device's
        with stream:
            return blocks.allocate(0, 16 * MIB)

    nothing, block = in_threads(2, get_block)
    assert nothing is None and type(block) is blocks.Block, block
    assert scarce.memory_stats(0)["num_ooms"] == before["num_ooms"]
    del block


def test_N3_peaks(empty):
    empty.reset_peak_memory_stats(0)
    base = empty.memory_allocated(0)
    with empty.Stream(0):
        block = blocks.allocate(0, 30 * MIB - 32)
        reserved = empty.memory_reserved(0)
    del block
    empty.empty_cache(0)
    assert empty.memory_allocated(0) == base and empty.max_memory_allocated(0) == base + 30 * MIB
    assert empty.memory_reserved(0) == reserved - 30 * MIB and empty.max_memory_reserved(0) == reserved
    stats = empty.memory_stats(0)
    assert stats["allocated_bytes.all.peak"] == base + 30 * MIB
    assert stats["allocated_bytes.all.allocated"] - stats["allocated_bytes.all.freed"] == base
    empty.reset_peak_memory_stats(0)
    assert empty.max_memory_allocated(0) == base
    assert empty.max_memory_reserved(0) == empty.memory_reserved(0)


def test_N3_empty_cache_waits_for_what_is_queued(empty, library):
    stream = empty.Stream(0)
    library.stall(stream.npu_stream, 30)
    with stream:
        block = blocks.allocate(0, 30 * MIB)
        blocks.fill(block, 0, 1, block.nbytes)
        del block
    empty.empty_cache()  # the library remembers what is freed while queued work uses it
    assert library.violations() == []


# Threads that are interrupted at the worst moments.

PAUSES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>
int pthread_mutex_unlock(pthread_mutex_t *mutex) {
    static int (*next)(pthread_mutex_t *);
    Dl_info from;
    if (!next) next = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    int code = next(mutex);
    if (dladdr(__builtin_return_address(0), &from) && strstr(from.dli_fname, "/allocator.")) usleep(100);
    return code;
}
"""


def test_N2_neighbours_that_become_free_while_a_piece_is_taken_are_merged(in_npu_process, tmp_path):
    """Every segment can be given back in the end, also where threads pause after any lock they let go."""
    source, pauses = tmp_path / "pauses.c", tmp_path / "pauses.so"
    source.write_text(PAUSES)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", pauses, source, "-ldl"], check=True)
    said = in_npu_process(
        """
        import random, threading
        from mindtorch import npu
        from mindtorch._ext import blocks

        stream = npu.Stream(0)

        def run(seed):
            choices, held = random.Random(seed), [None] * 3
            with stream:
                for _ in range(100):
                    held[choices.randrange(3)] = blocks.allocate(0, choices.choice((512, 2048, 8192)))

        for turn in range(20):
            threads = [threading.Thread(target=run, args=(100 * turn + i,)) for i in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            npu.empty_cache(0)
            print(npu.memory_allocated(0), npu.memory_reserved(0))
        """,
        LD_PRELOAD=str(pauses),
    )
    assert said.splitlines() == ["0 0"] * 20


def test_N2_where_a_whole_segment_does_not_fit_one_of_the_size_that_is_asked_for_does(in_npu_process):
    said = in_npu_process(
        """
        from mindtorch import npu
        from mindtorch._ext import blocks
        held = [blocks.allocate(0, (12 << 20) - 32)]
        print(npu.memory_reserved(0) >> 20)
        for size in (6, 5):  # not in 20 MiB, of which 12 are left, and then 6
            held.append(blocks.allocate(0, (size << 20) - 32))
            print(npu.memory_reserved(0) >> 20, npu.memory_stats(0)["num_alloc_retries"])
        """,
        GENIE_TEST_NPU_MEMORY=str(24 << 20),
    )
    assert said.splitlines() == ["12", "18 1", "24 2"]


def test_N3_the_environment_says_what_share_of_the_memory_may_be_held(in_npu_program):
    code = """
        import os, torch, mindtorch
        from mindtorch import npu
        os.environ["PYTORCH_NPU_ALLOC_CONF"] = told
        def most():
            try:
                torch.empty(600 << 20, dtype=torch.uint8, device="npu:0")
            except torch.OutOfMemoryError as error:
                return str(error).partition("this process may hold ")[2].partition(". ")[0]
            except ValueError as error:
                return str(error)
            finally:
                npu.empty_cache()
        print(npu.get_per_process_memory_fraction() if right else "", most())
        npu.set_per_process_memory_fraction(0.125)
        print(most())
    """
    code = textwrap.dedent(code)
    for told, first in (
        ("expandable_segments:True, per_process_memory_fraction:0.25", "0.25 256.00 MiB"),
        ("per_process_memory_fraction:1.0", "1.0 None"),
        ("max_split_size_mb:64", "1.0 None"),
    ):
        assert in_npu_program(f"told, right = {told!r}, True\n" + code) == f"{first}\n128.00 MiB\n"
    for value in ("", "2.0", "-0.1", "half"):
        wrong = f"per_process_memory_fraction:{value}"
        said = in_npu_program(f"told, right = {wrong!r}, False\n" + code).splitlines()[0]
        assert said.endswith(f"expected per_process_memory_fraction from 0 to 1, got {value!r} in {wrong!r}")


def test_N3_what_no_memory_could_hold_is_refused_in_torchs_words(npu):
    with pytest.raises(torch.OutOfMemoryError, match=r"NPU out of memory\. Tried to allocate more than 1EB memory"):
        torch.empty((1 << 60) + 1, dtype=torch.uint8, device="npu")


def test_N2_a_device_that_was_not_used_has_used_nothing(in_npu_process):
    said = in_npu_process(
        """
        from mindtorch import npu
        from mindtorch._ext import blocks
        for _ in range(2):
            found = npu.memory_stats(1)
            print(len(found) > 10, {value for value in found.values() if isinstance(value, int)})
            block = blocks.allocate(0, 100)
        """
    )
    assert said == "True {0}\n" * 2
