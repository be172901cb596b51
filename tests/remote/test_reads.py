"""R1: which storages come along with those that are read, what is kept of them, and which small values are known."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mindtorch.base.errors import MaterializationError, SessionLost
from mindtorch.engine.remote import reads, small_values
from mindtorch.engine.remote.exchange import Session
from mindtorch.engine.remote.small_values import Known, comes_unasked


class Asked(Session):
    """Notes what is asked for, and gives as many zeros as each storage has."""

    def __init__(self, alive: dict[int, int]) -> None:
        super().__init__(lambda _message: None)
        self.alive, self.messages, self.waits = alive, list[list[int]](), list[Any]()
        self.failed: set[int] = set()

    def _ask(self, *request: Any, answer: Any = None, nbytes: int = 64) -> None:
        self.waits.append((request[1], answer))

    def _exchange(self, every: bool = False, unasked: bool = False) -> None:
        self.messages.append([number for number, _answer in self.waits])
        waits, self.waits = self.waits, []
        for number, answer in waits:
            answer(("failed", 3) if number in self.failed else ("bytes", bytes(self.alive[number])))


def reader(sizes: dict[int, int]) -> tuple[reads.Reads, Asked]:
    session = Asked(sizes)
    mirrors: Any = SimpleNamespace(alive=sizes, copies={})
    failures = {3: MaterializationError("it failed there")}
    return reads.Reads(session, mirrors, Known(), failures, lambda _number: None), session


def test_R1_from_the_second_message_on_what_lies_behind_comes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "_AHEAD", 24)
    found, session = reader(dict.fromkeys(range(1, 9), 8))
    held = [found.storages([1])]
    assert session.messages == [[1]]
    held.append(found.storages([2]))
    assert session.messages[1:] == [[2, 3, 4, 5]]  # as many bytes as may be
    for number in (3, 4, 5):
        held.append(found.storages([number]))
        assert len(session.messages) == 2
    held.append(found.storages([6]))
    assert session.messages[2:] == [[6, 7, 8]] and len(held) == 6


def test_R1_so_many_bytes_come_along() -> None:
    half = 32 << 20
    found, session = reader({1: 8, 2: 8, 3: half, 4: half, 5: 1})
    session.failed = {3, 4}  # no need for their bytes
    found.storages([1]), found.storages([2])
    assert session.messages[1] == [2, 3, 4]
    found, session = reader({1: 8, 2: 8, 3: half, 4: half + 1, 5: 1})
    session.failed = {3, 4}
    found.storages([1]), found.storages([2])
    assert session.messages[1] == [2, 3]


def test_R1_where_most_of_what_came_along_was_not_read_it_ends_for_a_while() -> None:
    found, session = reader(dict.fromkeys(range(1, 40), 8))
    found.storages([1]), found.storages([2])
    assert session.messages[1] == list(range(2, 40))
    for number in list(range(3, 40)):
        found.forget(number)  # written
    for number in range(3, 12):
        found.storages([number])
    assert session.messages[2:] == [[3], [4], [5], [6], [*range(7, 40)]]


@pytest.mark.parametrize("used", [1, 2])
def test_R1_half_of_what_came_along_is_enough(used: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "_AHEAD", 32)
    found, session = reader(dict.fromkeys(range(1, 9), 8))
    held = [found.storages([number]) for number in (1, 2, *range(3, 3 + used))]
    assert session.messages == [[1], [2, 3, 4, 5, 6]] and len(held) == 2 + used
    found.storages([7])
    assert session.messages[2:] == ([[7, 8]] if used == 2 else [[7]])


def test_R1_what_is_known_or_still_there_is_not_asked_for() -> None:
    found, session = reader({1: 8, 2: 4, 3: 8})
    found._known.put(2, b"abcd")
    first = found.storages([1, 2])
    assert session.messages == [[1]] and bytes(first[2].tolist()) == b"abcd"
    assert found.storages([1])[1] is first[1] and session.messages == [[1]]
    del first
    assert found.storages([1])[1].nbytes() == 8 and session.messages == [[1]]  # kept
    found.forget(1)
    found.storages([1])
    assert session.messages[1][0] == 1


def test_R1_what_is_kept_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "_KEPT", 20)
    found, _session = reader({})
    for number, nbytes in ((1, 10), (2, 10), (3, 21), (4, 0)):
        found._keep(number, bytes(nbytes))
    assert list(found._kept) == [1, 2, 4] and found._room == 0
    found._keep(1, bytes(5))  # it is there
    found._keep(5, bytes(1))
    assert list(found._kept) == [2, 4, 5] and found._room == 9
    found.forget(2), found.forget(2)
    assert found._room == 19
    found._known.put(6, b"abcd")
    found._keep(6, b"abcd")
    found._keep(7, bytes(20))
    assert list(found._kept) == [7] and found._room == 0


def test_R4_a_storage_that_failed_raises_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found, session = reader({1: 8, 2: 8})
    session.failed = {1}
    with pytest.raises(MaterializationError, match="it failed there"):
        found.storages([1])
    session.failed = {2}
    found.storages([1])  # what comes along and failed is told where it is read
    assert 2 not in found._ahead
    with pytest.raises(MaterializationError, match="it failed there"):
        found.storages([2])


def test_R3_a_storage_that_is_too_short_ends_the_session() -> None:
    found, _session = reader({})
    storage = torch.zeros(3).untyped_storage()
    assert found._on(storage, (1, torch.float32, (3,), (1,), 0, 0)).tolist() == [0.0] * 3
    with pytest.raises(SessionLost, match="expected 16 bytes of storage 1, got 12"):
        found._on(storage, (1, torch.float32, (3,), (1,), 1, 0))


@pytest.mark.parametrize(("dtype", "nbytes", "comes"), [
    (torch.float32, 64, True), (torch.float32, 68, False), (torch.int64, 4096, True), (torch.int64, 4104, False),
    (torch.bool, 4096, True), (torch.bool, 4097, False),
])  # fmt: skip
def test_R1_little_values_come_unasked(dtype: torch.dtype, nbytes: int, comes: bool) -> None:
    assert comes_unasked(torch.empty(nbytes // dtype.itemsize, dtype=dtype, device="meta")) is comes


def test_R1_contents_are_known_up_to_a_page() -> None:
    known = Known()
    known.put(1, bytes(4096)), known.put(2, bytes(4097))
    assert 1 in known and 2 not in known
    known.copy(3, 1), known.copy(4, 2)
    assert 3 in known and 4 not in known
    known.forget(1), known.forget(2)
    assert 1 not in known and 3 in known
    known.clear()
    assert 3 not in known
    computes = functools.partial(known.computes, exact=True)
    assert computes(SimpleNamespace(nbytes=1 << 16)) and not computes(SimpleNamespace(nbytes=(1 << 16) + 1))  # type: ignore[arg-type]
    assert not known.computes(SimpleNamespace(nbytes=1), exact=False)  # type: ignore[arg-type]
    assert small_values._CALCULATED == 1 << 16
