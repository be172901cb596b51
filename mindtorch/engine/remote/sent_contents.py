"""Which storages have contents that cross once, however many of them there are (SPEC R2), or a name by which a cache
finds what was computed of them (SPEC L14)."""

from __future__ import annotations

import hashlib

__all__ = ["DIGEST", "Contents", "digest_of"]

DIGEST = hashlib.sha256().digest_size

LEAST = 1 << 16  # bytes of storages that are looked at: less crosses in no time


class Contents:
    """Storages that are as they were uploaded, by what is in them; and names of those that a cache has asked about."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, dict[int, None]] = {}  # as sets, in order
        self._digests: dict[int, bytes] = {}
        self._names: dict[int, bytes] = {}
        self._coming: set[int] = set()  # a digest of what is in them was asked for, and they are as they were then

    def clear(self) -> None:
        """Nothing is known of any."""
        self._numbers.clear()
        self._digests.clear()
        self._names.clear()
        self._coming.clear()

    def name(self, number: int) -> bytes | None:
        """What names a storage's contents; None: nobody has said."""
        return self._names.get(number) or self._digests.get(number)

    def call(self, number: int, name: bytes) -> None:
        """These contents have this name: their digest, or one that only equal contents have."""
        self._names[number] = name

    def expect(self, number: int) -> None:
        """The digest of what is in it now is going to come."""
        self._coming.add(number)

    def arrive(self, number: int, digest: bytes | None) -> None:
        """It has come; None: there is none. Something may have written to the storage meanwhile."""
        if number in self._coming:
            self._coming.discard(number)
            if digest is not None:
                self._names[number] = digest

    def forget(self, number: int) -> None:
        """It is written to, or nobody can name it any more."""
        self._names.pop(number, None)
        self._coming.discard(number)
        digest = self._digests.pop(number, None)
        if digest is not None:
            numbers = self._numbers[digest]
            del numbers[number]
            if not numbers:
                del self._numbers[digest]

    def put(self, number: int, digest: bytes) -> None:
        """These are a storage's contents, as `digest_of` names them."""
        if digest:
            self._digests[number] = digest
            self._numbers.setdefault(digest, {})[number] = None

    def source(self, digest: bytes) -> int | None:
        """A storage with these contents, or None."""
        return next(iter(self._numbers.get(digest, ())), None)


def digest_of(data: bytes) -> bytes:
    """A name for these contents that no others have; empty for few bytes."""
    return hashlib.sha256(data).digest() if len(data) >= LEAST else b""
