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


def test_N7_devices_and_contexts_are_per_thread(bare: Npu) -> None:
    device, first = c_int32(), c_void_p()
    bare("aclrtGetCurrentContext", byref(first))
    codes: list[int] = []

    def other() -> None:
        codes.append(bare.code("aclrtGetDevice", byref(c_int32())))
        codes.append(bare.code("aclrtSetDevice", 1))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert codes == [107002, 0]
    bare("aclrtGetDevice", byref(device))
    assert device.value == 0
    context = bare.made("aclrtCreateContext", 1)
    bare("aclrtGetDevice", byref(device))
    assert device.value == 1  # a new context is the thread's
    bare("aclrtSetCurrentContext", first)
    bare("aclrtDestroyContext", context)
    bare("aclrtResetDevice", 1)
    bare("aclrtResetDevice", 0)
    assert bare.code("aclrtGetDevice", byref(device)) == 107002


def test_N7_memory_limits_and_errors(bare: Npu, monkeypatch: pytest.MonkeyPatch) -> None:
    free, total = c_size_t(), c_size_t()
    bare("aclrtGetMemInfo", 1, byref(free), byref(total))
    assert free.value == total.value == 1 << 30
    pointers = [bare.malloc(1), bare.malloc(1)]
    bare("aclrtGetMemInfo", 1, byref(free), byref(total))
    assert total.value - free.value == 2 * 64  # rounded to 32, and 32 of padding
    assert all(pointer.value % 32 == 0 for pointer in pointers)
    assert bare.code("aclrtMalloc", byref(c_void_p()), c_size_t(1 << 30), 0) == 207018
    for pointer in pointers:
        bare("aclrtFree", pointer)
    assert bare.code("aclrtFree", pointers[0]) == 100000
    bare.violated("freed twice")
    assert bare.code("aclrtFree", c_void_p(12345)) == 100000
    bare.violated("is no device block")
    assert bare.code("aclrtMalloc", byref(c_void_p()), c_size_t(0), 0) == 100000


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


def test_N7_copies_go_through_and_wrong_ones_are_found(bare: Npu) -> None:
    one, other = bare.malloc(64), bare.malloc(64)
    data, buffer, n = bytes(range(64)), ctypes.create_string_buffer(64), c_size_t(64)
    bare.put(one, data)
    bare("aclrtMemcpy", other, n, one, n, D2D)
    assert bare.get(other, 64) == data == bare.library.peek(other.value or 0, 64)
    for arguments, words in [
        ((buffer, n, other, n, H2D), "from device to host memory"),
        ((other, n, data, n, D2D), "from host to device memory"),
        ((other, c_size_t(32), data, n, H2D), "64 bytes for a room of 32"),
        ((other, c_size_t(999), bytes(999), c_size_t(999), H2D), "not inside a live block"),
        ((c_void_p((one.value or 0) + 8), n, one, c_size_t(32), D2D), "overlap"),
    ]:
        assert bare.code("aclrtMemcpy", *arguments) == 107000
        bare.violated(words)
    bare("aclrtFree", one)
    assert bare.code("aclrtMemcpy", one, n, data, n, H2D) == 107000
    bare.violated("not inside a live block")
    bare("aclrtSetDevice", 1)
    assert bare.code("aclrtMemcpy", other, n, data, n, H2D) == 107000
    bare.violated("memory of device 0 is used in a context of device 1")
    bare("aclrtFree", other)


def test_N7_queued_copies_on_a_device_need_alignment(bare: Npu) -> None:
    pointer = bare.malloc(4096)
    start = -(-(pointer.value or 0) // 64) * 64
    n = c_size_t(64)
    bare("aclrtMemset", pointer, c_size_t(4096), 7, c_size_t(4096))
    bare("aclrtMemcpyAsync", c_void_p(start), n, c_void_p(start + 64), n, D2D, None)
    assert bare.code("aclrtMemcpyAsync", c_void_p(start), n, c_void_p(start + 96), n, D2D, None) == 107000
    bare.violated("64-byte alignment")
    bare("aclrtSynchronizeStream", None)
    bare("aclrtFree", pointer)


def test_N7_peer_copies_must_be_enabled(bare: Npu, monkeypatch: pytest.MonkeyPatch) -> None:
    here, n, can = bare.malloc(64), c_size_t(64), c_int32()
    bare("aclrtSetDevice", 1)
    there = bare.malloc(64)
    bare.put(there, bytes(range(64)))
    assert bare.code("aclrtMemcpy", here, n, there, n, D2D) == 507899
    bare("aclrtDeviceCanAccessPeer", byref(can), 1, 0)
    bare("aclrtDeviceEnablePeerAccess", 0, 0)
    bare("aclrtMemcpy", here, n, there, n, D2D)
    assert can.value == 1 and bare.library.peek(here.value or 0, 64) == bytes(range(64))
    bare("aclrtDeviceDisablePeerAccess", 0)
    assert bare.code("aclrtMemcpy", here, n, there, n, D2D) == 507899
    bare("aclrtFree", here)
    bare("aclrtFree", there)


def test_N7_streams_work_in_order_and_later(bare: Npu) -> None:
    stream, pointer = bare.made("aclrtCreateStreamWithConfig", 7, 3), bare.malloc(64)
    bare("aclrtMemset", pointer, c_size_t(64), 0, c_size_t(64))
    buffer, n, status = ctypes.create_string_buffer(b"a" * 64, 64), c_size_t(64), c_int()
    bare.library.hold(stream.value)
    bare("aclrtMemcpyAsync", pointer, n, buffer, n, H2D, stream)
    bare("aclrtMemsetAsync", pointer, n, ord("z"), c_size_t(8), stream)
    bare("aclrtStreamQuery", stream, byref(status))
    assert status.value == 1 and bare.library.peek(pointer.value or 0, 1) == b"\0"
    assert bare.code("aclrtSynchronizeStreamWithTimeout", stream, 0) == 507046
    assert bare.code("aclrtSynchronizeStreamWithTimeout", stream, 1) == 507046
    buffer[63] = b"b"  # the buffer is read when the work runs
    bare.library.release(stream.value)
    bare("aclrtSynchronizeStreamWithTimeout", stream, -1)
    assert bare.get(pointer, 64) == b"z" * 8 + b"a" * 55 + b"b"
    bare("aclrtStreamQuery", stream, byref(status))
    assert status.value == 0
    bare("aclrtFree", pointer)
    bare("aclrtDestroyStream", stream)
    assert bare.code("aclrtSynchronizeStream", stream) == 107017
    bare.violated("was destroyed before")
    assert bare.code("aclrtCreateStreamWithConfig", byref(stream), 8, 0) == 107000


def test_N7_stream_of_another_context_is_refused(bare: Npu) -> None:
    stream, event = bare.made("aclrtCreateStream"), bare.made("aclrtCreateEvent")
    bare("aclrtSetDevice", 1)
    assert bare.code("aclrtSynchronizeStream", stream) == 107003
    bare.violated("stream")
    assert bare.code("aclrtRecordEvent", event, None) == 107003
    bare.violated("event")
    bare("aclrtSetDevice", 0)
    bare("aclrtDestroyEvent", event)
    bare("aclrtDestroyStream", stream)


def test_N7_events_order_streams_and_tell_the_time(bare: Npu) -> None:
    one, other, pointer = bare.made("aclrtCreateStream"), bare.made("aclrtCreateStream"), bare.malloc(64)
    start = bare.made("aclrtCreateEventWithFlag", 8)
    end = bare.made("aclrtCreateEventExWithFlag", 8)
    plain = bare.made("aclrtCreateEventWithFlag", 1)
    old, new, time, n = c_int(), c_int(), c_float(), c_size_t(64)
    bare.library.hold(one.value)
    bare("aclrtRecordEvent", start, one)
    bare("aclrtMemsetAsync", pointer, n, 1, n, one)
    bare("aclrtRecordEvent", end, one)
    bare("aclrtStreamWaitEvent", other, end)
    bare("aclrtMemsetAsync", pointer, n, 2, c_size_t(1), other)
    bare("aclrtQueryEvent", end, byref(old))
    bare("aclrtQueryEventStatus", end, byref(new))
    assert (old.value, new.value) == (1 - COMPLETE_OLD, 1 - COMPLETE_STATUS)
    assert bare.code("aclrtEventElapsedTime", byref(time), start, end) == 107006
    bare.library.release(one.value)
    bare("aclrtSynchronizeStream", other)
    assert bare.library.peek(pointer.value or 0, 3) == b"\2\1\1"
    bare("aclrtSynchronizeEvent", end)
    bare("aclrtQueryEvent", end, byref(old))
    bare("aclrtQueryEventStatus", end, byref(new))
    assert (old.value, new.value) == (COMPLETE_OLD, COMPLETE_STATUS)
    bare("aclrtEventElapsedTime", byref(time), start, end)
    assert time.value >= 0
    bare("aclrtRecordEvent", plain, one)
    bare("aclrtSynchronizeEvent", plain)
    assert bare.code("aclrtEventElapsedTime", byref(time), start, plain) == 107006
    for event in (start, end, plain):
        bare("aclrtDestroyEvent", event)
    bare("aclrtFree", pointer)
    bare("aclrtDestroyStream", one)
    bare("aclrtDestroyStreamForce", other)


def test_N7_a_wait_means_the_record_before_it(bare: Npu) -> None:
    one, other, event = bare.made("aclrtCreateStream"), bare.made("aclrtCreateStream"), bare.made("aclrtCreateEvent")
    bare("aclrtStreamWaitEvent", other, event)  # never recorded: nothing to wait for
    bare("aclrtRecordEvent", event, one)
    bare("aclrtSynchronizeStream", one)
    bare("aclrtStreamWaitEvent", other, event)
    bare.library.hold(one.value)
    bare("aclrtRecordEvent", event, one)  # later than the wait
    bare("aclrtSynchronizeStream", other)
    status = c_int()
    bare("aclrtQueryEvent", event, byref(status))
    assert status.value == 1
    bare.code("aclrtDestroyEvent", event)
    bare.violated("is destroyed while 1 queued uses wait")
    bare.library.release()
    for stream in (one, other):
        bare("aclrtDestroyStream", stream)


def test_N7_a_reset_event_is_as_never_recorded(bare: Npu) -> None:
    event, status = bare.made("aclrtCreateEvent"), c_int()
    bare("aclrtRecordEvent", event, None)
    bare("aclrtResetEvent", event, None)
    bare("aclrtSynchronizeStream", None)
    assert bare.code("aclrtEventElapsedTime", byref(c_float()), event, event) == 107006
    bare("aclrtQueryEventStatus", event, byref(status))
    assert status.value == COMPLETE_STATUS
    bare("aclrtDestroyEvent", event)


def test_N7_a_forced_end_gives_up_what_is_queued(bare: Npu) -> None:
    one, other = bare.made("aclrtCreateStream"), bare.made("aclrtCreateStream")
    event, pointer = bare.made("aclrtCreateEvent"), bare.malloc(8)
    bare.library.hold(one.value)
    bare("aclrtRecordEvent", event, one)
    bare("aclrtStreamWaitEvent", other, event)
    bare("aclrtMemsetAsync", pointer, c_size_t(8), 1, c_size_t(8), other)
    bare("aclrtDestroyStreamForce", other)  # does not wait for the event
    assert bare.library.peek(pointer.value or 0, 8) == b"\xff" * 8
    bare("aclrtDestroyStream", one)
    bare("aclrtFree", pointer)
    bare("aclrtDestroyEvent", event)


def test_N7_what_outlives_its_device_is_found(bare: Npu) -> None:
    bare.made("aclrtCreateStream")
    bare.made("aclrtCreateEvent")
    bare.malloc(8)
    bare.made("aclrtCreateContext", 0)
    bare("aclrtResetDevice", 0)
    assert {line.split(" 0x")[0] for line in bare.library.violations()} == {
        f"aclrtResetDevice: {kind}" for kind in ("stream", "event", "block", "context")
    }
    bare.library.clear()
    assert bare.library.leaks() == []


def test_N7_messages_are_told_once_and_per_thread(bare: Npu) -> None:
    messages: list[bytes | None] = []
    assert bare.code("aclrtSetDevice", 99) == 107001
    thread = threading.Thread(target=lambda: messages.append(bare.library.c.aclGetRecentErrMsg()))
    thread.start()
    thread.join()
    assert messages == [None]
    assert bare.library.c.aclGetRecentErrMsg() == b"aclrtSetDevice: device 99 of 2"
    assert bare.library.c.aclGetRecentErrMsg() is None


def test_N7_unordered_uses_of_memory_are_found_when_queued(bare: Npu) -> None:
    one, other, pointer = bare.made("aclrtCreateStream"), bare.made("aclrtCreateStream"), bare.malloc(128)
    event, n = bare.made("aclrtCreateEvent"), c_size_t(64)
    bare("aclrtMemsetAsync", pointer, n, 1, n, one)
    bare("aclrtMemsetAsync", c_void_p((pointer.value or 0) + 64), n, 1, n, other)  # elsewhere: nothing wrong
    bare("aclrtMemsetAsync", pointer, n, 2, n, other)
    bare.violated("are written without waiting for work that writes them")
    bare("aclrtSynchronizeDevice")
    bare("aclrtMemsetAsync", pointer, n, 1, n, one)
    bare("aclrtRecordEvent", event, one)
    bare("aclrtStreamWaitEvent", other, event)
    bare("aclrtMemsetAsync", pointer, n, 2, n, other)  # behind the event
    bare("aclrtMemsetAsync", pointer, n, 3, n, one)
    bare.violated("are written without waiting")
    bare("aclrtMemset", pointer, n, 0, n)
    assert len(bare.library.violations()) == 2  # of both streams
    bare.library.clear()
    bare("aclrtFree", pointer)
    bare.violated("freed without having waited")
    bare("aclrtSynchronizeDevice")
    bare("aclrtDestroyEvent", event)
    for stream in (one, other):
        bare("aclrtDestroyStream", stream)


def test_N7_block_freed_under_queued_work_is_found(bare: Npu) -> None:
    stream, pointer = bare.made("aclrtCreateStream"), bare.malloc(64)
    host = bare.made("aclrtMallocHost", c_size_t(64))
    bare.library.hold()
    bare("aclrtMemcpyAsync", pointer, c_size_t(64), host, c_size_t(64), H2D, stream)
    bare("aclrtFree", pointer)
    bare.violated("freed without having waited")
    bare("aclrtFreeHost", host)
    bare.violated("freed without having waited")
    bare.library.release()
    bare("aclrtDestroyStream", stream)


def test_N7_leaks_are_told_at_the_end(bare: Npu) -> None:
    bare.malloc(64)
    bare.made("aclrtMallocHost", c_size_t(9))
    for create in ("aclrtCreateEvent", "aclrtCreateStream"):
        bare.made(create)
    bare.made("aclrtCreateContext", 1)
    kinds = {"context", "stream", "event", "device block", "host block"}
    assert {line.removeprefix("leaked ").split(" 0x")[0] for line in bare.library.leaks()} == kinds
    bare("aclFinalize")
    found = [line for line in bare.library.violations() if line.startswith("leaked ")]
    assert {line.removeprefix("leaked ").split(" 0x")[0] for line in found} == kinds and len(found) == 5
    bare.library.clear()
    assert bare.library.leaks() == []


def test_N7_injected_faults_hit_the_call_they_name(bare: Npu) -> None:
    bare.library.clear()
    bare.library.fail("aclrtMalloc", 2, 207018)
    first = bare.malloc(8)
    assert bare.code("aclrtMalloc", byref(c_void_p()), c_size_t(8), 0) == 207018
    assert bare.library.c.aclGetRecentErrMsg() == b"aclrtMalloc: injected fault 207018"
    bare.library.fail(nth=2)
    second = bare.malloc(8)
    assert bare.code("aclrtSynchronizeDevice") == 507899
    bare.library.fail("aclrtFree", 1, 507899)
    assert bare.code("aclrtFree", first) == 507899  # freed nevertheless
    bare("aclrtFree", second)
    assert bare.library.calls("aclrtMalloc") == 3 and bare.library.calls() == 6
    bare.library.fail("aclrtMalloc", 5)
    assert bare.library.clear() == 1 and bare.library.calls() == 0


def test_N7_stalls_and_delays_hold_work_up(bare: Npu) -> None:
    stream, status, pointer = bare.made("aclrtCreateStream"), c_int(), bare.malloc(64)
    assert bare.library.stall(stream.value, 30) == 1
    bare("aclrtStreamQuery", stream, byref(status))
    assert status.value == 1
    bare.library.delay_copies(30)
    data = bytes(64)
    bare.put(pointer, data, stream)
    assert bare.code("aclrtSynchronizeStreamWithTimeout", stream, 1) == 507046
    bare("aclrtSynchronizeStream", stream)
    bare("aclrtFree", pointer)
    bare("aclrtDestroyStream", stream)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_N7_a_forked_child_gets_driver_errors(bare: Npu) -> None:
    child = os.fork()
    if not child:
        codes = [bare.code("aclrtSetDevice", 0), bare.code("aclrtSynchronizeDevice"), bare.code("aclFinalize")]
        os._exit(0 if codes == [507899] * 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    bare("aclrtSynchronizeDevice")


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


def test_N7_many_threads_and_streams_keep_order(bare: Npu) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            bare("aclrtSetDevice", number % 2)
            streams = [bare.made("aclrtCreateStream") for _ in range(2)]
            event, pointer, n = bare.made("aclrtCreateEvent"), bare.malloc(64), c_size_t(64)
            for turn in range(50):
                bare("aclrtMemsetAsync", pointer, n, turn, n, streams[turn % 2])
                bare("aclrtRecordEvent", event, streams[turn % 2])
                bare("aclrtStreamWaitEvent", streams[1 - turn % 2], event)
            bare("aclrtSynchronizeStream", streams[1])
            bare("aclrtSynchronizeStream", streams[0])
            assert bare.get(pointer, 64) == bytes([49]) * 64
            bare("aclrtFree", pointer)
            bare("aclrtDestroyEvent", event)
            for stream in streams:
                bare("aclrtDestroyStream", stream)
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
