"""A folder in front of the disk: what was written is in the first, all that is to be read is in both.

What the program writes goes into the folder, under the path that it has: there a file hides the one on the disk, a link
to `_GONE` says that it was removed, and in a folder with `_OPAQUE` the disk's is not looked at. So it is all in files,
and processes that are forked off share it.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import shutil
import stat
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

__all__ = [
    "Place",
    "Tree",
    "by_others",
    "by_us",
    "exists",
    "failed",
    "is_folder",
    "local",
    "name_of",
    "real",
    "real_open",
]

_GONE = "genie:removed"
_OPAQUE = ".genie-opaque"
_MEMORY = frozenset({"/dev", "/proc", "/run", "/sys"})
TMPFILE = getattr(os, "O_TMPFILE", 0)
_MOST_LINKS = 40
#: Of `os`, as it was.
real = types.SimpleNamespace(**{name: value for name, value in vars(os).items() if callable(value)})
real_open = io.open
local = threading.local()


class Place(NamedTuple):
    """A path without links, where it lies among what was written, if there, and where on the disk it would, if seen."""

    path: str
    up: str | None
    low: str | None

    @property
    def found(self) -> str | None:
        """Where it is; None: nowhere."""
        return self.up or (self.low if self.low is not None and exists(self.low) else None)


def failed(number: int, name: Any) -> OSError:
    return OSError(number, os.strerror(number), name)


def exists(path: str) -> bool:
    with suppress(OSError):
        return bool(real.lstat(path))
    return False


def is_folder(path: str) -> bool:
    with suppress(OSError):
        return stat.S_ISDIR(real.lstat(path).st_mode)
    return False


def _marked(path: str) -> str:
    return f"{path}/" if is_folder(path) else path


def name_of(descriptor: int) -> str:
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return str(real.readlink(f"/proc/self/fd/{descriptor}"))


def _is_gone(path: str, found: os.stat_result) -> bool:
    return stat.S_ISLNK(found.st_mode) and real.readlink(path) == _GONE


@contextmanager
def by_us() -> Iterator[None]:
    """What happens within the block is nobody else's."""
    before = getattr(local, "ours", False)
    local.ours = True
    try:
        yield
    finally:
        local.ours = before


def by_others(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is not ours, though we call it."""

    @functools.wraps(function)
    def called(*args: Any) -> Any:
        before, local.ours = getattr(local, "ours", False), False
        try:
            return function(*args)
        finally:
            local.ours = before

    return called


class Tree:
    """The folder and the disk as one tree."""

    def __init__(self) -> None:
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="genie-"))
        self._files = self.folder + "/files"
        os.mkdir(self._files)
        self.dirty = False  # whether there may be anything in the folder

    def changed(self) -> Iterator[tuple[str, bool]]:
        """What was written or made, and what was there and is removed: absolute paths, those of folders with a "/" at
        the end, and whether it is removed."""
        for folder, folders, files in _walk(self._files):
            path = folder[len(self._files) :]
            for name in files:
                if name != _OPAQUE:
                    inner, outer = f"{folder}/{name}", f"{path}/{name}"
                    gone = _is_gone(inner, real.lstat(inner))
                    yield _marked(outer) if gone else outer, gone
            if path and not folders and files in ([], [_OPAQUE]) and not exists(path):
                yield f"{path}/", False
            if _OPAQUE in files and is_folder(path):
                hidden = sorted({*real.listdir(path)}.difference(folders, files))
                yield from ((_marked(f"{path}/{name}"), True) for name in hidden)

    # ---- where things are

    def cwd(self) -> str:
        here: str = real.getcwd()
        return here[len(self._files) :] or "/" if here.startswith(self._files) else here

    def logical(self, descriptor: int) -> str:
        """Of an open folder or file."""
        path = name_of(descriptor)
        return path[len(self._files) :] or "/" if path.startswith(self._files) else path

    def find(self, path: Any, follow: bool = True, folder: int | None = None) -> Place | None:
        """None: it is left alone (a descriptor, a device, a path that is none)."""
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        if not text or "\0" in text:
            return None
        if not text.startswith("/"):
            text = f"{self.cwd() if folder is None else self.logical(folder)}/{text}"
        if text.startswith(self.folder):
            if not text.startswith(self._files):
                return None
            text = text[len(self._files) :]
        todo, links = text.split("/")[::-1], 0
        at, up, low = "", self._files if self.dirty else None, ""
        trail: list[tuple[str, str | None, str | None]] = []
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                at, up, low = trail.pop() if trail else (at, up, low)  # type: ignore[assignment]
                continue
            trail.append((at, up, low))
            at += f"/{name}"
            if at in _MEMORY and not (at == "/dev" and todo and todo[-1] == "shm"):
                return None
            up, low = _step(up, low, name)  # type: ignore[assignment]
            node = up or low
            if node is None or not (todo or follow):
                continue
            try:
                target = real.readlink(node)
            except OSError:
                continue
            links += 1
            if links > _MOST_LINKS:
                raise failed(errno.ELOOP, path)
            todo += target.split("/")[::-1]
            if target.startswith("/"):
                at, up, low, trail = "", self._files if self.dirty else None, "", []
            else:
                at, up, low = trail.pop()  # type: ignore[assignment]
        return Place(at or "/", up, low)

    def actual(self, path: Any) -> Any:
        """Where C code finds it."""
        place = self.find(path)
        return path if place is None or place.up is None else place.up

    def parent(self, place: Place, name: Any) -> Place:
        """Where it is to be made or removed; raises what the kernel would."""
        parent = self.find(os.path.dirname(place.path), follow=False)
        assert parent is not None
        found = parent.found
        if found is None:
            raise failed(errno.ENOENT, name)
        if not is_folder(found):
            raise failed(errno.ENOTDIR, name)
        if not real.access(found, os.W_OK | os.X_OK):
            raise failed(errno.EACCES, name)
        return parent

    # ---- changes

    def new(self, place: Place, name: Any) -> tuple[str, bool]:
        """Where it is to be made, and whether something on the disk is hidden then."""
        self.copy_up(self.parent(place, name), name)
        path = self._files + place.path
        with suppress(FileNotFoundError):
            real.unlink(path)  # the link that says that it was removed
            return path, True
        return path, False

    def new_folder(self, place: Place, name: Any, make: Callable[[str], object]) -> None:
        path, hides = self.new(place, name)
        make(path)
        if hides:
            real.close(real.open(f"{path}/{_OPAQUE}", os.O_CREAT | os.O_WRONLY))

    def copy_up(self, place: Place, name: Any, content: bool = True) -> str:
        """It, among what was written."""
        if place.path == "/":
            self.dirty = True
            return self._files
        if place.up is not None:
            return place.up
        if place.low is None or not exists(place.low):
            raise failed(errno.ENOENT, name)
        parent = self.find(os.path.dirname(place.path), follow=False)
        if parent is None:  # /dev, of which only /dev/shm is looked at
            above = self._files + os.path.dirname(place.path)
            parent = Place(os.path.dirname(place.path), above if exists(above) else None, os.path.dirname(place.path))
        self.copy_up(parent, name)
        path, source = self._files + place.path, real.lstat(place.low)
        if stat.S_ISLNK(source.st_mode):
            real.symlink(real.readlink(place.low), path)
            return path
        if stat.S_ISDIR(source.st_mode):
            real.mkdir(path)
            real.chmod(path, stat.S_IMODE(source.st_mode) | stat.S_IRWXU)
        elif stat.S_ISREG(source.st_mode):
            with by_us(), real_open(path, "xb") as to:
                if content:
                    with real_open(place.low, "rb") as file:
                        shutil.copyfileobj(file, to, 1 << 20)
            real.chmod(path, stat.S_IMODE(source.st_mode))
        else:
            raise failed(errno.EROFS, name)
        real.utime(path, ns=(source.st_atime_ns, source.st_mtime_ns))
        return path

    def copy_tree(self, place: Place, name: Any) -> str:
        path = self.copy_up(place, name)
        for inner in self.names(place) if is_folder(path) else ():
            below = self.find(f"{place.path}/{inner}", follow=False)
            assert below is not None
            self.copy_tree(below, name)
        return path

    def names(self, place: Place) -> list[str]:
        """What is in a folder."""
        above = {} if place.up is None else {n: real.lstat(f"{place.up}/{n}") for n in real.listdir(place.up)}
        seen = [n for n, found in above.items() if n != _OPAQUE and not _is_gone(f"{place.up}/{n}", found)]
        below = place.low is not None and (place.up is None or is_folder(place.low))
        return seen + ([n for n in real.listdir(place.low) if n not in above] if below else [])

    def drop(self, place: Place, name: Any) -> None:
        """It is there no more."""
        parent = self.parent(place, name)
        base = os.path.basename(place.path)
        hides = parent.low is not None and exists(f"{parent.low}/{base}")
        if place.up is not None:
            (shutil.rmtree if is_folder(place.up) else real.unlink)(place.up)
        if hides:
            self.copy_up(parent, name)
            real.symlink(_GONE, self._files + place.path)

    def open(self, place: Place, name: Any, flags: int, mode: int = 0o777) -> int:
        if TMPFILE and flags & TMPFILE == TMPFILE:
            return int(real.open(self.folder, flags, mode))
        found = place.found
        if found is None:
            if not flags & os.O_CREAT:
                raise failed(errno.ENOENT, name)
            return int(real.open(self.new(place, name)[0], flags, mode))
        if flags & os.O_CREAT and flags & os.O_EXCL:
            raise failed(errno.EEXIST, name)
        plain = stat.S_ISREG(real.lstat(found).st_mode)
        if plain and flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            if not real.access(found, os.W_OK):
                raise failed(errno.EACCES, name)
            found = self.copy_up(place, name, content=not flags & os.O_TRUNC)
        try:
            return int(real.open(found, flags, mode))
        except OSError as error:
            raise failed(error.errno or errno.EIO, name) from None


def _step(up: str | None, low: str | None, name: str) -> tuple[str | None, str | None]:
    """From a folder to what is in it."""
    below = None if low is None else f"{low}/{name}"
    if up is None:
        return None, below
    path = f"{up}/{name}"
    try:
        found = real.lstat(path)
    except OSError:
        return None, below
    if _is_gone(path, found):
        return None, None
    if not stat.S_ISDIR(found.st_mode) or exists(f"{path}/{_OPAQUE}"):
        below = None
    return path, below


def _walk(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    with real.scandir(folder) as entries:
        found = list(entries)
    folders = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
    yield folder, folders, [entry.name for entry in found if entry.name not in folders]
    for name in folders:
        yield from _walk(f"{folder}/{name}")
