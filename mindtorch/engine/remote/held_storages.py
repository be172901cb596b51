"""What a worker holds: storages by the numbers that the client gave them (SPEC R1).

Where there is no memory for one, or what should be in it could not be computed, the number of the failure is in its
place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..._ext.strides import known_extent
from ...base import mapped_memory
from .checks import Checks
from .mirrors import view
from .results import as_bytes, filled, on_device, reserved, whole_bytes
from .sent_contents import digest_of
from .set_aside import SetAside, is_out_of_memory
from .wire import WireError, dumps, loads

__all__ = ["Failed", "HeldStorages", "Poisoned"]


class Failed(NamedTuple):
    """In place of a value that could not be computed."""

    number: int


class Poisoned(Exception):
    """A value was asked for that could not be computed."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class HeldStorages:
    """The requests about storages; see `Worker`."""

    def __init__(
        self, device: torch.device, parcels: dict[int, bytes | bytearray | int] | None, folders: Sequence[str],
        memory: SetAside | None,
    ) -> None:  # fmt: skip
        self._device = device
        self._parcels = {} if parcels is None else parcels
        self._folders = folders
        self._memory = SetAside() if memory is None else memory
        self._storages: dict[int, torch.Tensor | Failed] = {}  # as bytes
        self._failures = 0
        self._checks = Checks()

    def upload(self, number: int, data: bytes) -> tuple[int, str] | None:
        """A new storage. (number of the failure, why) where there is no memory for it."""
        return self._made(number, lambda: on_device(data, self._device))

    def reserve(self, number: int, nbytes: int) -> tuple[int, str] | None:
        """A new storage, which is filled later."""
        return self._made(number, lambda: reserved(nbytes, self._device))

    def fill(self, number: int, begin: int, data: bytes) -> tuple[int, str] | None:
        """Other contents for a part of a storage."""
        if isinstance(self._storages.get(number), Failed):
            return None  # there was no memory for it, or it could not be computed
        held = self._bytes(number)
        if begin + len(data) > held.numel():
            raise WireError(
                f"expected a part of the {held.numel()} bytes of storage {number}, got {len(data)} from {begin} on"
            )
        if held.is_cpu:  # which needs no memory
            filled(held, begin, data)
            return None
        return self._made(number, lambda: filled(held, begin, data))

    def _made(self, number: int, make: Callable[[], torch.Tensor]) -> tuple[int, str] | None:
        return self._put(self._storages, number, make, Failed)

    def _put(
        self, there: dict[int, Any], key: int, make: Callable[[], Any], failed: Callable[[int], Any]
    ) -> tuple[int, str] | None:
        try:
            self._memory.hold()
            there[key] = make()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._failures += 1
            there[key] = failed(self._failures)
            return self._failures, str(error)
        return None

    def file(self, number: int, path: str, offset: int, nbytes: int, digest: bytes) -> bool | tuple[int, str] | None:
        """A new storage with a part of a safetensors file, if there is one in the worker's folders (else None) and that
        is in it (else False: no storage). So it tells nobody what is in it but who knows, and nothing of other files.
        """
        found = mapped_memory.part_of(path, offset, nbytes, self._folders)
        if found is None or digest_of(found) != digest:
            self._checks.gone(number)
            return None if found is None else False
        return self.upload(number, found) or True

    def write(self, number: int, data: bytes) -> None:
        """Other contents for a storage, as many bytes as it has."""
        held = self._bytes(number)
        if held.numel() != len(data):
            raise WireError(f"expected {held.numel()} bytes for storage {number}, got {len(data)}")
        filled(held, 0, data)

    def copy(self, number: int, source: int) -> tuple[int, str] | None:
        """A new storage with the contents of another."""
        found = self._storages.get(source)
        if isinstance(found, Failed):
            self._storages[number] = found
            return None
        return self._made(number, self._bytes(source).clone)

    def give(self, number: int, ticket: int) -> tuple[int, str] | None:
        """Put a storage's contents aside for another worker. (number of the failure, why) where there is no memory."""
        return self._put_aside(ticket, lambda: self._contents_or_failure(number))

    def take(self, number: int, nbytes: int, ticket: int) -> tuple[int, int | str] | None:
        """A new storage of what another worker gave. (failure's number, its number there) where that has failed.

        The latter is 0 where nothing has come, or not all of it; and why, where there is no memory here.
        """
        return self._taken(number, nbytes, self._parcels.pop(ticket, 0))

    def pack(self, numbers: list[int], ticket: int) -> tuple[int, str] | None:
        """The same as `give` of several storages, under one ticket."""
        return self._put_aside(ticket, lambda: bytes(dumps([self._contents_or_failure(each) for each in numbers])))

    def unpack(self, numbers: list[int], sizes: list[int], ticket: int) -> list[tuple[int, int | str] | None]:
        """New storages of what another worker packed. For each what `take` answers."""
        parcel = self._parcels.pop(ticket, 0)
        if isinstance(parcel, int):
            found: Any = [parcel] * len(numbers)
        else:
            try:
                found = loads(parcel)
            except WireError:  # another worker's, not the program's
                found = None
            if not isinstance(found, list) or len(found) != len(numbers):
                found = [0] * len(numbers)
        return [self._taken(*each) for each in zip(numbers, sizes, found, strict=True)]

    def _contents_or_failure(self, number: int) -> bytes | int:
        try:
            return whole_bytes(self._bytes(number))
        except Poisoned as error:
            return error.number

    def _put_aside(self, ticket: int, make: Callable[[], bytes | int]) -> tuple[int, str] | None:
        return self._put(self._parcels, ticket, make, int)

    def _taken(self, number: int, nbytes: int, found: Any) -> tuple[int, int | str] | None:
        if not isinstance(found, (bytes, bytearray)) or len(found) != nbytes:
            self._failures += 1
            self._storages[number] = Failed(self._failures)
            return self._failures, found if type(found) is int and found >= 0 else 0
        return self._made(number, lambda: on_device(bytes(found), self._device))

    def storage(self, number: int) -> tuple:
        """A storage's contents."""
        try:
            return "bytes", whole_bytes(self._bytes(number))
        except Poisoned as error:
            return "failed", error.number

    def small(self, numbers: list[int]) -> list[bytes | None]:
        """The contents of storages, None for those that could not be computed or are not there."""
        found = [self._storages.get(number) for number in numbers]
        return [None if held is None or isinstance(held, Failed) else whole_bytes(as_bytes(held)) for held in found]

    def overwrite(self, number: int, source: int) -> None:
        """The contents of another storage, of the same size, for this one."""
        given = self._storages.get(source)
        if isinstance(given, Failed):
            self._storages[number] = given
        if isinstance(self._storages.get(number), Failed):
            return
        held, found = self._bytes(number), self._bytes(source)
        if held.numel() != found.numel():
            raise WireError(f"expected {held.numel()} bytes for storage {number}, got {found.numel()}")
        held.copy_(found)

    def digest(self, numbers: list[int]) -> list[bytes | None]:
        """SHA-256 of what is in storages, None for those that could not be computed."""
        return [None if data is None else hashlib.sha256(data).digest() for data in self.small(numbers)]

    def has(self, number: int) -> bool:
        """Is there such a storage?"""
        return number in self._storages

    def free(self, numbers: list[int]) -> None:
        """Nobody names these any more."""
        for number in numbers:
            self._storages.pop(number, None)

    def _bytes(self, number: int) -> torch.Tensor:
        found = self._storages.get(number)
        if found is None:
            raise WireError(f"expected the number of a storage, got {number}")
        if isinstance(found, Failed):
            raise Poisoned(found.number)
        if found.numel() != found.untyped_storage().nbytes():  # a call has resized it
            found = self._storages[number] = as_bytes(found)
        return found

    def _tensor(self, described: tuple) -> torch.Tensor:
        number, dtype, sizes, strides, offset, bits = described
        held = self._bytes(number)
        if (
            known_extent(sizes, strides, offset) * dtype.itemsize > held.numel()
            or min((*sizes, *strides, offset), default=0) < 0
        ):
            raise WireError(
                f"expected a tensor within the {held.numel()} bytes of storage {number}, got {described[1:]}"
            )
        return view(held.untyped_storage(), dtype, sizes, strides, offset, bits)
