"""R1, R2, R3: storages of a worker: what is written to a part of one, or over another, and what comes in parcels."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from mindtorch.engine.remote import held_storages as module
from mindtorch.engine.remote.wire import WireError, dumps
from mindtorch.engine.remote.worker import Worker


@pytest.fixture
def worker() -> Worker:
    made = Worker(parcels={})
    made.upload(1, b"abcd"), made.upload(2, b"efgh"), made.upload(3, b"xy")
    made._storages[4] = module.Failed(7)
    return made


@pytest.mark.parametrize(("begin", "data", "found"), [
    (0, b"", b"abcd"), (0, b"mnop", b"mnop"), (1, b"mno", b"amno"), (3, b"m", b"abcm"), (4, b"", b"abcd"),
    (0, b"mnopq", None), (1, b"mnop", None), (4, b"m", None),
])  # fmt: skip
def test_R3_a_part_that_is_written_is_within_its_storage(
    begin: int, data: bytes, found: bytes | None, worker: Worker
) -> None:
    if found is None:
        with pytest.raises(WireError, match=f"of the 4 bytes of storage 1, got {len(data)} from {begin} on"):
            worker.fill(1, begin, data)
    else:
        assert worker.fill(1, begin, data) is None
    assert worker.storage(1) == ("bytes", found or b"abcd")
    assert worker.fill(4, begin, data) is None and worker.storage(4) == ("failed", 7), "there is nothing to write to"


def test_R1_a_storage_takes_the_contents_of_another_or_fails_as_that_has(worker: Worker) -> None:
    worker.overwrite(1, 2)
    worker.write(2, b"ijkl")
    assert worker.small([1, 2]) == [b"efgh", b"ijkl"]
    with pytest.raises(WireError, match="expected 4 bytes for storage 1, got 2"):
        worker.overwrite(1, 3)
    worker.overwrite(4, 3)
    assert worker.storage(4) == ("failed", 7), "what has failed stays so"
    worker.overwrite(1, 4)
    assert worker.storage(1) == ("failed", 7) and worker.small([2, 1]) == [b"ijkl", None]
    assert worker.digest([2, 1, 9]) == [hashlib.sha256(b"ijkl").digest(), None, None]


def test_R2_storages_come_together_as_they_were_given(worker: Worker) -> None:
    other = Worker(parcels=worker._parcels)
    assert worker.pack([1, 4, 3], 10) is None
    assert other.unpack([5, 6, 7], [4, 4, 2], 10) == [None, (1, 7), None]
    assert other.storage(5) == ("bytes", b"abcd") and other.storage(7) == ("bytes", b"xy")
    assert other.storage(6) == ("failed", 1) and worker._parcels == {}
    worker.pack([1, 2], 11)
    assert other.unpack([8, 9], [5, 4], 11) == [(2, 0), None], "one with fewer bytes than it should have"


@pytest.mark.parametrize(("parcel", "told"), [
    (None, 0), (7, 7), (b"no message", 0), (dumps([b"abcd"]), 0), (dumps([b"abcd"] * 3), 0), (dumps((b"abcd",) * 2), 0),
    (dumps([-1, True]), 0), (dumps([b"abc", "abcd"]), 0),
])  # fmt: skip
def test_R3_what_another_worker_may_not_give_has_failed(parcel: Any, told: int, worker: Worker) -> None:
    if parcel is not None:
        worker._parcels[10] = bytes(parcel) if isinstance(parcel, (bytes, bytearray)) else parcel
    assert worker.unpack([5, 6], [4, 4], 10) == [(1, told), (2, told)]
    assert [worker.storage(number) for number in (5, 6)] == [("failed", 1), ("failed", 2)]
    assert 10 not in worker._parcels


def test_R3_only_storages_that_are_there_have_contents(worker: Worker) -> None:
    worker.free([1])
    asks: list[Any] = [lambda: worker.storage(1), lambda: worker.overwrite(2, 1), lambda: worker.overwrite(1, 2)]
    for ask in (*asks, lambda: worker.fill(1, 0, b""), lambda: worker.give(1, 10)):
        with pytest.raises(WireError, match="expected the number of a storage, got 1"):
            ask()
