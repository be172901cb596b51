"""What a program saved while estimating: sizes and small values. The file, or buffer, holds a word that stands for it.

The file is like any other of an estimated program: it can be copied, renamed and removed, and is gone at the end
(`private_files.py`).
"""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from typing import Any

__all__ = ["NOTHING", "forget", "found", "remember", "written_as"]

NOTHING: Any = object()
_BEGINS = b"saved in an estimate: "
_LENGTH = len(_BEGINS) + 24
_records: dict[bytes, Any] = {}
_numbers = itertools.count()


def forget() -> None:
    """An estimate begins: what an earlier one saved is known no more."""
    _records.clear()


def written_as(what: Any) -> bytes:
    """The bytes that stand for it."""
    word = _BEGINS + f"{os.getpid():011d}-{next(_numbers):011d}\n".encode()
    _records[word] = what
    return word


def remember(f: Any, what: Any) -> None:
    """`what` was saved to the file or buffer `f`."""
    if isinstance(f, (str, bytes, os.PathLike)):
        with open(f, "wb") as file:
            file.write(written_as(what))
    else:
        f.write(written_as(what))


def found(f: Any) -> Any:
    """What was saved to `f`, which is read until its end then; `NOTHING` if nothing was."""
    if isinstance(f, (str, bytes, os.PathLike)):
        with suppress(OSError), open(f, "rb") as file:
            return _records.get(file.read(_LENGTH), NOTHING)
        return NOTHING
    if isinstance(f, (bytearray, memoryview)):
        return _records.get(bytes(f), NOTHING)
    if not hasattr(f, "seek") or not hasattr(f, "tell"):
        return NOTHING
    at = f.tell()
    what = _records.get(f.read(_LENGTH), NOTHING)
    if what is NOTHING:
        f.seek(at)
    return what
