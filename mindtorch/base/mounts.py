"""Disks seen through overlays: what a process and its children write to them stays apart, and is thrown away.

`own` gives the process a mount namespace of its own. It has to come while there is one thread, so the command calls it
first of all. `Overlays` then covers every disk that can be written to. A disk's directories with other disks below them
cannot be covered whole: the directories in them are, and what lies beside these is read-only meanwhile. ``/dev``
(but for ``/dev/shm``), ``/proc``, ``/run`` and ``/sys`` stay as they are.

One file: the system calls that Python does not have, and what they are for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import config

__all__ = ["Overlays", "apart", "kept_until_exit", "own", "owned"]

_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000  # linux/sched.h
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE, _DETACH = 1, 32, 4096, 16384, 1 << 18, 2  # linux/mount.h
_FLAGS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
_SET_DUMPABLE = 4  # linux/prctl.h
_CAPABILITIES = 0x20080522  # linux/capability.h: version 3
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | getattr(os, "O_PATH", 0)
_MEMORY = ("/dev", "/proc", "/run", "/sys")
_SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/lib64", "/sbin", "/usr")
_MANY = 256  # folders of other people, in one
_NO_DISKS = frozenset({"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs",
                       "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs",
                       "securityfs", "selinuxfs", "sysfs", "tracefs"})  # fmt: skip

_owned = False
_process = 0  # whose mounts they are
_as_user = False  # in a user namespace of its own: the rights to mount are taken only while they are needed


def owned() -> bool:
    """Whether the process may cover its disks."""
    return _owned


#: Whether what was written is kept for the program's exit handlers: the process ends with one command.
kept_until_exit = False


def own() -> bool:
    """Take a mount namespace of one's own, if the kernel permits it; whether it did. Changes nothing otherwise."""
    global _owned, _process
    if not _owned and sys.platform == "linux" and config.private_mounts() and len(os.listdir("/proc/self/task")) == 1:
        _owned, _process = _rehearsed() and _unshare(), os.getpid()
    return _owned


def apart() -> None:
    """In a process that was forked off: its mounts are no longer the other one's."""
    global _process
    if _owned and os.getpid() != _process:
        with _rights():
            _call("unshare", ctypes.c_int(_NEW_MOUNTS))
        _process = os.getpid()


def _rehearsed() -> bool:
    """Whether a child process can do all of it: where it cannot, this one must not have begun."""
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(OSError):
            if _unshare():
                with Overlays():
                    code = 0
        os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _unshare() -> bool:
    global _as_user
    user, group = os.geteuid(), os.getegid()
    _as_user = user != 0
    try:
        _call("unshare", ctypes.c_int(_NEW_MOUNTS | (_NEW_USER if _as_user else 0)))
        if _as_user:
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
            _call("prctl", ctypes.c_int(_SET_DUMPABLE), ctypes.c_ulong(1))  # as before: debuggers may attach
        _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    except OSError:
        return False
    finally:
        _take_rights(False)
    return True


# ---- system calls ----------------------------------------------------------------------------------------------------
def _call(name: str, *args: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _call("mount", source.encode(), os.fsencode(target), kind and kind.encode(), ctypes.c_ulong(flags),
          options.encode())  # fmt: skip


def _take_rights(wanted: bool) -> None:
    """In a user namespace one has every right. The program must not: files that it may not read, it may not read."""
    if not _as_user:
        return
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    _call("capget", header, sets)
    for at in (0, 3):
        sets[at] = sets[at + 1] if wanted else 0
    _call("capset", header, sets)


@contextlib.contextmanager
def _rights() -> Iterator[None]:
    _take_rights(True)
    try:
        yield
    finally:
        _take_rights(False)


# ---- disks -----------------------------------------------------------------------------------------------------------
class _Disk(NamedTuple):
    """Something mounted, that files can be written to."""

    path: str
    flags: int


def _mounted() -> dict[str, tuple[str, list[str]]]:
    """What is mounted where: kind and options, by path."""
    found = {}
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            left, _, right = line.partition(b" - ")
            fields = left.split()
            path = os.fsdecode(re.sub(rb"\\(\d{3})", lambda found: bytes([int(found[1], 8)]), fields[4]))
            found[path] = (right.split()[0].decode(), fields[5].decode().split(","))  # the last one is on top
    return found


def _in_memory(path: str) -> bool:
    """Of the system's own: devices, sockets, what is no file. Programs put files into /dev/shm."""
    return _within(path, _MEMORY) and not _within(path, ("/dev/shm",))


def _within(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _disks(mounted: dict[str, tuple[str, list[str]]]) -> list[_Disk]:
    return [
        _Disk(path, sum(_FLAGS.get(option, 0) for option in options))
        for path, (kind, options) in mounted.items()
        if kind not in _NO_DISKS and "rw" in options and os.path.isdir(path) and not _in_memory(path)
    ]


def _whole(folder: str, mounted: dict[str, tuple[str, list[str]]]) -> Iterator[str]:
    """The folder, if nothing is mounted in it, else such folders in it, of the same disk.

    In a user namespace other people's files cannot be copied up, nor can a folder in another one of theirs: so one's
    own folders in theirs are covered apart.
    """
    alone = folder != "/" and not any(path != folder and _within(path, (folder,)) for path in mounted)
    if alone:
        yield folder
        if not _as_user or os.access(folder, os.W_OK) or _within(folder, _SYSTEM):
            return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in list(entries)[: _MANY if alone else None]:
            inner = entry.is_dir(follow_symlinks=False) and entry.path not in mounted
            if not inner or _in_memory(entry.path):
                continue
            if not alone:
                yield from _whole(entry.path, mounted)
            elif os.access(entry.path, os.W_OK):
                yield entry.path


# ---- overlays --------------------------------------------------------------------------------------------------------
class Overlays:
    """Within the block every disk is covered. Raises OSError where the working folder, the home or the folder of
    temporary files cannot be. Where something else cannot be, it is read-only meanwhile."""

    def __init__(self) -> None:
        self._covered: list[tuple[str, int, str]] = []  # path, what is below as a descriptor, what is above
        self._below: list[int] = []
        self._frozen: list[_Disk] = []
        self._in_memory = False
        self._shown = True  # the disks are seen as they are
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Overlays:
        apart()
        try:
            with _rights():
                self._cover()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def pause(self) -> None:
        """Show the disks as they are, until `resume`: what was written is kept."""
        self._here = self._where()
        with _rights():
            self._show()

    def resume(self) -> None:
        with _rights():
            self._shown = False
            for number, (path, below, _) in enumerate(self._covered):
                # The kernel leaves a mark by which it refuses what may not be whole after a crash: there was none.
                shutil.rmtree(f"/proc/self/fd/{self._above}/{number}/work/work", ignore_errors=True)
                self._lay(path, below, number)
            self._freeze([*self._frozen])
        with contextlib.suppress(OSError):
            os.chdir(self._here)

    def _cover(self) -> None:
        mounted, here = _mounted(), os.getcwd()
        self._before, self._shown = here, False
        self._folder = tempfile.mkdtemp(prefix="genie-")
        self._above = os.open(self._folder, _FOLDER)
        self._stack.callback(self._throw_away)
        disks = _disks(mounted)
        needed = list(dict.fromkeys(map(os.path.realpath, (here, os.path.expanduser("~"), tempfile.gettempdir()))))
        wanted = [path for disk in disks for path in _whole(disk.path, mounted)]
        if _as_user:
            wanted += [path for path in needed if path not in wanted and os.access(path, os.W_OK)]
        for path in wanted:
            self._below.append(os.open(path, _FOLDER))  # before anything covers it
        for path, below in zip(wanted, self._below, strict=True):
            with contextlib.suppress(OSError):
                self._covered.append((path, below, self._overlay(path, below, len(self._covered))))
        covered = tuple(path for path, _, _ in self._covered)
        for path in needed:
            if not os.access(path, os.W_OK):
                continue
            if not _within(path, covered):
                raise OSError(f"{path} cannot be covered with an overlay")
            with tempfile.TemporaryFile(dir=path):
                pass
        if _as_user and any(_somebody_elses(entry) for entry in os.scandir(here)):
            raise OSError(f"{here} has writable files of another user")
        self._freeze([disk for disk in disks if disk.path not in covered])
        os.chdir(here)  # into what covers it

    def _freeze(self, disks: list[_Disk]) -> None:
        self._frozen.clear()
        for disk in disks:
            with contextlib.suppress(OSError):  # a file that somebody is writing to
                _mount("none", disk.path, None, _REMOUNT | _BIND | _READ_ONLY | disk.flags)
                self._frozen.append(disk)

    def _overlay(self, path: str, below: int, number: int) -> str:
        above = f"/proc/self/fd/{self._above}/{number}"
        self._make_room(above, below)
        try:
            self._lay(path, below, number)
        except OSError:
            if number or self._in_memory:
                raise
            # What lies above may not be on an overlay itself, as a container's disk is: it is in memory then.
            _mount("genie", self._folder, "tmpfs", 0, "mode=0700")
            self._in_memory = True
            os.close(self._above)
            self._above = os.open(self._folder, _FOLDER)
            return self._overlay(path, below, number)
        return f"{above}/upper"

    def _lay(self, path: str, below: int, number: int) -> None:
        # By descriptors: the options know no way to write every character that a path may have.
        above = f"/proc/self/fd/{self._above}/{number}"
        options = f"lowerdir=/proc/self/fd/{below},upperdir={above}/upper,workdir={above}/work,index=off,volatile"
        _mount("genie", path, "overlay", 0, options + (",userxattr" if _as_user else ",redirect_dir=on"))

    @staticmethod
    def _make_room(above: str, below: int) -> None:
        """Its folder has the properties of the one below; where one may not write, the owner may not either."""
        os.makedirs(f"{above}/work", exist_ok=True)
        os.makedirs(f"{above}/upper", exist_ok=True)
        under = f"/proc/self/fd/{below}"
        found = os.stat(under)
        mode = stat.S_IMODE(found.st_mode)
        with contextlib.suppress(OSError):  # nobody may give away what is his, and some owners have no name here
            os.chown(f"{above}/upper", found.st_uid, found.st_gid)
        os.chmod(f"{above}/upper", mode if os.access(under, os.W_OK) else mode & ~0o222)
        os.utime(f"{above}/upper", ns=(found.st_atime_ns, found.st_mtime_ns))

    def _throw_away(self) -> None:
        with _rights():
            self._show()
            if self._in_memory:
                _call("umount2", os.fsencode(self._folder), ctypes.c_int(_DETACH))
            for opened in (self._above, *self._below):
                os.close(opened)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _show(self) -> None:
        if self._shown:
            return
        self._shown = True
        here = self._where()
        for disk in self._frozen:
            with contextlib.suppress(OSError):
                _mount("none", disk.path, None, _REMOUNT | _BIND | disk.flags)
        for path, _, _ in reversed(self._covered):
            _call("umount2", os.fsencode(path), ctypes.c_int(_DETACH))
        os.chdir(here if os.path.isdir(here) else self._before)  # out of what covered it

    def _where(self) -> str:
        """The current directory; where the program has removed that, the one that it began in."""
        with contextlib.suppress(OSError):
            return os.getcwd()
        return self._before

    def same_disk(self, *paths: Any) -> bool:
        """Whether they would be on one if nothing covered it."""
        disks = set()
        for path in map(os.fsdecode, paths):
            place = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(path))), "")
            under = [(name, below) for name, below, _ in self._covered if place.startswith(f"{name}/")]
            disks.add(os.stat(f"/proc/self/fd/{max(under)[1]}").st_dev if under else path)
        return len(disks) == 1

    def changed(self) -> Iterator[tuple[str, bool]]:
        """What was written or made, and what was there and is removed: absolute paths, those of folders with a "/" at
        the end, and whether it is removed."""
        for path, below, above in self._covered:
            for folder, folders, files in os.walk(above):
                inner = os.path.relpath(folder, above)
                place, under = os.path.normpath(os.path.join(path, inner)), f"/proc/self/fd/{below}/{inner}"
                gone = [name for name in files if _is_whiteout(os.lstat(os.path.join(folder, name)))]
                yield from ((os.path.join(place, name), False) for name in files if name not in gone)
                yield from ((os.path.join(place, _marked(under, name)), True) for name in gone)
                if inner == ".":
                    continue
                there = os.path.lexists(under)
                if not folders and not files and not there:
                    yield f"{place}/", False
                if there and self._is_new(folder):
                    hidden = sorted({*os.listdir(under)}.difference(folders, files)) if os.path.isdir(under) else ()
                    yield from ((os.path.join(place, _marked(under, name)), True) for name in hidden)

    @staticmethod
    def _is_new(folder: str) -> bool:
        """Was it removed and made again? What the disk has there is not looked at then."""
        with contextlib.suppress(OSError), _rights():
            return os.getxattr(folder, f"{'user' if _as_user else 'trusted'}.overlay.opaque") == b"y"
        return False


def _marked(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    return f"{name}/" if os.path.isdir(path) and not os.path.islink(path) else name


def _is_whiteout(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _somebody_elses(entry: os.DirEntry[str]) -> bool:
    """What can be written to, and not copied up."""
    found = entry.stat(follow_symlinks=False)
    mine = found.st_uid == os.geteuid() and found.st_gid == os.getegid()
    return not mine and not entry.is_symlink() and os.access(entry.path, os.W_OK)
