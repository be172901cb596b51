"""N2, N7: every AscendCL call failing once, wherever the pool, an allocation, a copy or an event makes it.

Each operation is run with its first, second, third ... call failing, until it makes fewer calls than that. What has to
happen: an exception that names the function, or the right result where nothing depended on the call; nothing lost; and
the same operation works when it is done again.
"""

from __future__ import annotations

import gc

import pytest
from device_memory import block_of, get, pattern

from mindtorch._ext import blocks
from mindtorch.base.errors import NPUError, NPUOutOfMemoryError

KIB, MIB = 1 << 10, 1 << 20
DRIVER, NO_MEMORY = 507899, 207001


BYTES = pattern(9 * MIB)


def expect(block, data):
    assert get(block) == data
    return True


def allocate(npu):
    with npu.Stream(0):
        blocks.allocate(0, 3 * MIB)
        return blocks.allocate(0, 100).nbytes == 100


def in_and_out(npu):
    return expect(block_of(0, pattern(1000)), pattern(1000))


def large_in_and_out(npu):
    return expect(block_of(0, BYTES[: 2 * MIB]), BYTES[: 2 * MIB])


def pinned(npu):
    memory = blocks.Pinned(5000)
    memoryview(memory)[:] = pattern(5000)
    block = blocks.allocate(0, 5000)
    blocks.copy_in(block, 0, memory.address, 5000, wait=False)
    memory = None
    other = blocks.Pinned(5000)
    blocks.copy_out(block, 0, other.address, 5000, wait=False)
    npu.synchronize(0)
    return bytes(other) == pattern(5000)


def within(npu):
    source, target = block_of(0, pattern(1000)), blocks.allocate(0, 1000)
    blocks.copy_within(target, 0, source, 0, 1000)
    blocks.copy_within(target, 1, source, 1, 900)
    blocks.copy_within(source, 64, source, 0, 900)
    return expect(target, pattern(1000)) and get(source, 64, 900) == pattern(1000)[:900]


def across(npu):
    source, target = block_of(0, BYTES), blocks.allocate(1, 9 * MIB)
    blocks.copy_across(target, 0, source, 0, 9 * MIB)
    return expect(target, BYTES)


def fill(npu):
    block = blocks.allocate(0, 100)
    blocks.fill(block, 0, 7, 100)
    return expect(block, b"\7" * 100)


def other_streams(npu):
    """Blocks that other streams used die, and their memory is wanted again."""
    owner, user = npu.Stream(0), npu.Stream(0)
    for _ in range(3):
        with owner:
            block = blocks.allocate(0, 600 * KIB)
            blocks.fill(block, 0, 5, block.nbytes)
        user.wait_stream(owner)
        with user:
            copy = blocks.allocate(0, 600 * KIB)
            blocks.copy_within(copy, 0, block, 0, block.nbytes)
        del block
    with user:
        return expect(copy, b"\5" * 600 * KIB)


def events(npu):
    one, two = npu.Stream(0), npu.Stream(npu.device_count() - 1)
    start, end = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
    start.record(one)
    two.wait_event(start)
    end.record(one)
    end.synchronize()
    two.wait_stream(one)
    two.synchronize()
    return one.query() and start.query() and start.elapsed_time(end) >= 0


def figures(npu):
    npu.synchronize(0)
    npu.empty_cache()
    return npu.mem_get_info(0)[1] == 1 << 30 and npu.get_device_properties(0).total_memory == 1 << 30


OPERATIONS = [allocate, in_and_out, large_in_and_out, pinned, within, across, fill, other_streams, events, figures]
FUNCTIONS = [
    "aclrtSetCurrentContext", "aclrtSynchronizeDevice", "aclrtCreateStreamWithConfig", "aclrtSynchronizeStream",
    "aclrtStreamQuery", "aclrtStreamWaitEvent", "aclrtCreateEventExWithFlag", "aclrtRecordEvent",
    "aclrtQueryEventStatus", "aclrtSynchronizeEvent", "aclrtEventElapsedTime", "aclrtMallocAlign32", "aclrtFree",
    "aclrtMallocHost", "aclrtFreeHost", "aclrtMemcpy", "aclrtMemcpyAsync", "aclrtMemsetAsync", "aclrtGetMemInfo",
    "aclGetDeviceCapability",
]  # fmt: skip
# Where these fail, nothing that was asked for may depend on it: an event that tells when memory can be reused is
# recorded or asked again later; a fact is not known. Of their other uses the exception is checked.
FORGIVEN = {
    "aclrtQueryEventStatus", "aclrtRecordEvent", "aclrtCreateEventExWithFlag", "aclrtSetCurrentContext",
    "aclGetDeviceCapability",
}  # fmt: skip


def settle(npu):
    for index in range(npu.device_count()):
        npu.synchronize(index)
    npu.empty_cache()


def allocated(npu):
    return [npu.memory_allocated(index) for index in range(npu.device_count())]


@pytest.mark.sample(10)
@pytest.mark.parametrize("code", [DRIVER, NO_MEMORY])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.__name__)
def test_N7_each_call_fails_once(npu, library, operation, code):
    if operation is across and npu.device_count() < 2:
        pytest.skip("needs 2 devices")
    forgiven = FORGIVEN | ({"aclrtMallocAlign32"} if code == NO_MEMORY else set())  # tried once more
    assert operation(npu)
    gc.collect()
    settle(npu)
    before, raised, runs = allocated(npu), set(), 0
    reserved = [npu.memory_reserved(index) for index in range(npu.device_count())]
    for function in FUNCTIONS:
        for nth in range(1, 100):
            runs += 1
            if operation in (allocate, figures):
                npu.empty_cache()  # elsewhere what is cached serves
            library.clear()
            library.fail(function, nth, code)
            try:
                assert operation(npu), f"wrong after call {nth} of {function} failed"
                fired = library.clear() == 0
                assert not fired or function in forgiven, f"call {nth} of {function} failed and nobody was told"
            except NPUError as error:
                assert (error.function, error.code) == (function, code)
                assert error.detail == f"{function}: injected fault {code}"
                assert isinstance(error, NPUOutOfMemoryError) == (code == NO_MEMORY)
                raised.add(function)
                fired = library.clear() == 0
                assert fired
            assert library.violations() == []
            assert operation(npu), f"again, after call {nth} of {function} failed"
            if not fired:
                break
        assert nth < 99 and allocated(npu) == before
    # One failed allocation is tried again, and on one device there is nothing else that allocating calls.
    assert runs > len(FUNCTIONS) and (raised or (operation is allocate and code == NO_MEMORY))
    settle(npu)
    assert [npu.memory_reserved(index) for index in range(npu.device_count())] == reserved


def test_N7_failures_use_up_no_events_streams_or_pinned_memory(npu, library):
    for function in ("aclrtRecordEvent", "aclrtStreamWaitEvent", "aclrtMemcpyAsync", "aclrtSynchronizeStream"):
        for _ in range(100):
            library.fail(function)
            with pytest.raises(NPUError):
                other_streams(npu)
                events(npu)
                in_and_out(npu)
            library.clear()
            npu.synchronize()  # else it is chance how many are under way at a time
    assert library.calls("aclrtCreateEventExWithFlag") < 50 and library.calls("aclrtMallocHost") < 20
    assert library.calls("aclrtCreateStreamWithConfig") <= 64


POOL = """
    import os, pathlib, sys
    import acl_library
    library = acl_library.Library(pathlib.Path(os.environ["GENIE_ACL_LIBRARY"]))
    from mindtorch import npu
    from mindtorch.base.errors import NPUError
    failed = []
    for device in range(9):
        library.clear()
        library.fail("*", max(1, device), 507033)
        try:
            npu.Stream(device).synchronize()
        except NPUError as error:
            failed.append(error.function)
            assert error.code == 507033
        library.clear()
        npu.Stream(device).synchronize()
        npu.Stream(device, -1).record_event().synchronize()
        assert library.violations() == []
    print(*failed)
"""


def test_N2_making_a_runtime_fails_at_each_call_and_works_the_next_time(in_npu_process):
    """A device each: its first use fails at its first, second, third ... call."""
    said = in_npu_process(POOL, devices=9).split()
    assert said == [
        "aclInit", "aclrtGetDeviceCount", "aclrtSetDevice", "aclrtGetCurrentContext", "aclrtCreateStreamWithConfig",
        "aclrtSetStreamFailureMode", "aclrtCreateStreamWithConfig", "aclrtSetStreamFailureMode",
        "aclrtSynchronizeStream",
    ]  # fmt: skip
