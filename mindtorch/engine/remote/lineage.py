"""All that a worker was asked for, so that another one can be what it was (SPEC R4)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence

__all__ = ["Lineage", "Parcel"]

#: What another worker has given, by its ticket: it comes before the message that takes it. (ticket, bytes)
Parcel = tuple[int, int]

_LONGEST = 120.0  # seconds that a worker may have been busy: to repeat it takes as long
_PAUSE = 2.0  # seconds between two messages in which the program may have done something else


class Lineage:
    """The messages of a session and what other workers gave, up to so many bytes and two minutes of work, and what the
    replies were.

    Whatever a worker has follows from its messages: uploads, calls, states of generators. Another one that gets them
    has the same, where each kernel gives the same bits each time; that its replies are the same is looked at.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._messages: list[tuple[bytes | bytearray, bytes | None, Sequence[Parcel]]] | None = []
        self._nbytes = 0
        self._busy, self._answered = 0.0, time.monotonic()
        self._last: object = None

    def __len__(self) -> int:
        return len(self._messages or ())

    @property
    def complete(self) -> bool:
        """Are all messages here?"""
        return self._messages is not None

    def drop(self) -> None:
        """Something has happened that messages do not tell, or there have been too many."""
        self._messages = None

    def add(
        self, message: bytes | bytearray, reply: bytes | bytearray, waited: float, parcels: Sequence[Parcel] = ()
    ) -> bool:
        """A message was answered, after the program had waited for so many seconds. parcels: what it took.

        False where that is too much.
        """
        if self._messages is None:
            return True
        before, self._answered = self._answered, time.monotonic()
        self._busy += max(waited, min(self._answered - before, _PAUSE))
        self._nbytes += len(message) + sum(nbytes for _ticket, nbytes in parcels)
        self._messages.append((message, _digest(reply), parcels))
        return self._nbytes <= self._most and self._busy <= _LONGEST

    def may_differ(self) -> None:
        """What has just been answered may be answered otherwise the next time."""
        if self._messages:
            message, _reply, parcels = self._messages[-1]
            self._messages[-1] = (message, None, parcels)

    def may_repeat(self, message: object) -> bool:
        """Is it worth it? Not where the worker was lost at the same message before: it will be again."""
        last, self._last = self._last, message
        return self.complete and last is not message

    def repeat(self, send: Callable[[bytearray, Sequence[Parcel]], bytes | bytearray | None]) -> bool:
        """Ask another worker for all of it. False where that answers otherwise."""
        return all(
            (reply := send(bytearray(message), parcels)) is not None and digest in (None, _digest(reply))
            for message, digest, parcels in self._messages or ()
        )


def _digest(reply: bytes | bytearray) -> bytes:
    return hashlib.sha256(reply).digest()
