"""`private()`: within it nothing that an estimated program writes reaches the disk; what it would have written.

The program itself sees what it wrote, until the block ends; where the process ends with the command, its exit handlers
see it again (`private_at_exit`). Where the process has mounts of its own (`mindtorch.base.mounts`), every disk is
covered, so that this holds for C libraries and child processes, too. Elsewhere Python's functions are led to another
folder (`redirected.py`).
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from ..._ext import audit
from ...base import mounts
from ...base.mounts import Overlays
from .redirected import Redirected

__all__ = ["actual", "left_alone", "private", "private_at_exit", "throw_away"]

# Python's own caches, and scratch files whose names nobody chose.
_OF_NO_INTEREST = re.compile(r"/(__pycache__|pymp-[^/]*|tmp[a-z0-9_]{8}|torchinductor_[^/]*)(/|$)|\.pyc(\.\d+)?$")
# Libraries that write files without Python.
_WRITERS = ("cv2", "h5py", "lmdb", "netCDF4", "pyarrow", "rasterio", "soundfile", "tables", "tensorflow")
_now: Overlays | Redirected | None = None
_kept: Overlays | Redirected | None = None  # of the block that has ended, for exit handlers
_asked = ""  # the host that was looked up last
_hosts: set[str] = set()  # that the program connected to


@contextmanager
def private() -> Iterator[None]:
    """For the length of the block. One within another is the outer one."""
    global _kept
    if _now is not None:
        yield
        return
    _forget()
    _hosts.clear()
    _hook()
    place = _entered()
    try:
        with _in(place):
            yield
    finally:
        if mounts.kept_until_exit:
            place.pause()
            _kept = place
        else:
            place.__exit__(None, None, None)


@contextmanager
def private_at_exit() -> Iterator[None]:
    """As the last block was when it ended, with what the program had written."""
    global _kept
    if _kept is None:
        with private():
            yield
        return
    place, _kept = _kept, None
    try:
        place.resume()
        with _in(place):
            yield
    finally:
        place.__exit__(None, None, None)


def _forget() -> None:
    global _kept
    if _kept is not None:
        _kept.__exit__(None, None, None)
        _kept = None


def _entered() -> Overlays | Redirected:
    if mounts.owned():
        with suppress(OSError):  # something that is needed cannot be covered
            return Overlays().__enter__()
    return Redirected().__enter__()


@contextmanager
def _in(place: Overlays | Redirected) -> Iterator[None]:
    global _now
    with _renames_across(place) if isinstance(place, Overlays) else nullcontext():
        _now = place
        try:
            yield
        finally:
            _now = None


@contextmanager
def _renames_across(overlays: Overlays) -> Iterator[None]:
    """Files of one disk can be renamed whatever covers them: the kernel refuses it from one overlay to another, and of
    folders of the disk's own to who has no rights."""
    originals = os.rename, os.replace

    def standing(original: Any) -> Any:
        @functools.wraps(original)
        def rename(src: Any, dst: Any, **descriptors: Any) -> None:
            try:
                original(src, dst, **descriptors)
            except OSError as error:
                if error.errno != errno.EXDEV or descriptors or not overlays.same_disk(src, dst):
                    raise
                if os.path.isdir(src) and not os.path.islink(src):
                    if os.path.lexists(dst):
                        os.rmdir(dst)
                    shutil.copytree(src, dst, symlinks=True)
                    shutil.rmtree(src)
                else:
                    copied = f"{os.fspath(dst)}.genie-{os.getpid()}"
                    shutil.copy2(src, copied, follow_symlinks=False)
                    original(copied, dst)
                    os.unlink(src)

        return rename

    os.rename, os.replace = map(standing, originals)
    try:
        yield
    finally:
        os.rename, os.replace = originals


def left_alone() -> dict[str, list[str]]:
    """Of the program so far. ``not_written``: absolute paths of what it would have written or made, without scratch
    files; ``not_removed``: of what was there, and it would have removed or renamed (a folder's path ends in "/");
    ``not_held_back``: what may have reached something outside, in words."""
    found = () if _now is None else _now.changed()
    scratch = re.compile(rf"{re.escape(tempfile.gettempdir())}/tmp[a-z0-9_]{{8}}").match  # whatever ending was chosen
    paths: tuple[set[str], set[str]] = set(), set()
    for path, gone in found:
        if not _OF_NO_INTEREST.search(path) and not scratch(path):
            paths[gone].add(path)
    return {"not_written": sorted(paths[0]), "not_removed": sorted(paths[1]), "not_held_back": _not_held_back()}


def _not_held_back() -> list[str]:
    found = []
    if isinstance(_now, Redirected):
        if _now.children:
            found.append(f"files that child processes may have written ({', '.join(sorted(_now.children))})")
        if writers := [name for name in _WRITERS if name in sys.modules]:
            found.append(f"files that C libraries may have written ({', '.join(writers)})")
    if _hosts:
        found.append(f"connections ({', '.join(sorted(_hosts))})")
    return found


def throw_away() -> None:
    """The process ends here, in the middle of the block."""
    if _now is not None:
        _now.__exit__(None, None, None)


def actual(path: Any) -> Any:
    """Where C code finds the file that the program calls so."""
    return _now.actual(path) if isinstance(_now, Redirected) and isinstance(path, (str, bytes, os.PathLike)) else path


@functools.cache
def _hook() -> None:
    """Once a process: there is no way back."""
    audit.hear(b"socket.", _audited)


def _audited(event: str, args: tuple[Any, ...]) -> None:
    global _asked
    if _now is None:
        return
    if event == "socket.getaddrinfo":
        _asked = str(args[0])
    elif event == "socket.connect" and isinstance(args[1], tuple):
        host = str(args[1][0])
        with suppress(ValueError):
            if ipaddress.ip_address(host.partition("%")[0]).is_loopback:
                return
        if host not in ("localhost", ""):
            _hosts.add(_asked or host)
