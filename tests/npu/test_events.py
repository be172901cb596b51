"""N3: streams and events, with torch's meanings."""

from __future__ import annotations

import ctypes
import threading

import pytest
from device_memory import block_of, get

import mindtorch
from mindtorch._ext import blocks

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
    waits = target == 0 or library.waits_abroad
    library.hold(first.npu_stream) if waits else library.stall(first.npu_stream, 50)
    with first:
        source = block_of(0, b"a" * 100)  # queued: the stream is held
        block = blocks.allocate(target, 100)
    second.wait_stream(first)
    with second:
        blocks.fill(block, 0, ord("b"), 100)
        assert not (waits and second.query())
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


@pytest.mark.parametrize("how", ["copies", "waits"])
def test_N3_events_between_devices_are_used_again(npu, library, devices, how):
    """Though nobody waits on the host, and the devices' memory is not asked for meanwhile."""
    devices(2)
    source, target = block_of(0, b"s" * 1000), blocks.allocate(1, 1000)
    one, two = npu.default_stream(0), npu.default_stream(1)
    before = library.calls("aclrtCreateEventExWithFlag")
    for _ in range(20):
        for _ in range(50):
            if how == "copies":
                blocks.copy_across(target, 0, source, 0, 1000)
            else:
                two.wait_event(one.record_event())
        library.c.aclrtSynchronizeStream(ctypes.c_void_p(two.npu_stream))  # behind the pool's back
    assert library.calls("aclrtCreateEventExWithFlag") - before < 400


def test_N3_elapsed_time(npu, library):
    stream = npu.Stream(0)
    start, end = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
    with pytest.raises(ValueError, match="Both events must be recorded before calculating elapsed time"):
        start.elapsed_time(end)
    start.record(stream)
    library.stall(stream.npu_stream, 30)
    end.record(stream)
    assert 29 <= start.elapsed_time(end) < 60_000  # waits for both
    assert end.query()
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
