"""Copies of memory that is elsewhere, which the program gets for a tensor's storage: what is written there is told
(SPEC L9, R1).

No write to such a copy changes the tensor: `copy_` and `fill_` raise an error. Other writes, such as those of a tensor
that was put on the storage, do not pass here; the next read of any value finds them.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
import zlib
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from ...base.errors import LazyTensorError
from ...base.storage_memory import memory_of
from ..record.arguments import quiet
from . import values

__all__ = ["check", "lend"]

_SMALL = 1 << 20  # bytes that are compared at each read; more, at ever fewer
_MOST = 64  # reads between two comparisons
_OURS = 3  # references to a storage that nobody else has: in `_Lent`, in `check`, and the argument
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class _Lent:
    """What was lent: a storage, and what was in it. ``held``: the storage itself, as long as an object of Python's may
    have it, too; ``contents``: as long; then the checksum is enough."""

    __slots__ = ("checksum", "contents", "held", "left", "of", "storage", "wait")

    def __init__(self, storage: torch.UntypedStorage, contents: torch.UntypedStorage, of: torch.UntypedStorage) -> None:
        self.storage, self.checksum = weakref.ref(storage), 0
        self.held: torch.UntypedStorage | None = storage
        self.contents: torch.UntypedStorage | None = contents
        self.of = weakref.ref(of)  # what stands for the memory that it is a copy of
        self.wait = self.left = 1  # reads

    def is_as_it_was(self, storage: torch.UntypedStorage) -> bool:
        memory = memory_of(storage)
        if self.contents is None:
            return zlib.crc32(memory) == self.checksum
        return len(memory) == self.contents.nbytes() and not _memcmp(memory, memory_of(self.contents), len(memory))

    def let_go(self) -> bool:
        """Hold nothing any more. Is there something that does, such as a tensor?"""
        self.held = self.contents = None
        storage = self.storage()
        if storage is not None:
            self.checksum = zlib.crc32(memory_of(storage))
        return storage is not None


_lent: dict[int, _Lent] = {}  # by the address of the contents


def lend(contents: torch.UntypedStorage, of: torch.UntypedStorage, shared: bool) -> torch.UntypedStorage:
    """What the program gets of a copy of memory elsewhere, which ``of`` stands for. shared: something of this process
    is on that copy, and may write."""
    known = _lent.get(contents._cdata)
    if known is not None and known.contents is contents and (storage := known.storage()) is not None:
        return storage
    with quiet():
        if shared:
            contents = contents.clone()
        storage, at = contents.clone(), contents._cdata

    def refused(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise _written()

    def resized(size: int) -> torch.UntypedStorage:
        found = weak()
        assert found is not None, "`_lent` has it, or who calls this"
        _lent.pop(at, None)  # to free memory, and to have other memory: its contents are nobody's
        return torch.UntypedStorage.resize_(found, size)

    weak = weakref.ref(storage)
    storage.copy_ = storage.fill_ = refused  # type: ignore[method-assign]
    storage.resize_ = resized  # type: ignore[method-assign]
    _lent[at] = _Lent(storage, contents, of)
    if check not in values.refusing:
        values.refusing.append(check)
    return storage


def check(_tensors: Sequence[Any] = (), _reason: str = "") -> None:
    """LazyTensorError if the program has written to something that was lent, once."""
    for at, lent in _lent.copy().items():
        lent.left -= 1
        if lent.left > 0:
            continue
        storage = lent.storage()
        if storage is None or lent.of() is None:  # nobody can write, or nobody can miss it
            _lent.pop(at, None)
            continue
        if not lent.is_as_it_was(storage):
            _lent.pop(at, None)
            raise _written()
        lent.wait = lent.left = 1 if storage.nbytes() <= _SMALL else min(2 * lent.wait, _MOST)
        ours = lent.held is not None and sys.getrefcount(storage) <= _OURS
        del storage
        if ours and not lent.let_go():
            _lent.pop(at, None)


def _written() -> LazyTensorError:
    return LazyTensorError(
        "[untyped_storage] expected no write to the storage of a tensor whose memory is in another process: the "
        "storage is a copy, and the tensor would not change. Write to the tensor instead, such as tensor.copy_(...)"
    )
