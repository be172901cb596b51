"""Where values are kept: in memory, or in a folder that several processes may share."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
import warnings
from abc import ABC, abstractmethod
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import torch

from ...base.errors import UsageError

__all__ = ["Entry", "Folder", "Memory", "Shelf"]

_MAGIC = b"genie-cache 1\n"
_SUFFIX = ".kept"
_LEFT_BEHIND = 3600  # seconds after which a file that somebody began to write is nobody's
_DIGEST = hashlib.sha256().digest_size


class Entry(NamedTuple):
    """What a segment gave, as tensors of bytes: storages of its own; what is now in storages that it was given, by
    their place among those; states of generators by index of the device.
    """

    own: list[torch.Tensor]
    written: dict[int, torch.Tensor]
    states: dict[int, torch.Tensor]

    @property
    def nbytes(self) -> int:
        return sum(t.numel() for t in (*self.own, *self.written.values(), *self.states.values()))


class Shelf(ABC):
    """Entries by name, at most ``most`` bytes of them: what was used least recently goes first."""

    #: Is what `get` gives nobody else's?
    fresh: bool
    #: Bytes that are held now.
    nbytes: int

    def __init__(self, most: int) -> None:
        self.most = most
        self.nbytes = 0

    @abstractmethod
    def get(self, name: bytes) -> Entry | None:
        """The entry of this name, None where there is none."""

    @abstractmethod
    def put(self, name: bytes, entry: Entry) -> None:
        """Keep an entry, which nobody writes to from now on and which is not larger than all may be."""

    @abstractmethod
    def clear(self) -> None:
        """Keep nothing of what is there."""


class Memory(Shelf):
    """In this process."""

    fresh = False

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()

    def get(self, name: bytes) -> Entry | None:
        found = self._entries.get(name)
        if found is not None:
            self._entries.move_to_end(name)
        return found

    def put(self, name: bytes, entry: Entry) -> None:
        if name in self._entries:
            self.nbytes -= self._entries.pop(name).nbytes
        self._entries[name] = entry
        self.nbytes += entry.nbytes
        while self.nbytes > self.most:
            _, oldest = self._entries.popitem(last=False)
            self.nbytes -= oldest.nbytes

    def clear(self) -> None:
        self._entries.clear()
        self.nbytes = 0


class Folder(Shelf):
    """In files: one an entry, written beside and then renamed, so that nobody reads half of one.

    A file that is not what was written is no entry; that is said once, and the file goes.
    """

    fresh = True

    def __init__(self, folder: str | os.PathLike[str], most: int) -> None:
        super().__init__(most)
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"[cache] expected a folder that can be written to, got {self.folder}: {error}") from error
        self._told = False
        self._make_room()

    def _path(self, name: bytes) -> Path:
        return self.folder / f"{name.hex()}{_SUFFIX}"

    def _tell(self, text: str) -> None:
        if not self._told:
            self._told = True
            warnings.warn(f"[cache] {text}", stacklevel=2)

    def get(self, name: bytes) -> Entry | None:
        path = self._path(name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._tell(f"{path} cannot be read: {error}")
            return None
        entry = _parsed(name, data)
        if entry is None:
            self._tell(f"{path} has changed since it was written: its values are computed again")
            self._remove(path)
            return None
        with contextlib.suppress(OSError):  # gone meanwhile, or another's: only its age is not known then
            os.utime(path)
        return entry

    def put(self, name: bytes, entry: Entry) -> None:
        path = self._path(name)
        beside = self.folder / f".{name.hex()}.{os.getpid()}.{secrets.token_hex(4)}.part"
        try:
            with open(beside, "wb") as file:
                self.nbytes += _write(file, name, entry)
            os.replace(beside, path)
        except OSError as error:
            self._tell(f"{path} cannot be written: {error}")
            self._remove(beside)
        if self.nbytes > self.most:
            self._make_room()

    def clear(self) -> None:
        for path in self.folder.glob(f"*{_SUFFIX}"):
            self._remove(path)
        self._make_room()

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._tell(f"{path} cannot be removed: {error}")

    def _make_room(self) -> None:
        """Look at what is there, other processes' files included, and let the oldest go where it is too much."""
        found = []
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):  # another process was faster
                state = path.stat()
                if path.suffix == _SUFFIX:
                    found.append((state.st_mtime_ns, state.st_size, path))
                elif path.suffix == ".part" and time.time() - state.st_mtime > _LEFT_BEHIND:
                    path.unlink()
        self.nbytes = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if self.nbytes <= self.most:
                break
            self._remove(path)
            self.nbytes -= size


def _write(file: object, name: bytes, entry: Entry) -> int:
    """The magic, the name, the length of a table and the table, all bytes, and a digest of all that."""
    tensors = [*entry.own, *entry.written.values(), *entry.states.values()]
    table = json.dumps(
        {
            "sizes": [t.numel() for t in tensors],
            "own": len(entry.own),
            "written": list(entry.written),
            "states": list(entry.states),
        }
    ).encode()
    digest = hashlib.sha256()
    total = 0
    for part in (_MAGIC, name, len(table).to_bytes(8, "little"), table, *(t.numpy().data for t in tensors)):
        digest.update(part)
        total += file.write(part)  # type: ignore[attr-defined]
    return total + int(file.write(digest.digest()))  # type: ignore[attr-defined]


def _parsed(name: bytes, data: bytes) -> Entry | None:
    """The entry that these bytes are; None where they are none of this name."""
    begin = _MAGIC + name
    body = memoryview(data)[:-_DIGEST] if len(data) > _DIGEST else memoryview(b"")
    if bytes(body[: len(begin)]) != begin or hashlib.sha256(body).digest() != data[-_DIGEST:]:
        return None
    at = len(begin) + 8
    end = at + int.from_bytes(body[len(begin) : at], "little")
    table = json.loads(bytes(body[at:end]))
    tensors = []
    for size in table["sizes"]:
        made = torch.empty(size, dtype=torch.uint8, device="cpu")
        if size:
            made.numpy()[:] = memoryview(body[end : end + size])
        tensors.append(made)
        end += size
    rest = iter(tensors)
    own = [next(rest) for _ in range(table["own"])]
    return Entry(
        own, {place: next(rest) for place in table["written"]}, {index: next(rest) for index in table["states"]}
    )
