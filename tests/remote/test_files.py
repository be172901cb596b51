"""R2: what a worker finds in a safetensors file does not cross; much that crosses is shown."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import mindtorch
from mindtorch.base import mapped_memory
from mindtorch.engine.remote.client import RemoteExecutor
from mindtorch.engine.remote.progress import Progress, Waiting
from mindtorch.engine.remote.sent_contents import digest_of
from mindtorch.engine.remote.wire import dumps, loads

from ..executors import greeted

safetensors = pytest.importorskip("safetensors.torch")
LAZY = "remote_accelerator:0"
NBYTES = 600 * 500 * 4
Same = Callable[..., None]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = str(tmp_path / "weights.safetensors")
    torch.manual_seed(0)
    safetensors.save_file({"a": torch.randn(600, 500), "b": torch.randn(500, 600), "c": torch.ones(3)}, path)
    return path


@pytest.fixture
def up(elsewhere: RemoteExecutor) -> Callable[[], int]:
    """Bytes that have crossed since it was asked last."""
    elsewhere.sync()
    before = [elsewhere.stats["bytes_up"]]

    def since() -> int:
        elsewhere.sync()
        before.append(elsewhere.stats["bytes_up"])
        return before[-1] - before[-2]

    return since


def test_R2_a_safetensors_file_that_the_worker_sees_does_not_cross(
    file: str, up: Callable[[], int], same_bits: Same
) -> None:
    expected = safetensors.load_file(file)
    loaded = safetensors.load_file(file, device=LAZY)
    assert up() < 4000
    turned = expected["b"].t().to(LAZY)  # it lies otherwise, and is the same memory
    assert up() < 4000
    plain = {name: t.to(LAZY) for name, t in safetensors.load_file(file).items()}
    for name, t in expected.items():
        same_bits(loaded[name].cpu(), t)
        same_bits(plain[name].cpu(), t)
    same_bits(turned.cpu(), expected["b"].t())


def test_R2_what_a_program_has_written_to_mapped_memory_crosses(
    file: str, up: Callable[[], int], same_bits: Same
) -> None:
    mine = safetensors.load_file(file)
    mine["a"][3, 4] = 7
    there = mine["a"].to(LAZY)
    assert up() > NBYTES
    same_bits(there.cpu(), mine["a"])
    part = mine["b"][100:].to(LAZY)  # of a file, and less than is worth asking for
    same_bits(part.cpu(), mine["b"][100:])
    every_second = mine["b"][:, ::2].to(LAZY)
    same_bits(every_second.cpu(), mine["b"][:, ::2])


def test_R2_a_file_that_the_worker_does_not_see_crosses(file: str, up: Callable[[], int], same_bits: Same) -> None:
    mine = safetensors.load_file(file)
    Path(file).unlink()
    there = {name: t.to(LAZY) for name, t in mine.items()}
    assert up() > 2 * NBYTES
    for name, t in mine.items():
        same_bits(there[name].cpu(), t)


def test_R3_a_worker_tells_nothing_of_other_files(tmp_path: Path, file: str) -> None:
    """Only who has the contents of a part of a safetensors file hears that they are there."""
    secret = tmp_path / "secret.txt"
    secret.write_bytes(b"x" * 4096)
    whole = Path(file).read_bytes()
    offset = len(whole) - NBYTES
    worker = greeted(folders=[str(tmp_path)])

    def asked(path: str, offset: int, nbytes: int, digest: bytes) -> object:
        return loads(worker.handle(dumps([("file", 5, path, offset, nbytes, digest)])))[0]

    part = whole[offset:]
    assert asked(file, offset, NBYTES, digest_of(part)) is True
    assert loads(worker.handle(dumps([("storage", 5)])))[0] == ("bytes", part)
    assert asked(file, offset, NBYTES, b"\0" * 32) is False
    assert asked(file, offset + 1, NBYTES, digest_of(part)) is None
    assert asked(str(secret), 100, 3000, b"\0" * 32) is None
    assert asked("/dev/zero", 100, 3000, b"\0" * 32) is None
    assert asked(str(tmp_path), 100, 3000, b"\0" * 32) is None
    assert asked(file, 4, 100, hashlib.sha256(whole[4:104]).digest()) is None  # its header
    assert asked("nothing\0there", 100, 3000, b"\0" * 32) is None
    with pytest.raises(mindtorch.engine.remote.wire.WireError, match="number of a storage"):
        worker.handle(dumps([("storage", 5)]))


def test_R2_memory_of_no_file_is_none() -> None:
    assert mapped_memory.mapped(torch.ones(1 << 20).data_ptr(), 4 << 20) is None
    assert mapped_memory.mapped(0, 4) is None


def test_R2_what_takes_long_to_cross_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    now = [100.0]
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = Progress()
    moved = 0
    for _ in range(30):
        now[0] += 0.1
        moved += 8 << 20
        progress.see(moved)
    lines = shown.getvalue().split("\r\x1b[K")
    assert 5 < len(lines) < 15 and lines[1] == "92 MB to and from the worker, 84 MB/s"
    now[0] += 0.1
    progress.see(moved + 100)  # something short: the line goes
    assert shown.getvalue().endswith("MB/s\r\x1b[K")
    end = len(shown.getvalue())
    for _ in range(30):
        now[0] += 0.1
        moved += 1000
        progress.see(moved)
    assert len(shown.getvalue()) == end
    monkeypatch.setattr("sys.stderr", plain := io.StringIO())
    for _ in range(30):
        now[0] += 0.1
        moved += 8 << 20
        progress.see(moved)
    assert not plain.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_R2_what_is_waited_for_is_shown_and_said_once_in_a_log(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: terminal)
    now = [100.0]
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    said = []
    with Waiting("waiting for room") as waiting:
        for second in range(30):
            waiting.what = f"waiting for room: {second} s"
            waiting.show()
            said.append(shown.getvalue())
            now[0] += 1
    if terminal:
        assert (
            said[0] == "" and said[1] == "\r\x1b[Kwaiting for room: 1 s" and shown.getvalue().endswith("29 s\r\x1b[K")
        )
    else:
        assert said[9] == "" and shown.getvalue() == said[10] == "genie: waiting for room: 10 s\n"


def test_R2_nobody_is_told_of_a_wait_where_there_is_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may have closed it, or has none."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    closed = io.StringIO()
    closed.close()
    for error in (None, closed):
        monkeypatch.setattr("sys.stderr", error)
        with Waiting("waiting for room") as waiting:
            now[0] += 11
            waiting.show()
            assert waiting._shown == ""
