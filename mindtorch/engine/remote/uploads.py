"""Contents that cross to a worker, each once: as a copy of what is there, from a file that it sees, too, or as bytes,
large ones in parts once there is memory for all of them (SPEC R1, R2)."""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..execute import around_segments
from ..execute.mapped_files import file_of
from .exchange import no_memory
from .sent_contents import Contents, digest_of

if TYPE_CHECKING:
    from .client import RemoteExecutor
    from .exchange import Entry

__all__ = ["Uploads"]

_PART = 8 << 20  # bytes; what is larger goes in parts
_LARGE = 64 << 20  # bytes, above which it is asked first whether there is memory for them

Missed = Callable[[Any], None]


class Uploads:
    """What an executor's worker was sent. ``contents``: the storages that are still as they were."""

    def __init__(self, executor: RemoteExecutor) -> None:
        self._executor = executor
        self.contents = Contents()
        self._unseen: set[str] = set()  # files that the worker does not see
        self._absent = 0  # the last storage that the worker had no memory for

    def send(self, number: int, home: torch.UntypedStorage, data: bytes) -> bool:
        """Let a storage of this number be there with ``data``, which is in ``home``.

        False where the worker has no memory for it, as far as it has said so: what is made of the storage fails then.
        """
        digest = digest_of(data)
        missed = functools.partial(self._missed, number, weakref.ref(home), len(data))
        self._absent = 0
        source = self.contents.source(digest)
        if source is not None:
            self._executor._ask("copy", number, source, answer=missed)
        elif not self._is_read_there(number, home, digest, missed):
            if len(data) > _PART:
                self._in_parts(number, data, missed)
            else:
                self._executor._ask("upload", number, data, nbytes=64 + len(data), answer=missed)
                self._executor._known.put(number, data)
        if self._absent == number:
            return False
        self.contents.put(number, digest)
        if around_segments.keeper is not None:  # it will ask
            self.contents.call(number, digest or hashlib.sha256(data).digest())
        return True

    def write(self, number: int, data: bytes) -> None:
        """Let a storage that is there have other contents, as many bytes."""
        if len(data) > _PART:
            self._parts(number, data, functools.partial(self._missed, number, lambda: None, len(data)))
        else:
            self._executor._ask("write", number, data, nbytes=len(data))

    def room(self, nbytes: int, what: str) -> None:
        """OutOfMemoryError unless the worker has so much memory besides what it sets aside for messages: a message that
        takes more than there is would be the end of the session."""
        found: list[tuple[int, str] | None] = []
        number = self._executor._mirrors.fresh()
        self._executor._ask("reserve", number, nbytes, answer=found.append)
        self._executor._ask("free", [number])
        if not found:
            self._executor._exchange(unasked=True)
        if found[0] is not None:
            raise no_memory(f"no memory for a plan of {what} on the worker: {found[0][1]}")

    def copy(self, number: int, source: int, nbytes: int) -> Entry:
        """What asks for a storage that is a copy of another."""
        return ("copy", number, source), functools.partial(self._missed, number, lambda: None, nbytes)

    def _in_parts(self, number: int, data: bytes, missed: Missed) -> None:
        executor = self._executor
        executor._ask("reserve", number, len(data), answer=missed)
        if len(data) > _LARGE:
            executor._exchange()
        if self._absent != number:
            self._parts(number, data, missed)

    def _parts(self, number: int, data: bytes, missed: Missed) -> None:
        """A part is sent while the next one is made."""
        for begin in range(0, len(data), _PART):
            self._executor._ask("fill", number, begin, data[begin : begin + _PART], answer=missed)
            self._executor._send_on()

    def _is_read_there(self, number: int, home: torch.UntypedStorage, digest: bytes, missed: Missed) -> bool:
        """Does the worker make this storage from a file that it sees, too?"""
        path, offset = file_of(home) or ("", 0)
        if not path or path in self._unseen:
            return False
        found = self._executor._question("file", number, path, offset, home.nbytes(), digest)
        if found is None:
            self._unseen.add(path)
        if type(found) is tuple:
            missed(found)
        return bool(found)

    def _missed(self, number: int, home: Callable[[], Any], nbytes: int, found: tuple[int, str] | None) -> None:
        """Sent once more, it is another one."""
        if found is None:
            return
        failure, why = found
        self._absent, executor = number, self._executor
        executor._failures[failure] = no_memory(f"no memory for {nbytes:,} bytes on the worker: {why}")
        executor._epochs[0] = failure
        executor._died(number)
        executor._mirrors.without(number)
        if (plain := home()) is not None:
            executor._untie(plain)
