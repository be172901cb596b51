"""Small values that are to move from one worker to another: they do so together (SPEC R2)."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from .mirrors import view

if TYPE_CHECKING:
    from .client import RemoteExecutor

__all__ = ["SMALL", "PostponedMoves"]

SMALL = 64 << 10  # bytes: a larger value moves at once
_MANY = 256  # values: so many move at once, too


class PostponedMoves:
    """Which values are to be on another executor than the one that has them.

    A program moves many small values one by one (clipping: the norm of each gradient) before it computes with them. The
    first use of one of them moves all that come from the same executor.
    """

    def __init__(self) -> None:
        # Address of a mirror's storage -> itself, if it is still there, and where it is to be.
        self._to: dict[int, tuple[weakref.ref[torch.UntypedStorage], RemoteExecutor]] = {}

    def add(self, mirror: torch.Tensor, there: RemoteExecutor) -> bool:
        """This value is to be there. Are there so many by now that they had better move?"""
        storage = mirror.untyped_storage()
        self._to[storage._cdata] = weakref.ref(storage), there
        return len(self._to) >= _MANY

    def goal(self, mirror: torch.Tensor) -> RemoteExecutor | None:
        """Where a value is to be; None if it is there."""
        storage = mirror.untyped_storage()
        reference, there = self._to.get(storage._cdata, (None, None))
        return there if reference is not None and reference() is storage else None

    def end(self, mirror: torch.Tensor) -> None:
        """It has moved."""
        self._to.pop(mirror.untyped_storage()._cdata, None)

    def all(self) -> list[tuple[torch.Tensor, RemoteExecutor]]:
        """Those that are still there, and where they are to be."""
        found = [(reference(), there) for reference, there in self._to.values()]
        alive = [(storage, there) for storage, there in found if storage is not None]
        if len(alive) < len(found):
            self._to = {storage._cdata: (weakref.ref(storage), there) for storage, there in alive}
        return [(view(storage, torch.uint8, (storage.nbytes(),), (1,), 0), there) for storage, there in alive]
