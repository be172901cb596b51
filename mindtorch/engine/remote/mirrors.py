"""What stands for values that are elsewhere: tensors on the meta device, and the numbers of their storages (SPEC R1).

A **mirror** has the dtype, sizes, strides, offset and bits of a value; its storage stands for one of the worker's. A
storage's number is never used twice; where the storage dies here, nobody can name the one there any more.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ..._ext import lazy as _core
from ..._ext.strides import extent
from ..record.arguments import quiet
from .wire import HERE, Reference, WireError

__all__ = ["META", "Deaths", "Mirrors"]

META = torch.device("meta")
_GRAIN = 512  # bytes


class Death(weakref.ref[Any]):
    """Is called when an object dies; where it was, and the number that it had."""

    __slots__ = ("at", "number")
    at: int
    number: int


class Deaths:
    """Which of the storages that are watched have died.

    No code of Python's runs as one dies: what a signal handler of the program's raised there would be lost.
    """

    def __init__(self) -> None:
        self._watched: dict[int, Death] = {}
        self._dead: list[Death] = []

    def watch(self, storage: Any, number: int = 0) -> Death:
        """Let `take` tell when it is gone."""
        death = Death(storage, self._dead.append)
        death.at, death.number = storage._cdata, number
        self._watched[id(death)] = death
        return death

    def ignore(self, death: Death) -> None:
        """Nobody wants to hear of this one, which has not died."""
        self._watched.pop(id(death), None)

    def take(self) -> Iterator[Death]:
        """Each that has died since. Again, if something was raised before it was dealt with."""
        while self._dead:
            death = self._dead[0]
            yield death
            self._watched.pop(id(death), None)
            del self._dead[0]


class Mirrors:
    """The mirrors of one executor. ``dead``: numbers of storages to be freed, on_death is told each (see `bury`).

    ``copies``: number → weak reference to a storage's contents here, good until something is written there.
    """

    def __init__(self, on_death: Callable[[int], None]) -> None:
        self._on_death = on_death
        self._deaths = Deaths()
        self.dead: list[int] = []
        self.copies: dict[int, Any] = {}
        self._next = 1
        self.alive: dict[int, int] = {}  # number of each storage that something here can name -> its bytes there
        self.nbytes = 0  # of all those
        self._numbers: dict[int, Death] = {}  # address of a mirror's storage -> its death to come, which has its number
        self._addresses: dict[int, int] = {}  # number -> where a program may think that the storage is
        self._end = _GRAIN  # of all those

    def fresh(self, count: int = 1) -> int:
        """The first of so many numbers that were never used."""
        self.bury()
        first = self._next
        self._next += count
        return first

    def __contains__(self, t: torch.Tensor) -> bool:
        """Is it a mirror?"""
        self.bury()
        return t.is_meta and t.layout is torch.strided and t.untyped_storage()._cdata in self._numbers

    def number(self, mirror: torch.Tensor, number: int) -> torch.Tensor:
        """``mirror``, whose new storage stands for that of this number from now on."""
        storage = mirror.untyped_storage()
        death = self._deaths.watch(storage, number)
        self._numbers[death.at] = death
        self.alive[number] = nbytes = storage.nbytes()
        self.nbytes += nbytes
        return mirror

    def hand_over(self, mirror: torch.Tensor, there: Mirrors, whole: torch.Tensor) -> None:
        """What stands for a value here stands from now on, with all that shares its storage, for what ``whole`` stands
        for there; ``whole`` stands for nothing."""
        self.bury()
        there.bury()
        storage, other = mirror.untyped_storage(), whole.untyped_storage()
        number = there._numbers[other._cdata].number
        there._numbers[storage._cdata] = there._deaths.watch(storage, number)
        there._deaths.ignore(there._numbers.pop(other._cdata))
        left = self._numbers.pop(storage._cdata)
        self._deaths.ignore(left)
        self._forget(left.number)

    def without(self, number: int) -> None:
        """This storage could not be made: it has no bytes there."""
        self.nbytes -= self.alive.get(number, 0)
        if number in self.alive:
            self.alive[number] = 0

    def bury(self) -> None:
        """Have no more to do with storages that have died here."""
        for death in self._deaths.take():
            if self._numbers.get(death.at) is death:  # the address may be another's by now
                del self._numbers[death.at]
            self._forget(death.number)

    def _forget(self, number: int) -> None:
        self.copies.pop(number, None)
        self._addresses.pop(number, None)
        self.dead.append(number)
        self.nbytes -= self.alive.pop(number, 0)
        self._on_death(number)

    def whole(self, nbytes: int, number: int) -> torch.Tensor:
        """What stands for a new storage of so many bytes."""
        with quiet():
            return self.number(torch.empty(nbytes, dtype=torch.uint8, device=META), number)

    def number_of(self, mirror: torch.Tensor) -> int:
        """The number of its storage. WireError if it is no mirror."""
        self.bury()
        found = self._numbers.get(mirror.untyped_storage()._cdata) if mirror.layout is torch.strided else None
        if found is None:
            raise WireError(f"expected the meta tensor that mirrors a remote value, got a tensor on {mirror.device}")
        return found.number

    def numbered(self, storage: torch.UntypedStorage) -> int:
        """The number of what a mirror's storage stands for."""
        return self._numbers[storage._cdata].number

    def describe(self, mirror: torch.Tensor) -> tuple:
        """A value as a message names it: (number, dtype, sizes, strides, offset, bits). WireError if it is none."""
        number = self.number_of(mirror)
        sizes, strides = tuple(mirror.shape), tuple(mirror.stride())
        return number, mirror.dtype, sizes, strides, mirror.storage_offset(), _core.view_bits(mirror)

    def made(self, described: tuple, storages: dict[int, Any]) -> torch.Tensor:
        """The mirror of a value that the worker describes. ``storages``: number → storage of those at hand."""
        number, dtype, sizes, strides, offset, bits = described
        storage = storages.get(number)
        if storage is None:
            nbytes = extent(sizes, strides, offset) * dtype.itemsize
            storage = storages[number] = self.whole(nbytes, number).untyped_storage()
        return view(storage, dtype, sizes, strides, offset, bits)

    def address(self, mirror: torch.Tensor) -> int:
        """A number that tells storages apart, and places in one, as addresses do."""
        number, dtype, sizes, _strides, offset, _bits = self.describe(mirror)
        if 0 in sizes:
            return 0
        if number not in self._addresses:
            self._addresses[number] = self._end
            self._end += (mirror.untyped_storage().nbytes() + _GRAIN) // _GRAIN * _GRAIN
        return self._addresses[number] + offset * dtype.itemsize


def view(storage: Any, dtype: torch.dtype, sizes: Any, strides: Any, offset: int, bits: int = 0) -> torch.Tensor:
    """A tensor on a storage, wherever that is."""
    with quiet():
        made = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, sizes, strides)
        return _core.set_view_bits(made, bits)


def like(storage: Any, t: torch.Tensor) -> torch.Tensor:
    """The same tensor on another storage."""
    return view(storage, t.dtype, t.shape, t.stride(), t.storage_offset(), _core.view_bits(t))


def adopted(tensors: Iterable[torch.Tensor], mirror_of: Callable[[Any], Any], upload: Callable[[Any], Any]) -> list:
    """Mirrors of tensors of this process. A storage that has no mirror gets one by ``upload``."""
    made = []
    for t in tensors:
        storage = mirror_of(t.untyped_storage())
        made.append(like(upload(t.untyped_storage()) if storage is None else storage, t))
    return made


def as_bytes(t: torch.Tensor) -> torch.Tensor:
    """A tensor's whole storage, not a copy."""
    return view(t.untyped_storage(), torch.uint8, (t.untyped_storage().nbytes(),), (1,), 0)


def sendable(a: Any, given: dict[int, tuple[int, torch.Tensor]]) -> Any:
    """An argument of a call as it goes into a message, or WireError. Its tensors go into ``given``, by id and
    with their place there: each once, as a call may resize what it reads.
    """
    if isinstance(a, torch.Tensor):
        if a.device != META:
            raise WireError(f"expected the meta tensor that mirrors a remote value, got a tensor on {a.device}")
        return Reference(given.setdefault(id(a), (len(given), a))[0], a.requires_grad)
    if isinstance(a, torch.device):
        return HERE if a == META else a
    if type(a) in (tuple, list):
        return type(a)(sendable(item, given) for item in a)
    if isinstance(a, slice):
        return slice(*(sendable(part, given) for part in (a.start, a.stop, a.step)))
    return a
