"""Files as an estimated program sees them where the kernel lends no overlays: Python's functions, in front of a tree.

Whatever opens, lists, asks for or changes files in Python (`os`, `io`, `sqlite3`, and who has their functions by name)
goes to a `Tree`, so that none of it changes the disk. What C code does by itself is not seen; an audit hook refuses
what comes past the functions here by Python's own doors.

One file: the stand-ins are one list, and each is a few lines.
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
import types
import urllib.parse
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..._ext import audit
from ..._ext.standin import holders
from ...base.patching import Patches
from .compiled_writers import MODULES
from .dir_entries import Entries
from .private_tree import (
    TMPFILE,
    Place,
    Tree,
    by_others,
    by_us,
    exists,
    failed,
    is_folder,
    local,
    name_of,
    real,
    real_open,
)

__all__ = ["Redirected"]

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_open_code = io.open_code
_now: Redirected | None = None


def _given(dir_fd: int | None) -> dict[str, int]:
    return {} if dir_fd is None else {"dir_fd": dir_fd}


class Redirected(Tree):
    """Within the block, nothing that the program writes by Python's functions reaches the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._held = Patches()
        self._process = os.getpid()
        self._here: str | None = None  # where the program was when it paused
        self.children: set[str] = set()  # programs that were started: what they write is written

    def __enter__(self) -> Redirected:
        os.mkdir(f"{self.folder}/tmp")
        self.resume()
        return self

    def resume(self) -> None:
        global _now
        scratch = f"{self.folder}/tmp"
        self._before = os.getcwd(), tempfile.tempdir, os.environ.get("TMPDIR")
        tempfile.tempdir = os.environ["TMPDIR"] = scratch  # for C code, too; and sockets have to be in real folders
        self._bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        _hook()
        _now = self
        self._install()
        if self._here is not None:
            with suppress(OSError):
                os.chdir(self._here)

    def pause(self) -> None:
        """Python's own functions, until `resume`: what was written is kept."""
        global _now
        if _now is not self:
            return
        before, tempfile.tempdir, folder = self._before
        here = before
        with suppress(OSError):  # the program may have removed it
            here = self.cwd()
        self._here, _now = here, None
        self._held.undo()
        sys.dont_write_bytecode = self._bytecode
        for name in [name for name, value in os.environ.items() if value.startswith(self.folder)]:
            del os.environ[name]  # TMPDIR, and what was chosen within it: inductor's cache would be made anew there
        if folder is not None:
            os.environ["TMPDIR"] = folder
        with suppress(OSError):
            if os.getcwd() == here:
                return
        os.chdir(here if os.path.isdir(here) else before)

    def __exit__(self, *_: object) -> None:
        self.pause()
        if os.getpid() == self._process:
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- what stands in

    def _install(self) -> None:
        made = {getattr(real, name): each for name, each in self._functions().items() if hasattr(real, name)}
        made |= {real_open: self._open_file, _open_code: self._open_code}
        with suppress(ImportError):  # some Pythons are built without it
            import sqlite3.dbapi2

            made[sqlite3.connect] = functools.partial(self._connect, sqlite3.connect)
        standing = {original: _stand_in(original, each) for original, each in made.items()}
        openers = getattr(getattr(sys.modules.get("numpy.lib._datasource"), "_file_openers", None), "_file_openers", {})
        if openers.get(None) is real_open:  # by which numpy writes text
            self._held.put([(openers, None, standing[real_open])])
        found: list[Any] = holders(standing, (__name__, Tree.__module__))
        for module, name in (("pathlib", "_NormalAccessor"), ("glob", "_StringGlobber")):  # Python 3.10, 3.13
            if (owner := getattr(sys.modules.get(module), name, None)) is not None:
                theirs = {name: getattr(value, "__func__", value) for name, value in vars(owner).items()}
                instead = {name: standing.get(value) for name, value in theirs.items() if callable(value)}
                found += [(owner, name, staticmethod(each)) for name, each in instead.items() if each]
        self._held.put(found)
        for module, patches in MODULES.items():
            self._held.put_when_loaded(module, functools.partial(patches, self))
        for kinds in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            more = {made for original, made in standing.items() if original in kinds} - kinds
            kinds |= more
            self._held.after(kinds.difference_update, more)

    def move_in(self, made: str, path: Any) -> None:
        """A file of ours is what the program wrote there from now on."""
        self._rename(made, path)

    def _functions(self) -> dict[str, Callable[..., Any]]:
        made = {name: self._reader(name) for name in ("stat", "access", "statvfs", "getxattr", "listxattr", "pathconf")}
        made |= {name: self._reader(name, follow=False) for name in ("lstat", "readlink")}
        made |= {
            name: self._changer(name) for name in ("chmod", "chown", "utime", "truncate", "setxattr", "removexattr")
        }
        made |= {"lchown": self._changer("lchown", follow=False)}
        made |= {name: self._maker(name) for name in ("mkfifo", "mknod")}
        made |= {
            "open": self._os_open, "mkdir": self._mkdir, "rmdir": self._rmdir, "remove": self._unlink,
            "unlink": self._unlink, "rename": self._rename, "replace": self._rename, "link": self._link,
            "symlink": self._symlink, "listdir": self._listdir, "scandir": self._scandir, "chdir": self._chdir,
            "getcwd": self.cwd, "getcwdb": lambda: os.fsencode(self.cwd()), "fchmod": made["chmod"],
            "fchown": made["chown"],
        }  # fmt: skip
        return made

    def _reader(self, name: str, follow: bool = True) -> Callable[..., Any]:
        original = getattr(real, name, None)

        def read(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
            place = self.find(path, options.get("follow_symlinks", follow), dir_fd) if self.dirty else None
            if place is None:
                return original(path, *args, **_given(dir_fd), **options)  # type: ignore[misc]
            if place.up is None and place.low is None:
                if name == "access":
                    return False
                raise failed(errno.ENOENT, path)
            try:
                return original(place.up or place.low, *args, **options)  # type: ignore[misc]
            except OSError as error:
                raise failed(error.errno or errno.EIO, path) from None

        return read

    def _changer(self, name: str, follow: bool = True) -> Callable[..., Any]:
        original = getattr(real, name, None)

        def change(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
            if isinstance(path, int):
                named = stat.S_IFMT(os.fstat(path).st_mode) in (stat.S_IFREG, stat.S_IFDIR)
                if not named or not exists(name_of(path)):
                    return original(path, *args, **options)  # type: ignore[misc]
                place = self.find(self.logical(path), follow=False)
            else:
                place = self.find(path, options.get("follow_symlinks", follow), dir_fd)
            if place is None:
                return original(path, *args, **_given(dir_fd), **options)  # type: ignore[misc]
            if name == "truncate" and place.found is not None and not real.access(place.found, os.W_OK):
                raise failed(errno.EACCES, path)
            with by_us():
                return original(self.copy_up(place, path), *args, **options)  # type: ignore[misc]

        return change

    def _maker(self, name: str) -> Callable[..., Any]:
        original = getattr(real, name, None)

        def make(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
            place = self._absent(path, dir_fd)
            with by_us():
                return original(path if place is None else self.new(place, path)[0], *args, **options)  # type: ignore[misc]

        return make

    def _absent(self, path: Any, dir_fd: int | None) -> Place | None:
        place = self.find(path, follow=False, folder=dir_fd)
        if place is not None and place.found is not None:
            raise failed(errno.EEXIST, path)
        return place

    def _present(self, path: Any, dir_fd: int | None, folder: bool | None = None) -> Place | None:
        """folder: whether it has to be one."""
        place = self.find(path, follow=False, folder=dir_fd)
        if place is not None:
            if place.found is None:
                raise failed(errno.ENOENT, path)
            if folder is not None and is_folder(place.found) is not folder:
                raise failed(errno.ENOTDIR if folder else errno.EISDIR, path)
        return place

    def _open_file(self, file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
                   newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
        writes = isinstance(mode, str) and not set(mode).isdisjoint("wax+")
        named = opener is None and isinstance(file, (str, bytes, os.PathLike))
        place = self.find(file) if named and _now is self and (writes or self.dirty) else None
        if opener is not None:  # it opens files by these functions itself; what Python audits before is its argument
            with by_us():
                return real_open(file, mode, buffering, encoding, errors, newline, closefd, by_others(opener))
        if place is None:
            return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        with by_us():
            return real_open(file, mode, buffering, encoding, errors, newline, closefd,
                         lambda name, flags: self.open(place, name, flags, 0o666))  # fmt: skip

    def _open_code(self, path: str) -> Any:
        return _open_code(self.actual(path) if _now is self and self.dirty else path)

    def _os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        writes = flags & _WRITES or (TMPFILE and flags & TMPFILE == TMPFILE)
        place = self.find(path, not flags & os.O_NOFOLLOW, dir_fd) if writes or self.dirty else None
        if place is None:
            return int(real.open(path, flags, mode, dir_fd=dir_fd))
        with by_us():
            return self.open(place, path, flags, mode)

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        place = self._absent(path, dir_fd)
        with by_us():
            if place is None:
                real.mkdir(path, mode, dir_fd=dir_fd)
            else:
                self.new_folder(place, path, lambda made: real.mkdir(made, mode))

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        place = self._present(path, dir_fd, folder=True)
        with by_us():
            if place is None:
                real.rmdir(path, dir_fd=dir_fd)
            elif self.names(place):
                raise failed(errno.ENOTEMPTY, path)
            else:
                self.drop(place, path)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        place = self._present(path, dir_fd, folder=False)
        with by_us():
            if place is None:
                real.unlink(path, dir_fd=dir_fd)
            else:
                self.drop(place, path)

    def _rename(self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        source, target = self._present(src, src_dir_fd), self.find(dst, False, dst_dir_fd)
        with by_us():
            if source is None and target is None:
                real.rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
                return
            if source is not None and target is not None and source.path == target.path:
                return
            if source is not None:
                self.parent(source, src)
            found = os.fspath(src) if source is None else source.found
            assert found is not None
            folder, there = is_folder(found), None if target is None else target.found
            if source is not None and target is not None and folder and target.path.startswith(source.path + "/"):
                raise failed(errno.EINVAL, src)
            if there is not None and is_folder(there) is not folder:
                raise failed(errno.ENOTDIR if folder else errno.EISDIR, dst)
            if there is not None and folder and self.names(target):  # type: ignore[arg-type]
                raise failed(errno.ENOTEMPTY, dst)
            moved = found if source is None else self.copy_tree(source, src)
            if target is None:
                shutil.move(moved, dst)
            else:
                if there is not None:
                    self.drop(target, dst)
                make = self.new_folder if folder else self._new_file
                make(target, dst, functools.partial(real.rename, moved))
            if source is not None:
                self.drop(source._replace(up=None), src)

    def _new_file(self, place: Place, name: Any, make: Callable[[str], object]) -> None:
        make(self.new(place, name)[0])

    def _link(self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None,
              follow_symlinks: bool = True) -> None:  # fmt: skip
        source, target = self._present(src, src_dir_fd, folder=False), self._absent(dst, dst_dir_fd)
        with by_us():
            found = src if source is None else self.copy_up(source, src)
            real.link(found, dst if target is None else self.new(target, dst)[0], follow_symlinks=follow_symlinks)

    def _symlink(self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        target = self._absent(dst, dir_fd)
        with by_us():
            real.symlink(src, dst if target is None else self.new(target, dst)[0])

    def _folder_of(self, path: Any) -> Place | None:
        """A folder to list that is not the disk's alone."""
        if not self.dirty:
            return None
        place = self.find(self.logical(path) if isinstance(path, int) else path)
        if place is None or (place.up is None and place.low is not None):
            return None
        if place.up is None:
            raise failed(errno.ENOENT, path)
        if not is_folder(place.up):
            raise failed(errno.ENOTDIR, path)
        return place

    def _listdir(self, path: Any = ".") -> list[Any]:
        path = "." if path is None else path
        place = self._folder_of(path)
        if place is None:
            return list(real.listdir(path))
        return [os.fsencode(name) if isinstance(path, bytes) else name for name in self.names(place)]

    def _scandir(self, path: Any = ".") -> Any:
        path = "." if path is None else path
        place = self._folder_of(path)
        return (
            real.scandir(path)
            if place is None
            else Entries(
                path,
                self.logical(path) if isinstance(path, int) else os.path.abspath(os.fsdecode(path)),
                self.names(place),
            )
        )

    def _chdir(self, path: Any) -> None:
        place = self.find(path) if self.dirty else None
        if place is None:
            real.chdir(path)
        elif place.low is not None and is_folder(place.low):
            real.chdir(place.low)
        else:
            real.chdir(place.found or path)

    def _connect(self, original: Any, database: Any, *args: Any, **options: Any) -> Any:
        uri = bool(options.get("uri")) and isinstance(database, str) and database.startswith("file:")
        name, mark, query = database[5:].partition("?") if uri else (database, "", "")
        name = urllib.parse.unquote(name) if uri else name
        memory = isinstance(name, str) and (not name or name == ":memory:" or "mode=memory" in query)
        place = None if memory else self.find(name)
        if place is None:
            return original(database, *args, **options)
        with by_us():
            for ending in ("", "-wal", "-journal", "-shm"):
                beside = self.find(place.path + ending)
                if beside is not None and beside.found is not None:
                    self.copy_up(beside, name)
            path = place.up or (self._files + place.path if place.found is not None else self.new(place, name)[0])
            return original(f"file:{urllib.parse.quote(path)}{mark}{query}" if uri else path, *args, **options)


def _stand_in(original: Any, made: Callable[..., Any]) -> Callable[..., Any]:
    """Who takes it by name while it stands in keeps it: afterwards it is the original."""

    @functools.wraps(original)
    def stand_in(*args: Any, **options: Any) -> Any:
        if _now is None or getattr(local, "ours", False):
            return original(*args, **options)
        return made(*args, **options)

    return stand_in


# ---- the audit hook --------------------------------------------------------------------------------------------------
_CHANGES = {"os.rename": 2, "os.link": 2, "os.symlink": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.chmod": 1,
            "os.chown": 1, "os.utime": 1, "os.truncate": 1, "os.setxattr": 1, "os.removexattr": 1,
            "sqlite3.connect": 1}  # fmt: skip
_STARTS = ("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec")


@functools.cache
def _hook() -> None:
    """Once a process: there is no way back."""
    for event in ("open", *_CHANGES, *_STARTS):
        audit.hear(event.encode(), _audited)
    os.register_at_fork(after_in_parent=_forked)


def _forked() -> None:
    if _now is not None:
        _now.dirty = True  # by what the child writes


def _is_there(program: str, environment: Any) -> bool:
    """Whether a program of that name can be started: libraries try commands that a machine may lack (nvidia-smi)."""
    path = None if environment is None else environment.get("PATH")
    return os.sep in program or shutil.which(program, path=path) is not None


#: Of the standard library: what they start tells them of libraries and the machine, and writes scratch files at most.
_ASKING = frozenset(os.path.join(os.path.dirname(os.__file__), name)
                    for name in (os.path.join("ctypes", "util.py"), "platform.py", "uuid.py"))  # fmt: skip


def _is_asking() -> bool:
    """Whether it is one of these that starts a process: `ldconfig -p`, of `ctypes.util.find_library`."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename in _ASKING:
            return True
        frame = frame.f_back
    return False


def _audited(event: str, args: tuple[Any, ...]) -> None:
    if _now is None or (event != "open" and event not in _CHANGES and event not in _STARTS):
        return
    if getattr(local, "ours", False):
        return
    if event in _STARTS:
        if _is_asking():
            return
        if event != "subprocess.Popen" or _is_there(os.fsdecode(args[0]), args[3]):
            _now.children.add(os.path.basename(os.fsdecode(args[0]).split()[0]))
        return
    if event == "open" and not (isinstance(args[2], int) and args[2] & _WRITES):
        return
    for path in args[: _CHANGES.get(event, 1)]:
        if isinstance(path, (str, bytes, os.PathLike)) and path != ":memory:" and _now.find(path) is not None:
            raise OSError(errno.EROFS, "an estimate writes nothing, and cannot intercept this way of writing", path)
