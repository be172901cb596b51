"""Memory of this process that is kept equal to storages of the worker (SPEC L7, R1).

Sparse and nested tensors are torch's own, in this process; lazy tensors on the memory of one, or which it was made of,
are elsewhere. So what is recorded as written there is brought here before a call looks at it, and what was written here
is taken there before anything is asked for.
"""

from __future__ import annotations

import ctypes
import weakref
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..._ext import lazy as _core
from ...base.errors import MaterializationError
from ...base.storage_memory import memory_of
from ..execute.base import Executor
from .host_fallback import bytes_of
from .mirrors import Death, Deaths
from .one_thread import one_thread_at_a_time

if TYPE_CHECKING:
    from .mirrors import Mirrors

__all__ = ["SharedStorages"]


@one_thread_at_a_time
class SharedStorages(Executor):
    """The part of an executor elsewhere that knows which storages here stand for which there."""

    _mirrors: Mirrors

    def __init__(self) -> None:
        self._deaths = Deaths()
        # Address of a plain storage -> its mirror's, and its death to come: another may be at the address then.
        self._homes: dict[int, tuple[torch.UntypedStorage, Death]] = {}
        self._tied: dict[int, set[int]] = {}  # address of a mirror's storage -> those of the plain ones
        # Address of a plain storage that was brought -> itself, what was in it, and again itself until it is looked at:
        # what writes to it may be all that has it.
        self._brought: dict[int, tuple[weakref.ref[torch.UntypedStorage], bytes, Any]] = {}

    @abstractmethod
    def _bring(self, numbers: Iterable[int]) -> dict[int, torch.UntypedStorage]:
        """Copies of these storages, by number."""

    @abstractmethod
    def _write(self, number: int, data: bytes) -> None:
        """Other contents for a whole storage."""

    def _tie(self, plain: torch.UntypedStorage, mirror: torch.UntypedStorage) -> None:
        """As long as ``plain`` is there, what shares it is to share this one."""
        self._drop(plain._cdata)
        self._homes[plain._cdata] = mirror, self._deaths.watch(plain)
        self._tied.setdefault(mirror._cdata, set()).add(plain._cdata)

    def _drop(self, at: int) -> tuple[torch.UntypedStorage, Death] | None:
        found = self._homes.pop(at, None)
        if found is not None:
            tied = self._tied[found[0]._cdata]
            tied.discard(at)
            if not tied:
                del self._tied[found[0]._cdata]
        return found

    def _mirror_of(self, plain: torch.UntypedStorage) -> torch.UntypedStorage | None:
        self._forget_homes()
        return self._homes.get(plain._cdata, (None,))[0]

    def _forget_homes(self) -> None:
        for death in self._deaths.take():
            if self._homes.get(death.at, (None, None))[1] is death:
                self._brought.pop(death.at, None)
                self._drop(death.at)

    def _untie(self, plain: torch.UntypedStorage) -> None:
        """It has become something else."""
        tied = self._drop(plain._cdata)
        if tied is not None:
            self._mirrors.copies.pop(self._mirrors.numbered(tied[0]), None)
        self._brought.pop(plain._cdata, None)

    def hand_over(self, mirror: torch.UntypedStorage, there: SharedStorages, now: torch.UntypedStorage) -> None:
        """Memory here that shares a storage shares another one from now on, of that executor."""
        self._forget_homes()
        for at in list(self._tied.get(mirror._cdata, ())):
            plain, brought = self._homes[at][1](), self._brought.pop(at, None)
            self._drop(at)
            if plain is not None:
                there._tie(plain, now)
                if brought is not None:
                    there._brought[at] = brought

    def home(self, memory: torch.UntypedStorage) -> int:
        mirror = self._mirror_of(memory)
        return memory._cdata if mirror is None else mirror._cdata

    def bring(self, memory: Sequence[torch.UntypedStorage]) -> None:
        self._take()
        numbers = [self._number_of(plain) for plain in memory]
        held = self._bring(list(dict.fromkeys(numbers)))
        for plain, number in zip(memory, numbers, strict=True):
            data = bytes_of(held[number])
            if held[number] is not plain:
                if len(data) != plain.nbytes():
                    raise _resized()
                ctypes.memmove(memory_of(plain), data, len(data))
                self._mirrors.copies[number] = weakref.ref(plain)
            self._brought[plain._cdata] = weakref.ref(plain), data, plain

    def _take(self) -> None:
        """What was written to memory that was brought is so where the worker is, from here on."""
        if not self._brought:
            return
        self._forget_homes()
        for at, (reference, before, _plain) in self._brought.copy().items():
            plain = reference()
            if plain is None:
                continue
            now = bytes_of(plain)
            if len(now) != len(before):
                del self._brought[at]
                raise _resized()
            if now != before:
                number = self._number_of(plain)
                self._write(number, now)
                self._mirrors.copies[number] = reference
            self._brought[at] = reference, now, None  # not before: a signal handler may have come in between

    def _here(self, mirrors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The values as plain tensors on their whole storages: for each the same one as long as something holds it.

        That is how torch knows jagged tensors of the same offsets.
        """
        held = {id(mirror): t for mirror in mirrors if (t := _held(mirror)) is not None}
        self.bring([t.untyped_storage() for t in held.values()])
        asked = [mirror for mirror in mirrors if id(mirror) not in held]
        for mirror, t in zip(asked, self.fetch(asked, whole=True), strict=True):
            self._tie(t.untyped_storage(), mirror.untyped_storage())  # what is made of it may stay on that memory
            mirror._here = weakref.ref(t)  # type: ignore[attr-defined]
            held[id(mirror)] = t
        return [held[id(mirror)] for mirror in mirrors]

    def _number_of(self, plain: torch.UntypedStorage) -> int:
        mirror = self._mirror_of(plain)
        if mirror is None:
            raise MaterializationError("this tensor shared memory with one that belongs to another executor")
        return self._mirrors.numbered(mirror)


def _held(mirror: Any) -> torch.Tensor | None:
    """What `SharedStorages._here` has given for a mirror, if that is still there and as it was."""
    t = getattr(mirror, "_here", lambda: None)()
    if t is None or (t.shape, t.stride(), t.storage_offset()) != (
        mirror.shape,
        mirror.stride(),
        mirror.storage_offset(),
    ):
        return None
    return t if _core.view_bits(t) == _core.view_bits(mirror) else None


def _resized() -> MaterializationError:
    return MaterializationError("memory that tensors on another device share was resized")
