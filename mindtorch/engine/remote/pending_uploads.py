"""Uploads of which nobody knows yet where they are needed: they wait in this process (SPEC R5)."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence

import torch

from ...base.errors import MaterializationError
from ...base.storage_memory import memory_of
from .mirrors import Mirrors, adopted, as_bytes, like

__all__ = ["PendingUploads"]


class PendingUploads:
    """Holds values that mirrors stand for, as a `RemoteExecutor` does, and runs nothing: they are not copied."""

    def __init__(self) -> None:
        self._mirrors = Mirrors(self._died)
        # Address of a plain storage -> itself, the number of its mirror's storage, and that.
        self._held: dict[int, tuple[torch.UntypedStorage, int, weakref.ref[torch.UntypedStorage]]] = {}
        self._addresses: dict[int, int] = {}  # number -> address of the plain storage

    def _died(self, number: int) -> None:
        del self._held[self._addresses.pop(number)]

    @property
    def nbytes(self) -> int:
        self._mirrors.bury()
        return self._mirrors.nbytes

    def adopt(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return adopted(tensors, self._mirror_of, self._upload)

    def _upload(self, plain: torch.UntypedStorage) -> torch.UntypedStorage:
        number = self._mirrors.fresh()
        storage = self._mirrors.whole(plain.nbytes(), number).untyped_storage()
        self._held[plain._cdata] = plain, number, weakref.ref(storage)
        self._addresses[number] = plain._cdata
        return storage

    def fetch(self, values: Sequence[torch.Tensor], whole: bool = False) -> list[torch.Tensor]:
        """The values themselves, on their whole storages, whatever ``whole`` says."""
        return [like(self._plain(t), t) for t in values]

    def _plain(self, mirror: torch.Tensor) -> torch.UntypedStorage:
        return self._held[self._addresses[self._mirrors.number_of(mirror)]][0]

    def names_of(self, mirrors: Sequence[torch.Tensor]) -> list[bytes | None]:
        """Digests of what is in the storages of these: what is in this process may be written to by anybody."""
        return [hashlib.sha256(memory_of(self._plain(mirror))).digest() for mirror in mirrors]

    def copied_storage(self, value: torch.Tensor) -> torch.Tensor:
        return self.adopt([as_bytes(like(self._plain(value).clone(), value))])[0]

    def address(self, value: torch.Tensor) -> int:
        return self._mirrors.address(value)

    def _mirror_of(self, plain: torch.UntypedStorage) -> torch.UntypedStorage | None:
        self._mirrors.bury()
        held = self._held.get(plain._cdata)
        return None if held is None else held[2]()

    def home(self, memory: torch.UntypedStorage) -> int:
        mirror = self._mirror_of(memory)
        return memory._cdata if mirror is None else mirror._cdata

    def bring(self, memory: Sequence[torch.UntypedStorage]) -> None:
        """It is what the values are."""
        for plain in memory:
            if self._mirror_of(plain) is None:
                raise MaterializationError("this tensor shared memory with one that belongs to another executor")
