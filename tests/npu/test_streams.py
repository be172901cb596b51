"""N2, N3, S10: the runtime pool; what is current in each thread."""

from __future__ import annotations

import threading

import pytest
import torch
from device_memory import block_of, get

import mindtorch
from mindtorch._ext import blocks

FORKED = (
    "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the 'spawn' start "
    "method"
)


def in_thread(function):
    """What it returns in a new thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(60)
    assert found, "the thread failed or hangs"
    return found[0]


# The pool.


def test_N2_sixty_four_threads_make_one_runtime(in_npu_process):
    said = in_npu_process(
        """
        import os, pathlib, threading
        import acl_library
        library = acl_library.Library(pathlib.Path(os.environ["GENIE_ACL_LIBRARY"]))
        from mindtorch import npu
        gate, found = threading.Barrier(64), []
        def ask(index):
            gate.wait()
            found.append((index, npu.get_runtime(index)))
        threads = [threading.Thread(target=ask, args=(i % 3,)) for i in range(64)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        print(len(found), len(set(found)), library.calls("aclInit"), library.calls("aclrtSetDevice"),
              library.calls("aclrtCreateStreamWithConfig"))
        """,
        devices=3,
    )
    assert said == "64 3 1 3 3\n"


def test_N2_a_runtime_is_made_when_it_is_needed(in_npu_process):
    said = in_npu_process(
        """
        import os, pathlib
        import acl_library
        library = acl_library.Library(pathlib.Path(os.environ["GENIE_ACL_LIBRARY"]))
        from mindtorch import npu
        npu.set_device(1)
        with npu.device(0):
            print(library.calls("aclrtSetDevice"))
        runtime = npu.get_runtime(1)
        print(library.calls("aclrtSetDevice"), runtime.device_index, runtime.default_stream == npu.current_stream())
        """
    )
    assert said == "0\n1 1 True\n"


def test_N2_each_device_has_its_own_context(npu, devices):
    devices(2)
    one, two = npu.get_runtime(0), npu.get_runtime(1)
    assert one is npu.get_runtime(0) and one.context != two.context and one.context and two.context
    assert one.default_stream != two.default_stream


def test_N2_bad_indices_are_named_with_the_count(npu):
    count = npu.device_count()
    for use in (npu.get_runtime, npu.set_device, npu.Stream, npu.current_stream, npu.mem_get_info, npu.synchronize,
                npu.memory_allocated, npu.get_device_name):  # fmt: skip
        for index in (count, 127, 128, 4000, 2**31, 2**70):
            with pytest.raises(RuntimeError, match=f"device index {index}: {count} NPU"):
                use(index)
    with pytest.raises(RuntimeError, match=f"device index {count}: {count} NPU"), npu.device(count):
        pass
    for use in (npu.get_runtime, npu.Stream, npu.mem_get_info, npu.current_stream):
        for index in (-2, -3, -(2**31), -(2**70)):
            with pytest.raises(RuntimeError, match=f"device index {index}: {count} NPU"):
                use(index)


@pytest.mark.parametrize("wrong", ["cpu", "cuda:0", torch.device("cpu"), mindtorch.device("meta:1"), 1.5, [0]])
def test_N3_other_devices_are_refused(npu, wrong):
    for use in (npu.set_device, npu.device, npu.Stream, npu.current_stream, npu.synchronize, npu.memory_allocated,
                npu.get_device_properties, npu.empty_cache):  # fmt: skip
        with pytest.raises(ValueError) as caught:
            use(wrong)
        assert str(caught.value) == f"Expected a npu device, but got: {wrong}"


def test_N2_use_after_fork_is_refused(in_npu_process):
    said = in_npu_process(
        """
        import os
        from mindtorch import npu
        from mindtorch._ext import blocks, pool
        held, event = blocks.allocate(1, 1000), npu.Event()
        event.record()
        uses = [lambda: npu.current_stream(), lambda: npu.Stream(1), lambda: npu.synchronize(),
                lambda: blocks.allocate(0, 1), lambda: blocks.fill(held, 0, 1, 1), event.query, event.record,
                lambda: npu.mem_get_info(), lambda: blocks.Pinned(10), npu.init, npu.current_device]
        child = os.fork()
        if child == 0:
            for use in uses:
                try:
                    print(use(), flush=True)
                except RuntimeError as error:
                    print(error, flush=True)
            del held, event
            print(pool.in_bad_fork(), npu.is_initialized(), npu.device_count(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        blocks.fill(held, 0, 1, 1)
        event.synchronize()
        print("the parent goes on", event.query())
        """
    ).splitlines()
    assert said == [
        *[FORKED] * 10, "0", "True False 2", "the parent goes on True",
    ]  # fmt: skip


def test_N2_only_an_initialized_process_must_not_be_forked(in_npu_process):
    said = in_npu_process(
        """
        import os
        from mindtorch import npu
        from mindtorch._ext import pool
        print(npu.device_count(), flush=True)  # initializes nothing
        child = os.fork()
        if child == 0:
            print(pool.in_bad_fork(), npu.device_count(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        npu.synchronize(1)
        """
    )
    assert said == "2\nFalse 2\n"


# The end of the process.


def test_N2_everything_is_given_back_at_exit_also_what_is_in_flight(in_npu_process):
    in_npu_process(
        """
        import os, pathlib
        import acl_library
        library = acl_library.Library(pathlib.Path(os.environ["GENIE_ACL_LIBRARY"]))
        from mindtorch import npu
        from mindtorch._ext import blocks
        library.delay_copies(50)
        kept = []
        for device in range(3):
            with npu.Stream(device) as stream:
                block, pinned = blocks.allocate(device, 1 << 20), blocks.Pinned(1 << 20)
                blocks.copy_in(block, 0, pinned.address, 1 << 20, wait=False)
                other = blocks.allocate((device + 1) % 3, 1 << 20)
                blocks.copy_across(other, 0, block, 0, 1 << 20)
                event = stream.record_event(npu.Event(enable_timing=True))
                event.wait(npu.Stream((device + 2) % 3))
                blocks.copy_in(block, 0, pinned.address, 1 << 20, wait=False)
                kept.append((block, pinned, other, event, stream))
        assert not kept[-1][4].query()
        """,
        devices=3,
    )


def test_N2_late_deaths_and_uses_after_the_end(in_npu_process):
    said = in_npu_process(
        """
        import atexit
        from mindtorch import npu
        from mindtorch._ext import blocks, pool
        class Late:
            def __del__(self):
                self.block = self.pinned = self.event = None
                print("died late", pool is not None)
        def after():
            for use in (lambda: blocks.fill(late.block, 0, 0, 1), npu.synchronize, late.event.record,
                        lambda: blocks.allocate(0, 10), lambda: npu.Stream()):
                try:
                    use()
                except RuntimeError as error:
                    print(error)
        atexit.register(after)  # runs after what is registered later
        late = Late()
        late.block, late.pinned, late.event = blocks.allocate(1, 100), blocks.Pinned(100), npu.Event()
        late.event.record()
        late.me = late
        """
    ).splitlines()
    assert said == ["the NPU runtime has been shut down: the process is ending"] * 5 + said[5:]
    assert said[5:] in ([], ["died late True"], ["died late False"])


def test_N2_a_daemon_thread_may_be_at_work_at_exit(in_npu_process):
    in_npu_process(
        """
        import threading, time
        from mindtorch import npu
        from mindtorch._ext import blocks
        def work():
            while True:
                try:
                    with npu.Stream(1):
                        block = blocks.allocate(1, 1 << 20)
                        blocks.fill(block, 0, 1, 1 << 20)
                        npu.synchronize(1)
                except RuntimeError:
                    return
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
        """
    )


# Current device and stream.


def test_N3_a_new_thread_begins_at_device_0_with_default_streams(npu, devices):
    devices(2)
    npu.set_device(1)
    npu.set_stream(npu.Stream(1))
    assert npu.current_device() == 1 and npu.current_stream() != npu.default_stream(1)
    assert torch.empty(1, device="npu").device == mindtorch.device("npu:1")
    found = in_thread(lambda: (npu.current_device(), npu.current_stream(), npu.current_stream(1),
                               torch.empty(1, device="npu").device))  # fmt: skip
    assert found == (0, npu.default_stream(0), npu.default_stream(1), mindtorch.device("npu:0"))
    assert npu.current_device() == 1


def test_N3_a_streams_device_type_is_torchs_number_of_the_slot(npu):
    assert npu.Stream(0).device_type == int(torch._C._autograd.DeviceType.PrivateUse1)


def test_N3_index_0_is_an_index(npu, devices):
    """``0`` is never taken for "no index": where 1 is current, 0 still means 0."""
    devices(2)
    npu.set_device(1)
    for zero in (0, "npu:0", mindtorch.device("npu", 0)):
        assert npu.Stream(zero).device == mindtorch.device("npu:0")
        assert npu.current_stream(zero) == npu.default_stream(0) != npu.current_stream()
        assert npu.default_stream(zero).device_index == 0
        with npu.device(zero):
            assert npu.current_device() == 0
        with npu.device("npu"):
            assert npu.current_device() == 1
    assert torch.empty(1, device="npu:0").device.index == 0
    assert blocks.allocate(0, 10).device == 0
    npu.set_device(0)
    assert npu.current_device() == 0


def test_N3_devices_can_be_named_in_every_way(npu, devices):
    devices(2)

    class Number:
        def __index__(self):
            return 1

    for name in (1, "npu:1", mindtorch.device("npu:1"), Number(), npu.device(1), torch.tensor(1)):
        npu.set_device(0)
        npu.set_device(name)
        assert npu.current_device() == 1, name
        assert npu.current_stream(name).device_index == 1
    npu.set_device("npu")
    assert npu.current_device() == 1
    npu.set_device(-1)  # ignored, as in torch
    assert npu.current_device() == 1
    with npu.device(-1), npu.device(None):
        assert npu.current_device() == 1
    assert npu.current_stream(-1) == npu.current_stream(None) == npu.current_stream(1)


def test_N3_device_as_context_manager(npu, devices):
    devices(2)
    with npu.device(1):
        assert npu.current_device() == 1
        with npu.device(0):
            assert npu.current_device() == 0
        assert npu.current_device() == 1
        with pytest.raises(KeyError), npu.device("npu:0"):
            raise KeyError
        assert npu.current_device() == 1
    assert npu.current_device() == 0
    with npu.device_of(block_like(mindtorch.device("npu:1"))):
        assert npu.current_device() == 1
    with npu.device_of(torch.ones(2)):
        assert npu.current_device() == 0


def block_like(device):
    class Thing:
        pass

    thing = Thing()
    thing.device = device
    return thing


def test_N3_stream_as_context_manager(npu, devices):
    devices(2)
    one, two = npu.Stream(0), npu.Stream(1)
    other = npu.Stream(1)
    npu.set_stream(other)
    npu.set_device(0)
    for enter in (npu.stream, npu.StreamContext, lambda stream: stream):
        with enter(one):
            assert npu.current_stream() == one and npu.current_device() == 0
            with enter(two):
                assert npu.current_stream() == two and npu.current_device() == 1
                assert npu.current_stream(0) == one
            assert npu.current_stream() == one and npu.current_device() == 0
            assert npu.current_stream(1) == other
        assert npu.current_stream() == npu.default_stream(0)
        with pytest.raises(KeyError), enter(two):
            raise KeyError
        assert npu.current_device() == 0 and npu.current_stream(1) == other
    with npu.stream(None):
        assert npu.current_stream() == npu.default_stream(0)
    npu.set_stream(None)
    npu.set_stream(two)
    assert npu.current_device() == 1 and npu.current_stream() == two


def test_N3_the_same_stream_can_be_entered_again_and_by_threads(npu):
    stream = npu.Stream(0)
    with stream, stream:
        assert npu.current_stream() == stream
        assert in_thread(lambda: npu.current_stream() == npu.default_stream(0))
        with npu.stream(npu.default_stream(0)):
            assert npu.current_stream() == npu.default_stream(0)
        assert npu.current_stream() == stream
    assert npu.current_stream() == npu.default_stream(0)
    with pytest.raises(RuntimeError, match="was not entered"):
        stream.__exit__(None, None, None)


def test_S10_current_stream_is_one_object(npu):
    """Selecting a stream makes nothing: the benchmark says what it costs."""
    assert npu.current_stream() is npu.current_stream(0) is npu.default_stream("npu:0")
    npu.set_stream(stream := npu.Stream())
    assert npu.current_stream() is npu.current_stream() and npu.current_stream() == stream


def test_N2_calls_are_made_in_the_right_context(npu, devices):
    """The test library refuses, and remembers, whatever is done in another device's context."""
    devices(2)
    count = npu.device_count()
    for _ in range(3):
        for index in range(count):
            block = block_of(index, bytes([index]) * 100)
            other = blocks.allocate((index + 1) % count, 100)
            blocks.copy_across(other, 0, block, 0, 100)
            npu.Stream(index).wait_event(npu.Stream((index + 1) % count).record_event())
            assert in_thread(lambda: get(other)) == bytes([index]) * 100  # noqa: B023


def test_N3_streams_capture_nothing(npu):
    """Torch 2.15 asks before it waits for one."""
    assert npu.Stream(0).is_capturing() is npu.current_stream().is_capturing() is False
