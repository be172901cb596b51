"""Memory that a safetensors file is mapped to: where in which file it is (SPEC R2). No torch import."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import BinaryIO

__all__ = ["mapped", "part_of"]

_LONGEST = 100_000_000  # bytes of a header, as in the library
_START = 8  # bytes that say how long the header is


def mapped(address: int, nbytes: int) -> tuple[str, int] | None:
    """(path, offset) of the safetensors file that so many bytes at an address are mapped from, None without one.

    They may have been written to since, which the file does not know.
    """
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                begin, _, end = line.split(" ", 1)[0].partition("-")
                if int(begin, 16) <= address < int(end, 16):
                    fields = line.rstrip("\n").split(maxsplit=5)
                    if len(fields) < 6 or not fields[5].startswith("/") or address + nbytes > int(end, 16):
                        return None
                    offset = int(fields[2], 16) + address - int(begin, 16)
                    return (fields[5], offset) if _is_safetensors(fields[5], offset) else None
    except OSError:  # no Linux
        pass
    return None


def part_of(path: str, offset: int, nbytes: int, folders: Sequence[str]) -> bytes | None:
    """So much of a safetensors file's tensors; None where there is no such file in these folders, or it ends before.

    What is elsewhere is not looked at.
    """
    try:
        path = os.path.realpath(path)
        if not any(path.startswith(os.path.join(os.path.realpath(folder), "")) for folder in folders):
            return None
        if not _is_safetensors(path, offset):
            return None
        with open(path, "rb") as file:
            file.seek(offset)
            found = file.read(nbytes)
    except (OSError, ValueError):  # no path: it has a null in it
        return None
    return found if len(found) == nbytes else None


def _is_safetensors(path: str, offset: int) -> bool:
    """Is it a regular file that begins as they do, with its header before the offset?"""
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait
        return False
    with open(path, "rb") as file:
        return _begins_so(file, offset)


def _begins_so(file: BinaryIO, offset: int) -> bool:
    length = int.from_bytes(file.read(_START), "little")
    return 2 <= length <= _LONGEST and _START + length <= offset and file.read(1) == b"{"
