"""Values that the program asks for: elements or whole storages, and what it is going to ask for next (SPEC R1)."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..._ext.strides import extent
from ...base.errors import MaterializationError
from ..record.arguments import quiet
from .exchange import Session, again, no_memory
from .mirrors import Mirrors, view
from .small_values import Known
from .wire import WireError

__all__ = ["Reads", "plain_bytes"]

_AHEAD = 64 << 20  # bytes of storages that come along with one that is read
_KEPT = 512 << 20  # bytes of storages that are kept for another read, while nothing but reads happens


class Reads:
    """Brings values here by one message, or by none where they are known.

    failures: the kept ones, by number. arrive: waits until what comes of a storage unasked, if anything, is known.
    """

    def __init__(
        self, session: Session, mirrors: Mirrors, known: Known, failures: Mapping[int, MaterializationError],
        arrive: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._session, self._mirrors, self._known, self._failures = session, mirrors, known, failures
        self._arrive = arrive
        self._so_far, self._patience = 0, 1  # messages with reads alone, so far, and until more comes along
        self._ahead: dict[int, torch.UntypedStorage] = {}  # what came along, by number
        self._used: set[int] = set()  # numbers of those that have been read
        # What saves a model asks for its storages again and again: to see which are shared, for sizes, for contents.
        self._kept: dict[int, bytes] = {}
        self._room = _KEPT

    def whole(self, described: Sequence[tuple]) -> list[torch.Tensor]:
        """These values, as `Mirrors.describe` names them, on copies of their storages."""
        storages = self.storages({number for number, *_ in described})
        return [self._on(storages[each[0]], each) for each in described]

    def elements(self, described: Sequence[tuple]) -> list[torch.Tensor]:
        """These values, with no more than their elements."""
        found: dict[int, tuple] = {}
        for number, *_ in described:
            self._arrive(number)
        copies = {each[0]: self._copy(each[0]) for each in described}
        asked = [each[0] for each in described if each[0] not in self._known and copies[each[0]] is None]
        for k, each in enumerate(described):
            if each[0] in self._known:
                found[k] = self._known.fetch(each)
            elif copies[each[0]] is None:
                self._session._ask("fetch", each, answer=functools.partial(found.__setitem__, k))
        if asked:
            self._read_ahead(asked)
            self._session._wait()
        return [
            self._plain(each, *found[k]) if k in found else self._on(copies[each[0]], each)
            for k, each in enumerate(described)
        ]

    def _on(self, storage: torch.UntypedStorage, described: tuple) -> torch.Tensor:
        number, dtype, sizes, strides, offset, bits = described
        wanted = extent(sizes, strides, offset) * dtype.itemsize
        if wanted > storage.nbytes():
            self._session._broken(WireError(f"expected {wanted} bytes of storage {number}, got {storage.nbytes()}"))
        return view(storage, dtype, sizes, strides, offset, bits)

    def _plain(self, described: tuple, kind: str, *found: Any) -> torch.Tensor:
        self._check(kind, found[0])
        _number, dtype, sizes, _strides, _offset, bits = described
        strides, data = found
        with quiet():
            storage = plain_bytes(data).untyped_storage()
        return view(storage, dtype, sizes, strides, 0, bits)

    def _check(self, kind: str, found: Any) -> None:
        """Raise why there is no value: a failure, or the worker has no memory to send it, and still has the value."""
        if kind == "failed":
            raise again(self._failures[found])
        if kind == "memory":
            raise no_memory(f"no memory on the worker to send a value: {found}")

    def storages(
        self, numbers: Iterable[int], failed: dict[int, MaterializationError] | None = None
    ) -> dict[int, torch.UntypedStorage]:
        """Copies of these storages, by one message: for each the same one as long as something is on it.

        failed: gets why there is nothing in a storage; then no failure is raised, but that something was not written.
        """
        held: dict[int, torch.UntypedStorage] = {}
        answers: dict[int, tuple] = {}
        for number in numbers:
            self._arrive(number)
            copy = self._copy(number)
            if copy is not None:
                held[number] = copy
            elif number in self._known:
                answers[number] = "bytes", self._known.storage(number)
            else:
                self._session._ask("storage", number, answer=functools.partial(answers.__setitem__, number))
        asked = [number for number in numbers if number not in held and number not in answers]
        if asked:
            self._read_ahead(asked)
            if failed is None:
                self._session._wait()
            else:
                self._session._exchange(unasked=True)
        for number, (kind, found) in answers.items():
            if kind == "failed" and failed is not None:
                failed[number] = self._failures[found]
                continue
            self._check(kind, found)
            self._keep(number, found)
            held[number] = self.copied(number, found)
        return held

    def _keep(self, number: int, data: bytes) -> None:
        if number in self._kept or number in self._known or len(data) > _KEPT:
            return
        self._kept[number] = data
        self._room -= len(data)
        while self._room < 0:
            oldest = next(iter(self._kept))
            self._room += len(self._kept.pop(oldest))

    def forget(self, number: int) -> None:
        """A storage's contents are others, or nobody can name it any more."""
        self._mirrors.copies.pop(number, None)
        self._room += len(self._kept.pop(number, b""))

    def _copy(self, number: int) -> torch.UntypedStorage | None:
        """The copy of a storage that is still alive here, else one of what is kept of it, else None."""
        storage = self._alive(number)
        if storage is None and number in self._kept:
            return self.copied(number, self._kept[number])
        if storage is not None and self._ahead.get(number) is storage:
            self._used.add(number)
        return storage

    def _alive(self, number: int) -> torch.UntypedStorage | None:
        storage = self._mirrors.copies.get(number, lambda: None)()
        if storage is not None and storage.nbytes() != self._mirrors.alive.get(number):
            return None  # the program has resized its copy
        return storage

    def copied(self, number: int, data: bytes) -> torch.UntypedStorage:
        """Memory of this process with a storage's contents."""
        with quiet():
            storage = plain_bytes(data).clone().untyped_storage()  # which a call may resize
        self._mirrors.copies[number] = weakref.ref(storage)
        return storage

    def put_together(
        self,
        storages: Mapping[int, Any],
        tie: Callable[[Any, Any], None],
        layout: torch.layout,
        sizes: tuple,
        coalesced: bool | None,
        parts: list[tuple],
    ) -> Any:
        """A sparse tensor of its parts, some of which are on ``storages`` that were given to the call; tie: has two be
        the same (see `SharedStorages`)."""
        with quiet():
            plain = []
            for dtype, shape, strides, offset, number, data in parts:
                storage = self.copied(number, data) if number else plain_bytes(data).untyped_storage()
                if number:
                    tie(storage, storages[number])
                plain.append(view(storage, dtype, shape, strides, offset))
            if layout is torch.sparse_coo:
                return torch.sparse_coo_tensor(plain[0], plain[1], sizes, is_coalesced=coalesced)
            return torch.sparse_compressed_tensor(*plain, sizes, layout=layout)

    # Programs that read one tensor after the other (a state_dict, a model that moves back) read all of them.
    def _read_ahead(self, asked: list[int]) -> None:
        """Let more storages come with those that are asked for, where nothing but reads has happened for a while."""
        self._so_far += 1
        if self._so_far <= self._patience:
            return
        useless = 2 * len(self._used) < len(self._ahead)
        self._used.clear()
        self._ahead.clear()
        if useless:
            self._patience = 2 * self._so_far
            return
        room = _AHEAD
        for number, nbytes in self._mirrors.alive.copy().items():  # other threads' tensors die
            here = number in self._known or number in self._kept or self._alive(number) is not None
            if here or number <= asked[-1]:
                continue
            room -= nbytes
            if room < 0:
                break
            self._session._ask("storage", number, answer=functools.partial(self._came_along, number))

    def _came_along(self, number: int, answer: tuple) -> None:
        kind, found = answer
        if kind == "bytes" and number in self._mirrors.alive:
            self._keep(number, found)
            self._ahead[number] = self.copied(number, found)

    def are_over(self) -> None:
        """Something else happens. Where most of what came along was not read, it takes longer until more does."""
        if self._ahead:
            self._patience = 1 if 2 * len(self._used) >= len(self._ahead) else min(2 * self._patience, 1 << 20)
            self._ahead.clear()
        self._so_far, self._room = 0, _KEPT
        self._kept.clear()


def plain_bytes(data: bytes) -> torch.Tensor:
    """A tensor of these bytes."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
