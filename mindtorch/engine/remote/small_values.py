"""Small values that the program's side knows without asking (SPEC R1).

It has uploaded them, or the worker has sent them unasked, or they follow from such: segments of integers and booleans
that are known run here, too, on a worker of this process, and tests whether floats are finite. (No other computation on
floats: another machine's kernels may round them in another way.) The stop test of a loop over tokens needs no message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..._ext.encoder import Encoded
from ..record.arguments import quiet
from .host_fallback import bytes_of
from .sent_segments import SentSegments, is_float
from .worker import Worker

__all__ = ["Known", "Operands", "comes_unasked"]

_UNASKED = 64  # bytes of a storage that a worker sends unasked
_MOST = 4096  # … of one that is known
_OPERAND = 256  # bytes of one that is kept for other calls
_OPERANDS = 64  # of them, at most
_CALCULATED = 1 << 16  # bytes of all outputs of a segment that is run here


def comes_unasked(mirror: torch.Tensor) -> bool:
    """Is a new value little enough for the worker to send it unasked?

    Of integers and booleans more than of floats: what a program decides by, such as tokens, follows from them.
    """
    return mirror.untyped_storage().nbytes() <= (_UNASKED if is_float(mirror.dtype) else _MOST)


class Operands:
    """Small values of the program's that calls only read, such as a 0 that torch makes in C++ at each: one each.

    adopt: makes a value of a tensor; number_of: that of its storage; alive: the bytes of each that is there.
    """

    def __init__(
        self, adopt: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]], number_of: Callable[[torch.Tensor], int],
        alive: Mapping[int, int],
    ) -> None:  # fmt: skip
        self._adopt, self._number_of, self._alive = adopt, number_of, alive
        self._made: dict[tuple, torch.Tensor] = {}
        self._keys: dict[int, tuple] = {}  # by the number of the storage

    def of(self, t: torch.Tensor) -> torch.Tensor:
        """The value of a tensor that is all that its storage is for."""
        nbytes = t.untyped_storage().nbytes()
        if nbytes > _OPERAND:
            return self._adopt([t])[0]
        key = t.dtype, t.shape, t.stride(), bytes_of(t.untyped_storage())
        found = self._made.get(key)
        if found is None:
            (found,) = self._adopt([t])
            number = self._number_of(found)
            if self._alive[number] != nbytes:  # there was no memory for it
                return found
            self._keys[number] = key
            self._made[key] = found
            if len(self._made) > _OPERANDS:
                self.forget(next(iter(self._keys)))
        return found

    def forget(self, number: int) -> None:
        """Something has been written to a storage, or there was no memory for it."""
        key = self._keys.pop(number, None)
        if key is not None:
            self._made.pop(key, None)


class Known:
    """Contents of storages by number, as far as they are known."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Nothing is known any more."""
        self._worker = Worker()
        self._told = SentSegments(self._ask)

    def _ask(self, name: str, *given: Any, nbytes: int = 0) -> None:
        getattr(self._worker, name)(*given)

    def __contains__(self, number: int) -> bool:
        return self._worker.has(number)

    def put(self, number: int, data: bytes) -> None:
        """These are the contents."""
        if len(data) <= _MOST:
            with quiet():  # modes of the program are on where answers are taken in
                self._worker.upload(number, data)

    def forget(self, number: int) -> None:
        """They are others now, or nobody can name them any more."""
        self._worker.free([number])

    def fetch(self, described: tuple) -> tuple:
        """As `Worker.fetch`, of a storage that is known."""
        return self._worker.fetch(described)

    def storage(self, number: int) -> bytes:
        """All of it."""
        with quiet():
            return self._worker.storage(number)[1]

    def copy(self, number: int, source: int) -> None:
        """A new storage has the contents of another."""
        if source in self:
            with quiet():
                self._worker.copy(number, source)

    def computes(self, encoded: Encoded, exact: bool) -> bool:
        """Is a segment run here, too, if all that it is given is known? exact: it gives the same on every machine."""
        return exact and encoded.nbytes <= _CALCULATED

    def run(self, encoded: Encoded, exact: bool, given: list[int], written: list[int], base: int) -> None:
        """A segment is going to run, whose ``given`` tensors are on these storages: run it here as well if that is
        little; else forget what it writes."""
        if not (self.computes(encoded, exact) and all(number in self for number in given)):
            for number in written:
                self.forget(number)
            return
        plan = self._told.plan(encoded)
        failures, *_ = self._worker.run(plan.number, base, *self._told.changed_numbers(encoded), False)
        if failures:  # the worker tells it, as what it is
            self._worker.seen(max(number for _k, number, *_ in failures))
            for number in (*written, *range(base, base + encoded.n_outputs)):
                self.forget(number)
