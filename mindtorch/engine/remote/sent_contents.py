"""Which storages have contents that cross once, however many of them there are (SPEC R2)."""

from __future__ import annotations

import hashlib

__all__ = ["Contents", "digest_of"]

LEAST = 1 << 16  # bytes of storages that are looked at: less crosses in no time


class Contents:
    """Storages that are as they were uploaded, by what is in them."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, dict[int, None]] = {}  # as sets, in order
        self._digests: dict[int, bytes] = {}

    def clear(self) -> None:
        """Nothing is known of any."""
        self._numbers.clear()
        self._digests.clear()

    def forget(self, number: int) -> None:
        """It is written to, or nobody can name it any more."""
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
