"""R1, R2: how contents cross to a worker: whole, in parts, as a copy of what is there; what is shown meanwhile."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from mindtorch.base.errors import MaterializationError
from mindtorch.engine.remote import progress, uploads
from mindtorch.engine.remote.progress import Progress, Waiting
from mindtorch.engine.remote.sent_contents import Contents, digest_of


class Executor:
    """Notes what is asked for; its worker has no memory for the storages in `full`."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []
        self.full: set[int] = set()
        self._failures: dict[int, MaterializationError] = {}
        self._epochs = [0, 0]
        self.gone: list[int] = []
        self._known = self._mirrors = self
        self.empty: list[int] = []

    def _ask(self, name: str, number: int, *given: Any, answer: Any, nbytes: int = 64) -> None:
        self.asked.append((name, number, *(len(each) if type(each) is bytes else each for each in given)))
        if nbytes != 64:
            self.asked.append(("weighs", nbytes))
        if name in ("reserve", "upload", "copy"):
            answer((9, "it is full") if number in self.full else None)

    def _exchange(self) -> None:
        self.asked.append(("exchange",))

    def _send_on(self) -> None:
        self.asked.append(("send on",))

    def _died(self, number: int) -> None:
        self.gone.append(number)

    def without(self, number: int) -> None:
        self.empty.append(number)

    def _untie(self, _home: Any) -> None:
        self.gone.append(0)

    def put(self, number: int, data: bytes) -> None:
        self.asked.append(("known", number, len(data)))


def sent(executor: Executor, *all_of: tuple[int, bytes]) -> list[tuple]:
    made = uploads.Uploads(executor)  # type: ignore[arg-type]
    for number, data in all_of:
        there = made.send(number, torch.zeros(1).untyped_storage(), data)
        assert there is (number not in executor.full)
    return executor.asked


def test_R2_contents_go_whole_up_to_eight_mebibytes() -> None:
    most = 8 << 20
    assert sent(Executor(), (1, bytes(most))) == [("upload", 1, most), ("weighs", 64 + most), ("known", 1, most)]
    assert sent(Executor(), (1, bytes(most + 1))) == [
        ("reserve", 1, most + 1), ("fill", 1, 0, most), ("send on",), ("fill", 1, most, 1), ("send on",),
    ]  # fmt: skip


def test_R2_for_large_ones_it_is_asked_first_whether_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_PART", 10)
    monkeypatch.setattr(uploads, "_LARGE", 20)
    parts = [("fill", 1, 0, 10), ("send on",), ("fill", 1, 10, 10), ("send on",)]
    assert sent(Executor(), (1, bytes(20))) == [("reserve", 1, 20), *parts]
    assert sent(Executor(), (1, bytes(21))) == [
        ("reserve", 1, 21), ("exchange",), *parts, ("fill", 1, 20, 1), ("send on",),
    ]  # fmt: skip
    executor = Executor()
    executor.full = {1}
    assert sent(executor, (1, bytes(21))) == [("reserve", 1, 21), ("exchange",)]
    assert executor._epochs == [9, 0] and executor.gone == [1, 0] and executor.empty == [1]
    assert isinstance(executor._failures[9], torch.OutOfMemoryError)
    assert str(executor._failures[9]) == "no memory for 21 bytes on the worker: it is full"


def test_R2_equal_contents_cross_once_while_they_are_there() -> None:
    data = bytes(1 << 16)
    executor = Executor()
    asked = sent(executor, (1, data), (2, data), (3, data[1:]), (4, data[1:]))
    assert [each[:2] for each in asked if each[0] in ("upload", "copy")] == [
        ("upload", 1), ("copy", 2), ("upload", 3), ("upload", 4),
    ]  # fmt: skip
    assert ("copy", 2, 1) in asked
    full = Executor()
    full.full = {1}
    assert [each[:2] for each in sent(full, (1, data), (2, data)) if each[0] != "weighs"] == [
        ("upload", 1), ("known", 1), ("upload", 2), ("known", 2),
    ]  # fmt: skip


def test_R2_contents_are_named_from_64_kibibytes_on() -> None:
    assert digest_of(bytes((1 << 16) - 1)) == b"" and len(digest_of(bytes(1 << 16))) == 32
    contents = Contents()
    for number, digest in ((1, b"a"), (2, b"a"), (3, b"")):
        contents.put(number, digest)
    assert contents.source(b"a") == 1 and contents.source(b"") is None
    contents.forget(1), contents.forget(1), contents.forget(3)
    assert contents.source(b"a") == 2
    contents.forget(2)
    assert contents.source(b"a") is None and contents._numbers == {}
    contents.put(4, b"a")
    contents.clear()
    assert contents.source(b"a") is None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    return now


def test_R2_a_crossing_is_shown_after_a_second_five_times_a_second(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    crossing, moved, lines = Progress(), 0, list[int]()
    for _ in range(60):
        moved += 1 << 20
        crossing.see(moved)
        lines.append(shown.getvalue().count("to and from"))
        clock[0] += 0.0625
    # 17 sixteenths of a second are more than one; four more are more than a fifth.
    assert [k for k in range(1, 60) if lines[k] > lines[k - 1]] == list(range(17, 60, 4))
    assert "18 MB to and from the worker, 17 MB/s" in shown.getvalue()
    clock[0] += 1.0
    moved += 1 << 20
    crossing.see(moved)  # after a pause, it is another one
    assert shown.getvalue().endswith("MB/s\r\x1b[K")
    before = len(shown.getvalue())
    crossing.see(moved + (1 << 20) - 1)
    for _ in range(30):
        clock[0] += 0.125
        moved += 1000
        crossing.see(moved)
    assert len(shown.getvalue()) == before


def test_R2_a_line_on_what_is_waited_for_is_as_wide_as_the_terminal(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("COLUMNS", "10")
    with Waiting("0123456789abc") as waiting:
        clock[0] += 0.5
        waiting.show()
        assert shown.getvalue() == ""
        clock[0] += 0.5
        waiting.show(), waiting.show()
        assert shown.getvalue() == "\r\x1b[K012345678"
    assert shown.getvalue() == "\r\x1b[K012345678\r\x1b[K"
