"""N2, N3: the runtime pool; what is current in each thread; streams and events."""

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
        for index in (count, 127, 128, 4000):
            with pytest.raises(RuntimeError, match=f"device index {index}: {count} NPU"):
                use(index)
    with pytest.raises(RuntimeError, match=f"device index {count}: {count} NPU"), npu.device(count):
        pass
    for use in (npu.get_runtime, npu.Stream, npu.mem_get_info):
        with pytest.raises(RuntimeError, match=f"device index -2: {count} NPU"):
            use(-2)


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
                kept.append((block, pinned, other, event, stream))
        assert not kept[-1][3].query()
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
    assert mindtorch.devices.resolve("npu") == mindtorch.device("npu:1")
    found = in_thread(lambda: (npu.current_device(), npu.current_stream(), npu.current_stream(1),
                               mindtorch.devices.resolve("npu")))  # fmt: skip
    assert found == (0, npu.default_stream(0), npu.default_stream(1), mindtorch.device("npu:0"))
    assert npu.current_device() == 1


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
    assert mindtorch.devices.resolve("npu:0").index == 0
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


# Streams.

def test_N3_streams_come_from_a_pool_of_32_for_each_priority(npu):
    made = [npu.Stream(0) for _ in range(64)]
    assert len({stream.npu_stream for stream in made}) == 32
    assert made[:32] == made[32:] and len(set(made)) == 32
    high = [npu.Stream(0, priority=-1) for _ in range(32)]
    assert not set(high) & set(made) and npu.default_stream(0) not in {*made, *high}
    assert {stream.priority for stream in high} == {-1} and {stream.priority for stream in made} == {0}
    assert npu.Stream.priority_range() == (0, -1)
    assert npu.Stream(0, -5).priority == -1 and npu.Stream(0, 3).priority == 0  # as near as there is


def test_N3_streams_are_values(npu):
    stream = npu.Stream("npu:0")
    again = [npu.Stream(0) for _ in range(32)][-1]
    assert again == stream and again is not stream and hash(again) == hash(stream)
    assert stream != 3 and stream.device == mindtorch.device("npu:0") and stream.device_index == 0
    assert repr(stream) == f"<mindtorch.npu.Stream device=npu:0 npu_stream={stream.npu_stream:#x}>"
    assert npu.default_stream(0).stream_id == 0 != stream.stream_id
    with pytest.raises(RuntimeError, match="not initialized"):
        npu.Stream.__new__(npu.Stream).query()


def test_N3_query_and_synchronize(npu, library):
    stream, other = npu.Stream(0), npu.Stream(0)
    assert stream.query()
    library.hold(stream.npu_stream)
    stream.record_event()
    assert not stream.query() and other.query()
    other.synchronize()
    library.release(stream.npu_stream)
    stream.synchronize()
    assert stream.query()


@pytest.mark.parametrize("target", [0, 1])
def test_N3_wait_stream_orders_also_across_devices(npu, library, devices, target):
    devices(2)
    first, second = npu.Stream(0), npu.Stream(target)
    library.hold(first.npu_stream)
    with first:
        source = block_of(0, b"a" * 100)  # queued: the stream is held
        block = blocks.allocate(target, 100)
    second.wait_stream(first)
    with second:
        blocks.fill(block, 0, ord("b"), 100)
        assert not second.query()
    library.release()
    with second:
        assert get(block) == b"b" * 100 and first.query()
    del source


# Events.

def test_N3_an_event_that_was_not_recorded(npu):
    event = npu.Event()
    assert event.query() and event.npu_event == 0 and event.device is None
    event.synchronize(), event.wait(), npu.Stream().wait_event(event)
    assert repr(event) == "<mindtorch.npu.Event uninitialized>"


def test_N3_record_query_synchronize(npu, library):
    stream = npu.Stream(0)
    library.hold(stream.npu_stream)
    event = stream.record_event()
    assert not event.query() and event.npu_event and event.device == mindtorch.device("npu:0")
    assert repr(event) == f"<mindtorch.npu.Event {event.npu_event:#x}>"
    thread = threading.Thread(target=event.synchronize)
    thread.start()
    library.release()
    thread.join(60)
    assert event.query()
    event.record()  # the current stream
    event.synchronize()


def test_N3_a_wait_means_the_recording_before_it(npu, library):
    """As in torch: what is recorded later does not concern a wait that was called before."""
    first, second, third = npu.Stream(0), npu.Stream(0), npu.Stream(0)
    event = first.record_event()
    second.wait_event(event)
    first.synchronize()
    library.hold(third.npu_stream)
    event.record(third)
    second.synchronize()  # would wait for ever
    assert not event.query()
    library.release()
    event.synchronize()


def test_N3_an_event_that_dies_is_not_used_again_while_a_stream_waits_for_it(npu, library):
    first, second = npu.Stream(0), npu.Stream(0)
    library.hold(second.npu_stream)
    gate = second.record_event()
    handles = set()
    for _ in range(50):
        event = first.record_event()
        second.wait_event(event)
        handles.add(event.npu_event)
        del event
    first.synchronize()
    assert len(handles) == 50  # second has come past none of the waits
    library.release()
    second.synchronize()
    before = library.calls("aclrtCreateEventExWithFlag")
    for _ in range(50):
        second.wait_event(first.record_event())
    assert library.calls("aclrtCreateEventExWithFlag") - before < 10  # now they are used again
    assert gate.query()


def test_N3_events_are_used_again(npu, library):
    stream = npu.Stream(0)
    stream.record_event().synchronize()
    before = library.calls("aclrtCreateEventExWithFlag")
    for _ in range(500):
        stream.record_event().synchronize()
    assert library.calls("aclrtCreateEventExWithFlag") == before


def test_N3_elapsed_time(npu, library):
    stream = npu.Stream(0)
    start, end = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
    with pytest.raises(ValueError, match="Both events must be recorded before calculating elapsed time"):
        start.elapsed_time(end)
    start.record(stream)
    library.stall(stream.npu_stream, 30)
    library.hold(stream.npu_stream)
    end.record(stream)
    with pytest.raises(RuntimeError, match="Both events must be completed before calculating elapsed time"):
        start.elapsed_time(end)
    library.release()
    end.synchronize()
    assert 29 <= start.elapsed_time(end) < 60_000
    for pair in ((start, npu.Event()), (npu.Event(), end), (npu.Event(), npu.Event())):
        with pytest.raises(ValueError, match="Both events must be created with argument 'enable_timing=True'"):
            pair[0].elapsed_time(pair[1])


def test_N3_an_event_belongs_to_one_device(npu, devices):
    devices(2)
    event = npu.Stream(0).record_event()
    with pytest.raises(RuntimeError, match="Event device 0 does not match recording stream's device 1"):
        event.record(npu.Stream(1))
    npu.Stream(1).wait_event(event)  # any device may wait for it
    with pytest.raises(RuntimeError, match="cannot be shared between processes"):
        npu.Event(interprocess=True)


def test_N3_synchronize_waits_for_every_stream_of_a_device(npu, library, devices):
    devices(2)
    made = [npu.Stream(0) for _ in range(3)]
    stuck = npu.Stream(1)
    for stream in made:
        library.stall(stream.npu_stream, 20)
    library.hold(stuck.npu_stream)
    events = [stream.record_event() for stream in (*made, stuck)]
    npu.synchronize(0)
    assert [event.query() for event in events] == [True, True, True, False]
    library.release()
    npu.synchronize("npu:1")
    assert events[-1].query()


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
