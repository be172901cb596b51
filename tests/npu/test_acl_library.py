"""N7: the AscendCL test library itself: what it promises to be, and what it finds wrong with callers."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from ctypes import byref, c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

import acl_library
import pytest
from acl_calls import D2D, H2D, Npu

COMPLETE_STATUS, COMPLETE_OLD = 1, 0


def test_N7_counts_devices_by_environment(acl: acl_library.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENIE_TEST_NPU_DEVICES", "8")
    acl.reset()
    count, early = c_uint32(), c_int()
    Npu(acl)("drvGetDevNum", byref(early))  # needs no initialization
    assert acl.c.aclrtGetDeviceCount(byref(count)) == 100001
    Npu(acl)("aclInit", None)
    Npu(acl)("aclrtGetDeviceCount", byref(count))
    assert (early.value, count.value) == (8, 8)
    assert acl.c.aclrtSetDevice(7) == 0 and acl.c.aclrtSetDevice(8) == 107001
    assert b"aclrtSetDevice: device 8 of 8" in acl.c.aclGetRecentErrMsg()
    assert acl.c.aclrtGetSocName() == b"GenieTestNPU"
    assert c_int.in_dll(acl.c, "genie_acl_test_library").value == 1


def test_N7_initialization_counts_references_or_refuses(
    acl: acl_library.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = c_uint64()
    assert acl.c.aclInit(None) == 0 and acl.c.aclInit(None) == 0
    assert acl.c.aclFinalizeReference(byref(left)) == 0 and left.value == 1
    assert acl.c.aclInit(None) == 0
    assert acl.c.aclFinalize() == 0 and acl.c.aclFinalize() == 100001  # ignores the count
    monkeypatch.setenv("GENIE_TEST_NPU_INIT", "once")
    acl.reset()
    assert acl.c.aclInit(None) == 0 and acl.c.aclInit(None) == 100002


def test_N7_devices_and_contexts_are_per_thread(npu: Npu) -> None:
    device, first = c_int32(), c_void_p()
    npu("aclrtGetCurrentContext", byref(first))
    codes: list[int] = []

    def other() -> None:
        codes.append(npu.code("aclrtGetDevice", byref(c_int32())))
        codes.append(npu.code("aclrtSetDevice", 1))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert codes == [107002, 0]
    npu("aclrtGetDevice", byref(device))
    assert device.value == 0
    context = npu.made("aclrtCreateContext", 1)
    npu("aclrtGetDevice", byref(device))
    assert device.value == 1  # a new context is the thread's
    npu("aclrtSetCurrentContext", first)
    npu("aclrtDestroyContext", context)
    npu("aclrtResetDevice", 1)
    npu("aclrtResetDevice", 0)
    assert npu.code("aclrtGetDevice", byref(device)) == 107002


def test_N7_memory_limits_and_errors(npu: Npu, monkeypatch: pytest.MonkeyPatch) -> None:
    free, total = c_size_t(), c_size_t()
    npu("aclrtGetMemInfo", 1, byref(free), byref(total))
    assert free.value == total.value == 1 << 30
    pointers = [npu.malloc(1), npu.malloc(1)]
    npu("aclrtGetMemInfo", 1, byref(free), byref(total))
    assert total.value - free.value == 2 * 64  # rounded to 32, and 32 of padding
    assert all(pointer.value % 32 == 0 for pointer in pointers)
    assert npu.code("aclrtMalloc", byref(c_void_p()), c_size_t(1 << 30), 0) == 207018
    for pointer in pointers:
        npu("aclrtFree", pointer)
    assert npu.code("aclrtFree", pointers[0]) == 100000
    npu.violated("freed twice")
    assert npu.code("aclrtFree", c_void_p(12345)) == 100000
    npu.violated("is no device block")
    assert npu.code("aclrtMalloc", byref(c_void_p()), c_size_t(0), 0) == 100000


def test_N7_host_cannot_touch_device_memory(acl_path: Path) -> None:
    program = f"""if True:
        import ctypes
        c = ctypes.CDLL({str(acl_path)!r})
        c.aclInit(None), c.aclrtSetDevice(0)
        pointer = ctypes.c_void_p()
        assert c.aclrtMalloc(ctypes.byref(pointer), ctypes.c_size_t(64), 0) == 0
        ctypes.string_at(pointer, 1)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGSEGV


def test_N7_copies_go_through_and_wrong_ones_are_found(npu: Npu) -> None:
    one, other = npu.malloc(64), npu.malloc(64)
    data, buffer, n = bytes(range(64)), ctypes.create_string_buffer(64), c_size_t(64)
    npu.put(one, data)
    npu("aclrtMemcpy", other, n, one, n, D2D)
    assert npu.get(other, 64) == data == npu.library.peek(other.value or 0, 64)
    for arguments, words in [
        ((buffer, n, other, n, H2D), "from device to host memory"),
        ((other, n, data, n, D2D), "from host to device memory"),
        ((other, c_size_t(32), data, n, H2D), "64 bytes for a room of 32"),
        ((other, c_size_t(999), bytes(999), c_size_t(999), H2D), "not inside a live block"),
        ((c_void_p((one.value or 0) + 8), n, one, c_size_t(32), D2D), "overlap"),
    ]:
        assert npu.code("aclrtMemcpy", *arguments) == 107000
        npu.violated(words)
    npu("aclrtFree", one)
    assert npu.code("aclrtMemcpy", one, n, data, n, H2D) == 107000
    npu.violated("not inside a live block")
    npu("aclrtSetDevice", 1)
    assert npu.code("aclrtMemcpy", other, n, data, n, H2D) == 107000
    npu.violated("memory of device 0 is used in a context of device 1")
    npu("aclrtFree", other)


def test_N7_queued_copies_on_a_device_need_alignment(npu: Npu) -> None:
    pointer = npu.malloc(4096)
    start = -(-(pointer.value or 0) // 64) * 64
    n = c_size_t(64)
    npu("aclrtMemset", pointer, c_size_t(4096), 7, c_size_t(4096))
    npu("aclrtMemcpyAsync", c_void_p(start), n, c_void_p(start + 64), n, D2D, None)
    assert npu.code("aclrtMemcpyAsync", c_void_p(start), n, c_void_p(start + 96), n, D2D, None) == 107000
    npu.violated("64-byte alignment")
    npu("aclrtSynchronizeStream", None)
    npu("aclrtFree", pointer)


def test_N7_peer_copies_must_be_enabled(npu: Npu, monkeypatch: pytest.MonkeyPatch) -> None:
    here, n, can = npu.malloc(64), c_size_t(64), c_int32()
    npu("aclrtSetDevice", 1)
    there = npu.malloc(64)
    npu.put(there, bytes(range(64)))
    assert npu.code("aclrtMemcpy", here, n, there, n, D2D) == 507899
    npu("aclrtDeviceCanAccessPeer", byref(can), 1, 0)
    npu("aclrtDeviceEnablePeerAccess", 0, 0)
    npu("aclrtMemcpy", here, n, there, n, D2D)
    assert can.value == 1 and npu.library.peek(here.value or 0, 64) == bytes(range(64))
    npu("aclrtDeviceDisablePeerAccess", 0)
    assert npu.code("aclrtMemcpy", here, n, there, n, D2D) == 507899
    npu("aclrtFree", here)
    npu("aclrtFree", there)


def test_N7_streams_work_in_order_and_later(npu: Npu) -> None:
    stream, pointer = npu.made("aclrtCreateStreamWithConfig", 7, 3), npu.malloc(64)
    npu("aclrtMemset", pointer, c_size_t(64), 0, c_size_t(64))
    buffer, n, status = ctypes.create_string_buffer(b"a" * 64, 64), c_size_t(64), c_int()
    npu.library.hold(stream.value)
    npu("aclrtMemcpyAsync", pointer, n, buffer, n, H2D, stream)
    npu("aclrtMemsetAsync", pointer, n, ord("z"), c_size_t(8), stream)
    npu("aclrtStreamQuery", stream, byref(status))
    assert status.value == 1 and npu.library.peek(pointer.value or 0, 1) == b"\0"
    assert npu.code("aclrtSynchronizeStreamWithTimeout", stream, 0) == 507046
    assert npu.code("aclrtSynchronizeStreamWithTimeout", stream, 1) == 507046
    buffer[63] = b"b"  # the buffer is read when the work runs
    npu.library.release(stream.value)
    npu("aclrtSynchronizeStreamWithTimeout", stream, -1)
    assert npu.get(pointer, 64) == b"z" * 8 + b"a" * 55 + b"b"
    npu("aclrtStreamQuery", stream, byref(status))
    assert status.value == 0
    npu("aclrtFree", pointer)
    npu("aclrtDestroyStream", stream)
    assert npu.code("aclrtSynchronizeStream", stream) == 107017
    npu.violated("was destroyed before")
    assert npu.code("aclrtCreateStreamWithConfig", byref(stream), 8, 0) == 107000


def test_N7_stream_of_another_context_is_refused(npu: Npu) -> None:
    stream, event = npu.made("aclrtCreateStream"), npu.made("aclrtCreateEvent")
    npu("aclrtSetDevice", 1)
    assert npu.code("aclrtSynchronizeStream", stream) == 107003
    npu.violated("stream")
    assert npu.code("aclrtRecordEvent", event, None) == 107003
    npu.violated("event")
    npu("aclrtSetDevice", 0)
    npu("aclrtDestroyEvent", event)
    npu("aclrtDestroyStream", stream)


def test_N7_events_order_streams_and_tell_the_time(npu: Npu) -> None:
    one, other, pointer = npu.made("aclrtCreateStream"), npu.made("aclrtCreateStream"), npu.malloc(64)
    start = npu.made("aclrtCreateEventWithFlag", 8)
    end = npu.made("aclrtCreateEventExWithFlag", 8)
    plain = npu.made("aclrtCreateEventWithFlag", 1)
    old, new, time, n = c_int(), c_int(), c_float(), c_size_t(64)
    npu.library.hold(one.value)
    npu("aclrtRecordEvent", start, one)
    npu("aclrtMemsetAsync", pointer, n, 1, n, one)
    npu("aclrtRecordEvent", end, one)
    npu("aclrtStreamWaitEvent", other, end)
    npu("aclrtMemsetAsync", pointer, n, 2, c_size_t(1), other)
    npu("aclrtQueryEvent", end, byref(old))
    npu("aclrtQueryEventStatus", end, byref(new))
    assert (old.value, new.value) == (1 - COMPLETE_OLD, 1 - COMPLETE_STATUS)
    assert npu.code("aclrtEventElapsedTime", byref(time), start, end) == 107006
    npu.library.release(one.value)
    npu("aclrtSynchronizeStream", other)
    assert npu.library.peek(pointer.value or 0, 3) == b"\2\1\1"
    npu("aclrtSynchronizeEvent", end)
    npu("aclrtQueryEvent", end, byref(old))
    npu("aclrtQueryEventStatus", end, byref(new))
    assert (old.value, new.value) == (COMPLETE_OLD, COMPLETE_STATUS)
    npu("aclrtEventElapsedTime", byref(time), start, end)
    assert time.value >= 0
    npu("aclrtRecordEvent", plain, one)
    npu("aclrtSynchronizeEvent", plain)
    assert npu.code("aclrtEventElapsedTime", byref(time), start, plain) == 107006
    for event in (start, end, plain):
        npu("aclrtDestroyEvent", event)
    npu("aclrtFree", pointer)
    npu("aclrtDestroyStream", one)
    npu("aclrtDestroyStreamForce", other)


def test_N7_a_wait_means_the_record_before_it(npu: Npu) -> None:
    one, other, event = npu.made("aclrtCreateStream"), npu.made("aclrtCreateStream"), npu.made("aclrtCreateEvent")
    npu("aclrtStreamWaitEvent", other, event)  # never recorded: nothing to wait for
    npu("aclrtRecordEvent", event, one)
    npu("aclrtSynchronizeStream", one)
    npu("aclrtStreamWaitEvent", other, event)
    npu.library.hold(one.value)
    npu("aclrtRecordEvent", event, one)  # later than the wait
    npu("aclrtSynchronizeStream", other)
    status = c_int()
    npu("aclrtQueryEvent", event, byref(status))
    assert status.value == 1
    npu.code("aclrtDestroyEvent", event)
    npu.violated("is destroyed while 1 queued uses wait")
    npu.library.release()
    for stream in (one, other):
        npu("aclrtDestroyStream", stream)


def test_N7_a_reset_event_is_as_never_recorded(npu: Npu) -> None:
    event, status = npu.made("aclrtCreateEvent"), c_int()
    npu("aclrtRecordEvent", event, None)
    npu("aclrtResetEvent", event, None)
    npu("aclrtSynchronizeStream", None)
    assert npu.code("aclrtEventElapsedTime", byref(c_float()), event, event) == 107006
    npu("aclrtQueryEventStatus", event, byref(status))
    assert status.value == COMPLETE_STATUS
    npu("aclrtDestroyEvent", event)


def test_N7_a_forced_end_gives_up_what_is_queued(npu: Npu) -> None:
    one, other = npu.made("aclrtCreateStream"), npu.made("aclrtCreateStream")
    event, pointer = npu.made("aclrtCreateEvent"), npu.malloc(8)
    npu.library.hold(one.value)
    npu("aclrtRecordEvent", event, one)
    npu("aclrtStreamWaitEvent", other, event)
    npu("aclrtMemsetAsync", pointer, c_size_t(8), 1, c_size_t(8), other)
    npu("aclrtDestroyStreamForce", other)  # does not wait for the event
    assert npu.library.peek(pointer.value or 0, 8) == b"\xff" * 8
    npu("aclrtDestroyStream", one)
    npu("aclrtFree", pointer)
    npu("aclrtDestroyEvent", event)


def test_N7_what_outlives_its_device_is_found(npu: Npu) -> None:
    npu.made("aclrtCreateStream")
    npu.made("aclrtCreateEvent")
    npu.malloc(8)
    npu.made("aclrtCreateContext", 0)
    npu("aclrtResetDevice", 0)
    assert {line.split(" 0x")[0] for line in npu.library.violations()} == {
        f"aclrtResetDevice: {kind}" for kind in ("stream", "event", "block", "context")
    }
    npu.library.clear()
    assert npu.library.leaks() == []


def test_N7_messages_are_told_once_and_per_thread(npu: Npu) -> None:
    messages: list[bytes | None] = []
    assert npu.code("aclrtSetDevice", 99) == 107001
    thread = threading.Thread(target=lambda: messages.append(npu.library.c.aclGetRecentErrMsg()))
    thread.start()
    thread.join()
    assert messages == [None]
    assert npu.library.c.aclGetRecentErrMsg() == b"aclrtSetDevice: device 99 of 2"
    assert npu.library.c.aclGetRecentErrMsg() is None


def test_N7_unordered_uses_of_memory_are_found_when_queued(npu: Npu) -> None:
    one, other, pointer = npu.made("aclrtCreateStream"), npu.made("aclrtCreateStream"), npu.malloc(128)
    event, n = npu.made("aclrtCreateEvent"), c_size_t(64)
    npu("aclrtMemsetAsync", pointer, n, 1, n, one)
    npu("aclrtMemsetAsync", c_void_p((pointer.value or 0) + 64), n, 1, n, other)  # elsewhere: nothing wrong
    npu("aclrtMemsetAsync", pointer, n, 2, n, other)
    npu.violated("are written without waiting for work that writes them")
    npu("aclrtSynchronizeDevice")
    npu("aclrtMemsetAsync", pointer, n, 1, n, one)
    npu("aclrtRecordEvent", event, one)
    npu("aclrtStreamWaitEvent", other, event)
    npu("aclrtMemsetAsync", pointer, n, 2, n, other)  # behind the event
    npu("aclrtMemsetAsync", pointer, n, 3, n, one)
    npu.violated("are written without waiting")
    npu("aclrtMemset", pointer, n, 0, n)
    assert len(npu.library.violations()) == 2  # of both streams
    npu.library.clear()
    npu("aclrtFree", pointer)
    npu.violated("freed without having waited")
    npu("aclrtSynchronizeDevice")
    npu("aclrtDestroyEvent", event)
    for stream in (one, other):
        npu("aclrtDestroyStream", stream)


def test_N7_block_freed_under_queued_work_is_found(npu: Npu) -> None:
    stream, pointer = npu.made("aclrtCreateStream"), npu.malloc(64)
    host = npu.made("aclrtMallocHost", c_size_t(64))
    npu.library.hold()
    npu("aclrtMemcpyAsync", pointer, c_size_t(64), host, c_size_t(64), H2D, stream)
    npu("aclrtFree", pointer)
    npu.violated("freed without having waited")
    npu("aclrtFreeHost", host)
    npu.violated("freed without having waited")
    npu.library.release()
    npu("aclrtDestroyStream", stream)


def test_N7_leaks_are_told_at_the_end(npu: Npu) -> None:
    npu.malloc(64)
    npu.made("aclrtMallocHost", c_size_t(9))
    for create in ("aclrtCreateEvent", "aclrtCreateStream"):
        npu.made(create)
    npu.made("aclrtCreateContext", 1)
    kinds = {"context", "stream", "event", "device block", "host block"}
    assert {line.removeprefix("leaked ").split(" 0x")[0] for line in npu.library.leaks()} == kinds
    npu("aclFinalize")
    found = [line for line in npu.library.violations() if line.startswith("leaked ")]
    assert {line.removeprefix("leaked ").split(" 0x")[0] for line in found} == kinds and len(found) == 5
    npu.library.clear()
    assert npu.library.leaks() == []


def test_N7_injected_faults_hit_the_call_they_name(npu: Npu) -> None:
    npu.library.clear()
    npu.library.fail("aclrtMalloc", 2, 207018)
    first = npu.malloc(8)
    assert npu.code("aclrtMalloc", byref(c_void_p()), c_size_t(8), 0) == 207018
    assert npu.library.c.aclGetRecentErrMsg() == b"aclrtMalloc: injected fault 207018"
    npu.library.fail(nth=2)
    second = npu.malloc(8)
    assert npu.code("aclrtSynchronizeDevice") == 507899
    npu.library.fail("aclrtFree", 1, 507899)
    assert npu.code("aclrtFree", first) == 507899  # freed nevertheless
    npu("aclrtFree", second)
    assert npu.library.calls("aclrtMalloc") == 3 and npu.library.calls() == 6
    npu.library.fail("aclrtMalloc", 5)
    assert npu.library.clear() == 1 and npu.library.calls() == 0


def test_N7_stalls_and_delays_hold_work_up(npu: Npu) -> None:
    stream, status, pointer = npu.made("aclrtCreateStream"), c_int(), npu.malloc(64)
    assert npu.library.stall(stream.value, 30) == 1
    npu("aclrtStreamQuery", stream, byref(status))
    assert status.value == 1
    npu.library.delay_copies(30)
    data = bytes(64)
    npu.put(pointer, data, stream)
    assert npu.code("aclrtSynchronizeStreamWithTimeout", stream, 1) == 507046
    npu("aclrtSynchronizeStream", stream)
    npu("aclrtFree", pointer)
    npu("aclrtDestroyStream", stream)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_N7_a_forked_child_gets_driver_errors(npu: Npu) -> None:
    child = os.fork()
    if not child:
        codes = [npu.code("aclrtSetDevice", 0), npu.code("aclrtSynchronizeDevice"), npu.code("aclFinalize")]
        os._exit(0 if codes == [507899] * 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    npu("aclrtSynchronizeDevice")


def test_N7_a_report_at_exit_names_what_is_wrong(acl_path: Path, tmp_path: Path) -> None:
    program = f"""if True:
        import ctypes
        c = ctypes.CDLL({str(acl_path)!r})
        c.aclInit(None), c.aclrtSetDevice(0)
        c.aclrtMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(64), 0)
        c.aclrtFree(ctypes.c_void_p(16))
    """
    report = tmp_path / "report"
    environment = {**os.environ, "GENIE_TEST_NPU_REPORT": str(report)}
    subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, check=True)
    lines = report.read_text().splitlines()
    assert "no device block" in lines[0] and "leaked device block" in lines[1] and lines[2] == "end of process"


def test_N7_many_threads_and_streams_keep_order(npu: Npu) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            npu("aclrtSetDevice", number % 2)
            streams = [npu.made("aclrtCreateStream") for _ in range(2)]
            event, pointer, n = npu.made("aclrtCreateEvent"), npu.malloc(64), c_size_t(64)
            for turn in range(50):
                npu("aclrtMemsetAsync", pointer, n, turn, n, streams[turn % 2])
                npu("aclrtRecordEvent", event, streams[turn % 2])
                npu("aclrtStreamWaitEvent", streams[1 - turn % 2], event)
            npu("aclrtSynchronizeStream", streams[1])
            npu("aclrtSynchronizeStream", streams[0])
            assert npu.get(pointer, 64) == bytes([49]) * 64
            npu("aclrtFree", pointer)
            npu("aclrtDestroyEvent", event)
            for stream in streams:
                npu("aclrtDestroyStream", stream)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("options", [("-fsanitize=thread",)], ids=["thread-sanitizer"])
def test_N7_builds_with_sanitizers(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = acl_library.build(tmp_path, *options)
    changed = path.stat().st_mtime_ns
    assert acl_library.build(tmp_path, *options) == path and path.stat().st_mtime_ns == changed  # cached
