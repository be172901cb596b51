"""N4, N7: copies of bytes between host and devices, pinned memory."""

from __future__ import annotations

import ctypes

import pytest
import torch
from device_memory import block_of, get, pattern, put

from mindtorch._ext import blocks

MIB = 1 << 20


# Copies.


@pytest.mark.parametrize("size", [1, 63, 64, 1000, MIB, MIB + 1, 9 * MIB + 5])
def test_N4_bytes_arrive(npu, size):
    data = pattern(size)
    block = block_of(0, data)
    assert get(block) == data
    assert get(block, size // 2) == data[size // 2 :]
    put(block, b"#", size - 1)
    assert get(block, size - 1) == b"#"


def test_N4_the_host_goes_on_while_small_copies_are_queued(npu, library):
    with npu.Stream(0) as stream:
        library.hold(stream.npu_stream)
        block = block_of(0, b"one")  # staged: nobody waits
        put(block, b"2", 1)
        assert not stream.query()
        library.release()
        assert get(block) == b"o2e"


def test_N4_a_host_that_runs_far_ahead_waits(npu, library):
    """What is staged in pinned memory has a limit."""

    def pinned() -> int:
        return library.calls("aclrtMallocHost") - library.calls("aclrtFreeHost")

    before = most = pinned()
    with npu.Stream(0) as stream:
        library.stall(stream.npu_stream, 200)
        block = blocks.allocate(0, MIB)
        for _ in range(200):
            put(block, b"x" * MIB)
            most = max(most, pinned())
        assert get(block) == b"x" * MIB
    assert most - before <= 66, "64 MiB, and the one that is asked for"


@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize("size", [1, 100, 4 * MIB, 4 * MIB + 1, 13 * MIB])
def test_N4_between_blocks(npu, library, devices, target, size):
    devices(target + 1)
    library.delay_copies(3)  # nothing works because it was quick
    data = pattern(size + 128)
    source, block = block_of(0, data), block_of(target, b"." * (size + 128))
    copy = blocks.copy_across if target else blocks.copy_within
    copy(block, 64, source, 64, size)
    assert get(block) == b"." * 64 + data[64 : 64 + size] + b"." * 64
    copy(block, 3, source, 5, size)  # not aligned
    assert get(block, 3, size) == data[5 : 5 + size]
    blocks.copy_across(block, 0, source, 0, size)  # also on one device
    assert get(block, 0, size) == data[:size]


@pytest.mark.parametrize(("to", "source"), [(0, 1000), (1000, 0), (0, 64), (64, 0), (1, 2), (7, 7)])
def test_N4_within_a_block_ranges_may_overlap(npu, to, source):
    data = bytearray(pattern(10_000))
    block = block_of(0, bytes(data))
    blocks.copy_within(block, to, block, source, 5000)
    data[to : to + 5000] = data[source : source + 5000]
    assert get(block) == data


def test_N4_no_bytes_and_bytes_onto_themselves_are_no_work(npu, library):
    blocks_of_it = block, other = block_of(0, b"abc"), block_of(0, b"def")
    npu.synchronize()
    names = ("aclrtMemcpyAsync", "aclrtMemcpy", "aclrtSynchronizeStream")
    before = [library.calls(name) for name in names]
    blocks.copy_within(block, 0, other, 1, 0)
    blocks.copy_within(block, 1, block, 1, 2)
    assert [library.calls(name) for name in names] == before
    assert [get(each) for each in blocks_of_it] == [b"abc", b"def"]


def test_N4_between_devices_both_streams_orders_hold(npu, library, devices):
    devices(2)
    for late in (0, 1):
        one, two = npu.Stream(0), npu.Stream(1)
        with one, two:
            source, target = blocks.allocate(0, 5 * MIB), blocks.allocate(1, 5 * MIB)
            library.stall((one, two)[late].npu_stream, 50)
            blocks.fill(source, 0, 1, source.nbytes)
            blocks.fill(target, 0, 2, target.nbytes)
            blocks.copy_across(target, 0, source, 0, source.nbytes)
            blocks.fill(source, 0, 3, source.nbytes)  # after it was read
            before = blocks.allocate(1, 5 * MIB)
            blocks.copy_within(before, 0, target, 0, target.nbytes)
            blocks.fill(target, 0, 4, target.nbytes)  # after it was written
            assert get(before) == b"\1" * 5 * MIB
            assert get(target) == b"\4" * 5 * MIB and get(source) == b"\3" * 5 * MIB


def test_N4_between_devices_without_access_to_each_other(in_npu_process):
    in_npu_process(
        """
        from mindtorch import npu
        from mindtorch._ext import blocks
        from device_memory import block_of, get
        source, target = block_of(0, b"abc" * 4_000_000), blocks.allocate(1, 12_000_000)
        blocks.copy_across(target, 0, source, 0, 12_000_000)
        assert get(target) == b"abc" * 4_000_000 and not npu.can_device_access_peer(0, 1)
        """,
        GENIE_TEST_NPU_PEER="0",
    )


def test_N4_bounds(npu, devices):
    block = blocks.allocate(0, 100)
    for offset, size in ((0, 101), (100, 1), (-1, 5), (101, 0), (3, -1), (2**62, 2**62)):
        for use in (lambda o, n: blocks.copy_in(block, o, 1 << 20, n),
                    lambda o, n: blocks.copy_out(block, o, 1 << 20, n),
                    lambda o, n: blocks.fill(block, o, 0, n), lambda o, n: blocks.copy_within(block, o, block, 0, n),
                    lambda o, n: blocks.copy_across(block, o, block, o, n)):  # fmt: skip
            with pytest.raises(ValueError, match=f"within a block of 100, got {size} from byte {offset}"):
                use(offset, size)
    with pytest.raises(ValueError, match="address of 5 bytes of host memory, got 0"):
        blocks.copy_in(block, 0, 0, 5)
    for wrong in (-1, 256):
        with pytest.raises(ValueError, match=f"a byte from 0 to 255, got {wrong}"):
            blocks.fill(block, 0, wrong, 1)
    with pytest.raises(TypeError):
        blocks.copy_in(None, 0, 1 << 20, 5)
    devices(2)
    with pytest.raises(RuntimeError, match="blocks of one device, got npu:0 and npu:1"):
        blocks.copy_within(blocks.allocate(1, 10), 0, block, 0, 10)


def test_N4_fill(npu):
    block = block_of(0, b"." * 1000)
    blocks.fill(block, 3, 0xFF, 500)
    assert get(block) == b"..." + b"\xff" * 500 + b"." * 497


# Pinned memory.


def test_N4_pinned_memory_is_a_buffer(npu):
    pinned = blocks.Pinned(1000)
    view = memoryview(pinned)
    assert (view.nbytes, view.readonly, pinned.nbytes) == (1000, False, 1000)
    view[:3] = b"abc"
    assert ctypes.string_at(pinned.address, 3) == b"abc"
    assert blocks.is_pinned(pinned.address) and blocks.is_pinned(pinned.address + 999)
    assert not blocks.is_pinned(0) and not blocks.is_pinned(id(pinned))
    with pytest.raises(ValueError, match="not negative"):
        blocks.Pinned(-1)
    with pytest.raises(RuntimeError, match="already allocated"):
        pinned.__init__(5)
    assert memoryview(blocks.Pinned(0)).nbytes == 0


def test_N4_copies_with_pinned_memory_need_not_wait(npu, library):
    source, target = blocks.Pinned(5000), blocks.Pinned(5000)
    memoryview(source)[:] = data = pattern(5000)
    with npu.Stream(0) as stream:
        library.hold(stream.npu_stream)
        block = blocks.allocate(0, 5000)
        blocks.copy_in(block, 0, source.address, 5000, wait=False)
        blocks.copy_out(block, 100, target.address + 10, 4900, wait=False)
        event = stream.record_event()
        assert not event.query()
        library.release()
        event.synchronize()
        assert bytes(target)[10:4910] == data[100:]
        blocks.copy_out(block, 0, target.address, 5000)
        assert bytes(target) == data
        blocks.copy_in(block, 0, target.address + 1, 10)
        assert get(block, 0, 10) == data[1:11]


def test_N4_other_memory_is_copied_at_once_also_without_wait(npu, library):
    data = ctypes.create_string_buffer(b"a" * 5000, 5000)
    out = ctypes.create_string_buffer(5000)
    library.delay_copies(5)
    block = blocks.allocate(0, 5000)
    blocks.copy_in(block, 0, ctypes.addressof(data), 5000, wait=False)
    ctypes.memset(data, 0, 5000)
    blocks.copy_out(block, 0, ctypes.addressof(out), 5000, wait=False)
    assert out.raw == b"a" * 5000


def test_N4_pinned_memory_is_reused_behind_what_used_it(npu, library):
    with npu.Stream(0) as stream:
        block = blocks.allocate(0, 3 * MIB)
        pinned = blocks.Pinned(3 * MIB)
        place = pinned.address
        memoryview(pinned)[:] = b"p" * 3 * MIB
        library.hold(stream.npu_stream)
        blocks.copy_in(block, 0, place, 3 * MIB, wait=False)
        del pinned
        assert not blocks.is_pinned(place)
        other = blocks.Pinned(3 * MIB)
        assert other.address != place
        memoryview(other)[:] = b"q" * 3 * MIB
        library.release()
        assert get(block) == b"p" * 3 * MIB
        assert blocks.Pinned(3 * MIB).address == place


def test_N4_a_copy_is_queued_where_pinned_memory_holds_just_all_of_it(npu, library):
    memory = blocks.Pinned(8192)
    place = memory.address + 4096
    ctypes.memset(place, ord("a"), 4096)
    with npu.Stream(0) as stream:
        block = blocks.allocate(0, 4096)
        library.hold(stream.npu_stream)
        blocks.copy_in(block, 0, place, 4096, wait=False)
        ctypes.memset(place, ord("b"), 4096)
        library.release()
        assert get(block) == b"b" * 4096


def test_N4_pinned_memory_is_of_powers_of_two_and_used_for_as_much_again(in_npu_process):
    said = in_npu_process(
        """
        from mindtorch import npu
        from mindtorch._ext import blocks
        sizes = (1, 512, 513, 1024, 1025, 4096)  # of 512, 512, 1024, 1024, 2048 and 4096 bytes
        held = [blocks.Pinned(size) for size in sizes]
        places = [each.address for each in held]
        del held[:]

        def where(size):
            held.append(blocks.Pinned(size))
            return places.index(held[-1].address) if held[-1].address in places else None

        print(sorted([where(512), where(300)]), sorted([where(500), where(1)]), where(512))
        print(where(1025), where(2048), where(2048))
        print([blocks.is_pinned(place) for place in places])
        print([blocks.is_pinned(places[5] + at) for at in (-1, 0, 4095, 4096)])
        held.clear()
        print([blocks.is_pinned(place) for place in places])
        """
    )
    ends = [False, True, True, False]
    assert said.splitlines() == ["[0, 1] [2, 3] None", "4 5 None", f"{[True] * 6}", f"{ends}", f"{[False] * 6}"]


def test_N4_64_mib_of_pinned_memory_are_kept_and_more_is_given_back(in_npu_process):
    said = in_npu_process(
        """
        import os
        from acl_library import Library
        from mindtorch import npu
        from mindtorch._ext import blocks
        npu.device_count()
        library = Library(os.environ["GENIE_ACL_LIBRARY"])
        kept = blocks.Pinned(1 << 20)
        for sizes in ((32, 32), (128,), (512,)):  # MiB
            held = [blocks.Pinned(size << 20) for size in sizes]
            print(library.calls("aclrtMallocHost"), library.calls("aclrtFreeHost"))
            del held
        assert blocks.is_pinned(kept.address) and blocks.is_pinned(kept.address + (1 << 20) - 1)
        """
    )
    assert said.splitlines() == ["3 0", "4 0", "5 3"]


# Other numbers of devices.


@pytest.mark.parametrize("count", [1, 2, 8])
def test_N7_every_device_with_each_other(in_npu_process, count):
    said = in_npu_process(
        """
        from mindtorch import npu
        from mindtorch._ext import blocks
        from device_memory import block_of, get, pattern
        count, size = npu.device_count(), 100_000
        for index in range(count):
            npu.set_device(index)
            assert npu.current_device() == index == npu.current_stream().device_index
            with npu.Stream() as stream:
                block = block_of(index, pattern(size, index))
                for other in range(count):
                    with npu.Stream(other) as there:
                        there.wait_stream(stream)
                        copy = blocks.allocate(other, size)
                        blocks.copy_across(copy, 0, block, 0, size)
                        assert get(copy) == pattern(size, index), (index, other)
            assert npu.memory_allocated(index) > 0 and npu.mem_get_info()[1] == 1 << 30
        print(count, [npu.get_runtime(index).device_index for index in range(count)] == list(range(count)))
        """,
        devices=count,
    )
    assert said == f"{count} True\n"


@pytest.mark.parametrize("strided", [False, True])
def test_N4_a_copy_between_devices_reads_what_the_targets_stream_waited_for(npu, library, devices, strided):
    """As with CUDA: the source's stream waits for the target's, which may have waited for what made the source. It read
    what was there before, and said nothing.
    """
    devices(2)
    x = torch.arange(6000.0).view(60, 100).npu(0)
    made, target = npu.Stream(0), npu.Stream(1)
    npu.synchronize(0)
    library.stall(made.npu_stream, 50)
    with npu.stream(made):
        y = x + 1
    target.wait_event(made.record_event())
    with npu.stream(target):
        z = (y[3:50:7, 9:] if strided else y).to("npu:1") * 2
    target.synchronize()
    expected = (torch.arange(6000.0).view(60, 100) + 1) * 2
    assert torch.equal(z.cpu(), expected[3:50:7, 9:] if strided else expected)
