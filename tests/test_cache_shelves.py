"""L14: entries come from a shelf as they were put there; at the limit, the one that was used least recently goes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from mindtorch.base.errors import UsageError
from mindtorch.engine.cache.shelves import Entry, Folder, Memory, Shelf


def entry(nbytes: int, begin: int = 0) -> Entry:
    return Entry([torch.arange(begin, begin + nbytes).to(torch.uint8)], {}, {})


def size_of_a_file(tmp_path: Path, nbytes: int) -> int:
    shelf = Folder(tmp_path / "one", 1 << 20)
    shelf.put(b"a", entry(nbytes))
    return shelf.nbytes


@pytest.fixture(params=["memory", "folder"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Shelf, int]:
    """With room for three entries of ten bytes, and what each takes."""
    if request.param == "memory":
        return Memory(30), 10
    each = size_of_a_file(tmp_path, 10)
    return Folder(tmp_path / "kept", 3 * each), each


def names(shelf: Shelf) -> list[bytes]:
    return [name for name in (b"a", b"b", b"c", b"d") if shelf.get(name) is not None]


def aged(shelf: Shelf) -> None:
    """Files get the time that they are written at or read; those of one moment have no order."""
    if isinstance(shelf, Folder):
        for path in shelf.folder.glob("*.kept"):
            state = path.stat()
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns - 1_000_000_000))


def test_L14_what_was_used_least_recently_goes_first(shelf: tuple[Shelf, int]) -> None:
    kept, each = shelf
    for k, name in enumerate((b"a", b"b", b"c")):
        kept.put(name, entry(10, k))
        aged(kept)
    assert kept.nbytes == 3 * each
    found = kept.get(b"a")
    assert found is not None and found.own[0].tolist() == list(range(10))
    aged(kept)
    kept.put(b"d", entry(10))
    assert names(kept) == [b"a", b"c", b"d"] and kept.nbytes == 3 * each


def test_L14_an_entry_that_is_put_again_is_one(shelf: tuple[Shelf, int]) -> None:
    kept, _each = shelf
    for k in range(5):
        kept.put(b"a", entry(10, k))
        aged(kept)
    kept.put(b"b", entry(10))
    found = kept.get(b"a")
    assert found is not None and found.own[0].tolist() == list(range(4, 14))
    assert names(kept) == [b"a", b"b"]
    if isinstance(kept, Memory):
        assert kept.nbytes == 20
    kept.clear()
    assert names(kept) == [] and kept.nbytes == 0


def test_L14_one_byte_more_than_may_be_is_too_much(shelf: tuple[Shelf, int]) -> None:
    kept, _each = shelf
    for name, nbytes in ((b"a", 10), (b"b", 10), (b"c", 11)):
        kept.put(name, entry(nbytes))
        aged(kept)
    assert names(kept) == [b"b", b"c"]


def test_L14_a_file_gives_all_parts_of_an_entry_back(tmp_path: Path) -> None:
    parts = [torch.tensor(values, dtype=torch.uint8) for values in ([1, 2, 3], [], [4], [5, 6], [7])]
    made = Entry(parts[:2], {3: parts[2], 0: parts[3]}, {1: parts[4]})
    assert made.nbytes == 7
    shelf = Folder(tmp_path, 1 << 20)
    shelf.put(b"name", made)
    found = Folder(tmp_path, 1 << 20).get(b"name")
    assert found is not None
    assert [t.tolist() for t in found.own] == [[1, 2, 3], []]
    assert {k: t.tolist() for k, t in found.written.items()} == {3: [4], 0: [5, 6]}
    assert {k: t.tolist() for k, t in found.states.items()} == {1: [7]}
    assert found.nbytes == 7 and shelf.nbytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert Folder(tmp_path, 1 << 20).nbytes == shelf.nbytes


def test_L14_files_that_were_left_behind_go_after_an_hour(tmp_path: Path) -> None:
    now = time.time()
    for name, age in (("old.part", 3700), ("new.part", 3500), ("old.other", 3700)):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (now - age, now - age))
    Folder(tmp_path, 100)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.part", "old.other"]


def test_L14_a_folder_that_was_filled_by_others_is_made_smaller_at_once(tmp_path: Path) -> None:
    each = size_of_a_file(tmp_path, 10)
    folder = tmp_path / "shared"
    before = Folder(folder, 10 * each)
    for name in (b"a", b"b", b"c", b"d"):
        before.put(name, entry(10))
        aged(before)
    assert Folder(folder, 2 * each).nbytes == 2 * each
    assert names(before) == [b"c", b"d"]


def test_L14_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="expected a folder that can be written to"):
        Folder(tmp_path / "file", 1)
