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


def test_N7_counts_devices_by_environment(
    acl: acl_library.Library, monkeypatch: pytest.MonkeyPatch, unkind: bool
) -> None:
    monkeypatch.setenv("GENIE_TEST_NPU_DEVICES", "8")
    acl.reset()
    count, early = c_uint32(), c_int()
    Npu(acl)("drvGetDevNum", byref(early))  # needs no initialization
    assert acl.c.aclrtGetDeviceCount(byref(count)) == (0 if unkind else 100001)
    Npu(acl)("aclInit", None)
    Npu(acl)("aclrtGetDeviceCount", byref(count))
    assert (early.value, count.value) == (8, 8)
    assert acl.c.aclrtSetDevice(7) == 0 and acl.c.aclrtSetDevice(8) == 107001
    assert b"aclrtSetDevice: device 8 of 8" in acl.c.aclGetRecentErrMsg()
    assert acl.c.aclrtGetSocName() == b"Ascend910B1-GenieTest"
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


def test_N7_devices_and_contexts_are_per_thread(calls: Npu) -> None:
    device, first = c_int32(), c_void_p()
    calls("aclrtGetCurrentContext", byref(first))
    codes: list[int] = []

    def other() -> None:
        codes.append(calls.code("aclrtGetDevice", byref(c_int32())))
        codes.append(calls.code("aclrtSetDevice", 1))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert codes == [107002, 0]
    calls("aclrtGetDevice", byref(device))
    assert device.value == 0
    context = calls.made("aclrtCreateContext", 1)
    calls("aclrtGetDevice", byref(device))
    assert device.value == 1  # a new context is the thread's
    calls("aclrtSetCurrentContext", first)
    calls("aclrtDestroyContext", context)
    calls("aclrtResetDevice", 1)
    calls("aclrtResetDevice", 0)
    assert calls.code("aclrtGetDevice", byref(device)) == 107002


def test_N7_memory_limits_and_errors(calls: Npu, monkeypatch: pytest.MonkeyPatch) -> None:
    free, total = c_size_t(), c_size_t()
    calls("aclrtGetMemInfo", 1, byref(free), byref(total))
    assert free.value == total.value == 1 << 30
    pointers = [calls.malloc(1), calls.malloc(1)]
    calls("aclrtGetMemInfo", 1, byref(free), byref(total))
    assert total.value - free.value == 2 * 64  # rounded to 32, and 32 of padding
    assert all(pointer.value % 32 == 0 for pointer in pointers)
    assert calls.code("aclrtMalloc", byref(c_void_p()), c_size_t(1 << 30), 0) == 207018
    for pointer in pointers:
        calls("aclrtFree", pointer)
    assert calls.code("aclrtFree", pointers[0]) == 100000
    calls.violated("freed twice")
    assert calls.code("aclrtFree", c_void_p(12345)) == 100000
    calls.violated("is no device block")
    assert calls.code("aclrtMalloc", byref(c_void_p()), c_size_t(0), 0) == 100000


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


def test_N7_copies_go_through_and_wrong_ones_are_found(calls: Npu) -> None:
    one, other = calls.malloc(64), calls.malloc(64)
    data, buffer, n = bytes(range(64)), ctypes.create_string_buffer(64), c_size_t(64)
    calls.put(one, data)
    calls("aclrtMemcpy", other, n, one, n, D2D)
    assert calls.get(other, 64) == data == calls.library.peek(other.value or 0, 64)
    for arguments, words in [
        ((buffer, n, other, n, H2D), "from device to host memory"),
        ((other, n, data, n, D2D), "from host to device memory"),
        ((other, c_size_t(32), data, n, H2D), "64 bytes for a room of 32"),
        ((other, c_size_t(999), bytes(999), c_size_t(999), H2D), "not inside a live block"),
        ((c_void_p((one.value or 0) + 8), n, one, c_size_t(32), D2D), "overlap"),
    ]:
        assert calls.code("aclrtMemcpy", *arguments) == 107000
        calls.violated(words)
    calls("aclrtFree", one)
    assert calls.code("aclrtMemcpy", one, n, data, n, H2D) == 107000
    calls.violated("not inside a live block")
    calls("aclrtSetDevice", 1)
    assert calls.code("aclrtMemcpy", other, n, data, n, H2D) == 107000
    calls.violated("memory of device 0 is used in a context of device 1")
    calls("aclrtFree", other)


def test_N7_queued_copies_on_a_device_need_alignment(calls: Npu) -> None:
    pointer = calls.malloc(4096)
    start = -(-(pointer.value or 0) // 64) * 64
    n = c_size_t(64)
    calls("aclrtMemset", pointer, c_size_t(4096), 7, c_size_t(4096))
    calls("aclrtMemcpyAsync", c_void_p(start), n, c_void_p(start + 64), n, D2D, None)
    assert calls.code("aclrtMemcpyAsync", c_void_p(start), n, c_void_p(start + 96), n, D2D, None) == 107000
    calls.violated("64-byte alignment")
    calls("aclrtSynchronizeStream", None)
    calls("aclrtFree", pointer)


def test_N7_peer_copies_must_be_enabled(calls: Npu, monkeypatch: pytest.MonkeyPatch) -> None:
    here, n, can = calls.malloc(64), c_size_t(64), c_int32()
    calls("aclrtSetDevice", 1)
    there = calls.malloc(64)
    calls.put(there, bytes(range(64)))
    assert calls.code("aclrtMemcpy", here, n, there, n, D2D) == 507899
    calls("aclrtDeviceCanAccessPeer", byref(can), 1, 0)
    calls("aclrtDeviceEnablePeerAccess", 0, 0)
    calls("aclrtMemcpy", here, n, there, n, D2D)
    assert can.value == 1 and calls.library.peek(here.value or 0, 64) == bytes(range(64))
    calls("aclrtDeviceDisablePeerAccess", 0)
    assert calls.code("aclrtMemcpy", here, n, there, n, D2D) == 507899
    calls("aclrtFree", here)
    calls("aclrtFree", there)


def test_N7_streams_work_in_order_and_later(calls: Npu) -> None:
    stream, pointer = calls.made("aclrtCreateStreamWithConfig", 7, 3), calls.malloc(64)
    calls("aclrtMemset", pointer, c_size_t(64), 0, c_size_t(64))
    buffer, n, status = ctypes.create_string_buffer(b"a" * 64, 64), c_size_t(64), c_int()
    calls.library.hold(stream.value)
    calls("aclrtMemcpyAsync", pointer, n, buffer, n, H2D, stream)
    calls("aclrtMemsetAsync", pointer, n, ord("z"), c_size_t(8), stream)
    calls("aclrtStreamQuery", stream, byref(status))
    assert status.value == 1 and calls.library.peek(pointer.value or 0, 1) == b"\0"
    assert calls.code("aclrtSynchronizeStreamWithTimeout", stream, 0) == 507046
    assert calls.code("aclrtSynchronizeStreamWithTimeout", stream, 1) == 507046
    buffer[63] = b"b"  # the buffer is read when the work runs
    calls.library.release(stream.value)
    calls("aclrtSynchronizeStreamWithTimeout", stream, -1)
    assert calls.get(pointer, 64) == b"z" * 8 + b"a" * 55 + b"b"
    calls("aclrtStreamQuery", stream, byref(status))
    assert status.value == 0
    calls("aclrtFree", pointer)
    calls("aclrtDestroyStream", stream)
    assert calls.code("aclrtSynchronizeStream", stream) == 107017
    calls.violated("was destroyed before")
    assert calls.code("aclrtCreateStreamWithConfig", byref(stream), 8, 0) == 107000


def test_N7_stream_of_another_context_is_refused(calls: Npu) -> None:
    stream, event = calls.made("aclrtCreateStream"), calls.made("aclrtCreateEvent")
    calls("aclrtSetDevice", 1)
    assert calls.code("aclrtSynchronizeStream", stream) == 107003
    calls.violated("stream")
    assert calls.code("aclrtRecordEvent", event, None) == 107003
    calls.violated("event")
    calls("aclrtSetDevice", 0)
    calls("aclrtDestroyEvent", event)
    calls("aclrtDestroyStream", stream)


def test_N7_events_order_streams_and_tell_the_time(calls: Npu) -> None:
    one, other, pointer = calls.made("aclrtCreateStream"), calls.made("aclrtCreateStream"), calls.malloc(64)
    start = calls.made("aclrtCreateEventWithFlag", 8)
    end = calls.made("aclrtCreateEventExWithFlag", 8)
    plain = calls.made("aclrtCreateEventWithFlag", 1)
    old, new, time, n = c_int(), c_int(), c_float(), c_size_t(64)
    calls.library.hold(one.value)
    calls("aclrtRecordEvent", start, one)
    calls("aclrtMemsetAsync", pointer, n, 1, n, one)
    calls("aclrtRecordEvent", end, one)
    calls("aclrtStreamWaitEvent", other, end)
    calls("aclrtMemsetAsync", pointer, n, 2, c_size_t(1), other)
    calls("aclrtQueryEvent", end, byref(old))
    calls("aclrtQueryEventStatus", end, byref(new))
    assert (old.value, new.value) == (1 - COMPLETE_OLD, 1 - COMPLETE_STATUS)
    assert calls.code("aclrtEventElapsedTime", byref(time), start, end) == 107006
    calls.library.release(one.value)
    calls("aclrtSynchronizeStream", other)
    assert calls.library.peek(pointer.value or 0, 3) == b"\2\1\1"
    calls("aclrtSynchronizeEvent", end)
    calls("aclrtQueryEvent", end, byref(old))
    calls("aclrtQueryEventStatus", end, byref(new))
    assert (old.value, new.value) == (COMPLETE_OLD, COMPLETE_STATUS)
    calls("aclrtEventElapsedTime", byref(time), start, end)
    assert time.value >= 0
    calls("aclrtRecordEvent", plain, one)
    calls("aclrtSynchronizeEvent", plain)
    assert calls.code("aclrtEventElapsedTime", byref(time), start, plain) == 107006
    for event in (start, end, plain):
        calls("aclrtDestroyEvent", event)
    calls("aclrtFree", pointer)
    calls("aclrtDestroyStream", one)
    calls("aclrtDestroyStreamForce", other)


def test_N7_a_wait_means_the_record_before_it(calls: Npu) -> None:
    one, other, event = calls.made("aclrtCreateStream"), calls.made("aclrtCreateStream"), calls.made("aclrtCreateEvent")
    calls("aclrtStreamWaitEvent", other, event)  # never recorded: nothing to wait for
    calls("aclrtRecordEvent", event, one)
    calls("aclrtSynchronizeStream", one)
    calls("aclrtStreamWaitEvent", other, event)
    calls.library.hold(one.value)
    calls("aclrtRecordEvent", event, one)  # later than the wait
    calls("aclrtSynchronizeStream", other)
    status = c_int()
    calls("aclrtQueryEvent", event, byref(status))
    assert status.value == 1
    calls.code("aclrtDestroyEvent", event)
    calls.violated("is destroyed while 1 queued uses wait")
    calls.library.release()
    for stream in (one, other):
        calls("aclrtDestroyStream", stream)


def test_N7_a_reset_event_is_as_never_recorded(calls: Npu) -> None:
    event, status = calls.made("aclrtCreateEvent"), c_int()
    calls("aclrtRecordEvent", event, None)
    calls("aclrtResetEvent", event, None)
    calls("aclrtSynchronizeStream", None)
    assert calls.code("aclrtEventElapsedTime", byref(c_float()), event, event) == 107006
    calls("aclrtQueryEventStatus", event, byref(status))
    assert status.value == COMPLETE_STATUS
    calls("aclrtDestroyEvent", event)


def test_N7_a_forced_end_gives_up_what_is_queued(calls: Npu) -> None:
    one, other = calls.made("aclrtCreateStream"), calls.made("aclrtCreateStream")
    event, pointer = calls.made("aclrtCreateEvent"), calls.malloc(8)
    calls.library.hold(one.value)
    calls("aclrtRecordEvent", event, one)
    calls("aclrtStreamWaitEvent", other, event)
    calls("aclrtMemsetAsync", pointer, c_size_t(8), 1, c_size_t(8), other)
    calls("aclrtDestroyStreamForce", other)  # does not wait for the event
    assert calls.library.peek(pointer.value or 0, 8) == b"\xff" * 8
    calls("aclrtDestroyStream", one)
    calls("aclrtFree", pointer)
    calls("aclrtDestroyEvent", event)


def test_N7_what_outlives_its_device_is_found(calls: Npu) -> None:
    calls.made("aclrtCreateStream")
    calls.made("aclrtCreateEvent")
    calls.malloc(8)
    calls.made("aclrtCreateContext", 0)
    calls("aclrtResetDevice", 0)
    assert {line.split(" 0x")[0] for line in calls.library.violations()} == {
        f"aclrtResetDevice: {kind}" for kind in ("stream", "event", "block", "context")
    }
    calls.library.clear()
    assert calls.library.leaks() == []


def test_N7_messages_are_told_once_and_per_thread(calls: Npu) -> None:
    messages: list[bytes | None] = []
    assert calls.code("aclrtSetDevice", 99) == 107001
    thread = threading.Thread(target=lambda: messages.append(calls.library.c.aclGetRecentErrMsg()))
    thread.start()
    thread.join()
    assert messages == [None]
    assert calls.library.c.aclGetRecentErrMsg() == b"aclrtSetDevice: device 99 of 2"
    assert calls.library.c.aclGetRecentErrMsg() is None


def test_N7_unordered_uses_of_memory_are_found_when_queued(calls: Npu) -> None:
    one, other, pointer = calls.made("aclrtCreateStream"), calls.made("aclrtCreateStream"), calls.malloc(128)
    event, n = calls.made("aclrtCreateEvent"), c_size_t(64)
    calls("aclrtMemsetAsync", pointer, n, 1, n, one)
    calls("aclrtMemsetAsync", c_void_p((pointer.value or 0) + 64), n, 1, n, other)  # elsewhere: nothing wrong
    calls("aclrtMemsetAsync", pointer, n, 2, n, other)
    calls.violated("are written without waiting for work that writes them")
    calls("aclrtSynchronizeDevice")
    calls("aclrtMemsetAsync", pointer, n, 1, n, one)
    calls("aclrtRecordEvent", event, one)
    calls("aclrtStreamWaitEvent", other, event)
    calls("aclrtMemsetAsync", pointer, n, 2, n, other)  # behind the event
    calls("aclrtMemsetAsync", pointer, n, 3, n, one)
    calls.violated("are written without waiting")
    calls("aclrtMemset", pointer, n, 0, n)
    assert len(calls.library.violations()) == 2  # of both streams
    calls.library.clear()
    calls("aclrtFree", pointer)
    calls.violated("freed without having waited")
    calls("aclrtSynchronizeDevice")
    calls("aclrtDestroyEvent", event)
    for stream in (one, other):
        calls("aclrtDestroyStream", stream)


def test_N7_block_freed_under_queued_work_is_found(calls: Npu) -> None:
    stream, pointer = calls.made("aclrtCreateStream"), calls.malloc(64)
    host = calls.made("aclrtMallocHost", c_size_t(64))
    calls.library.hold()
    calls("aclrtMemcpyAsync", pointer, c_size_t(64), host, c_size_t(64), H2D, stream)
    calls("aclrtFree", pointer)
    calls.violated("freed without having waited")
    calls("aclrtFreeHost", host)
    calls.violated("freed without having waited")
    calls.library.release()
    calls("aclrtDestroyStream", stream)


def test_N7_leaks_are_told_at_the_end(calls: Npu) -> None:
    calls.malloc(64)
    calls.made("aclrtMallocHost", c_size_t(9))
    for create in ("aclrtCreateEvent", "aclrtCreateStream"):
        calls.made(create)
    calls.made("aclrtCreateContext", 1)
    kinds = {"context", "stream", "event", "device block", "host block"}
    assert {line.removeprefix("leaked ").split(" 0x")[0] for line in calls.library.leaks()} == kinds
    calls("aclFinalize")
    found = [line for line in calls.library.violations() if line.startswith("leaked ")]
    assert {line.removeprefix("leaked ").split(" 0x")[0] for line in found} == kinds and len(found) == 5
    calls.library.clear()
    assert calls.library.leaks() == []


def test_N7_injected_faults_hit_the_call_they_name(calls: Npu) -> None:
    calls.library.clear()
    calls.library.fail("aclrtMalloc", 2, 207018)
    first = calls.malloc(8)
    assert calls.code("aclrtMalloc", byref(c_void_p()), c_size_t(8), 0) == 207018
    assert calls.library.c.aclGetRecentErrMsg() == b"aclrtMalloc: injected fault 207018"
    calls.library.fail(nth=2)
    second = calls.malloc(8)
    assert calls.code("aclrtSynchronizeDevice") == 507899
    calls.library.fail("aclrtFree", 1, 507899)
    assert calls.code("aclrtFree", first) == 507899  # freed nevertheless
    calls("aclrtFree", second)
    assert calls.library.calls("aclrtMalloc") == 3 and calls.library.calls() == 6
    calls.library.fail("aclrtMalloc", 5)
    assert calls.library.clear() == 1 and calls.library.calls() == 0


def test_N7_stalls_and_delays_hold_work_up(calls: Npu) -> None:
    stream, status, pointer = calls.made("aclrtCreateStream"), c_int(), calls.malloc(64)
    assert calls.library.stall(stream.value, 30) == 1
    calls("aclrtStreamQuery", stream, byref(status))
    assert status.value == 1
    calls.library.delay_copies(30)
    data = bytes(64)
    calls.put(pointer, data, stream)
    assert calls.code("aclrtSynchronizeStreamWithTimeout", stream, 1) == 507046
    calls("aclrtSynchronizeStream", stream)
    calls("aclrtFree", pointer)
    calls("aclrtDestroyStream", stream)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_N7_a_forked_child_gets_driver_errors(calls: Npu) -> None:
    child = os.fork()
    if not child:
        codes = [calls.code("aclrtSetDevice", 0), calls.code("aclrtSynchronizeDevice"), calls.code("aclFinalize")]
        os._exit(0 if codes == [507899] * 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    calls("aclrtSynchronizeDevice")


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


def test_N7_many_threads_and_streams_keep_order(calls: Npu) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            calls("aclrtSetDevice", number % 2)
            streams = [calls.made("aclrtCreateStream") for _ in range(2)]
            event, pointer, n = calls.made("aclrtCreateEvent"), calls.malloc(64), c_size_t(64)
            for turn in range(50):
                calls("aclrtMemsetAsync", pointer, n, turn, n, streams[turn % 2])
                calls("aclrtRecordEvent", event, streams[turn % 2])
                calls("aclrtStreamWaitEvent", streams[1 - turn % 2], event)
            calls("aclrtSynchronizeStream", streams[1])
            calls("aclrtSynchronizeStream", streams[0])
            assert calls.get(pointer, 64) == bytes([49]) * 64
            calls("aclrtFree", pointer)
            calls("aclrtDestroyEvent", event)
            for stream in streams:
                calls("aclrtDestroyStream", stream)
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
