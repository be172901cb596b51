"""States of a worker's generators, which the program draws from on the CPU, too."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

import torch

from ..record.arguments import quiet
from .exchange import Session
from .reads import plain_bytes

__all__ = ["GeneratorStates"]


class GeneratorStates:
    """``states[index]``: the state of the worker's generator of ``remote_accelerator:index``, a uint8 tensor. It is
    asked for by one message, and known from then on until something may draw there. What is put back as it was read
    changes nothing: the worker may have drawn in between.

    A cache knows states by names (see `name`), and asks for none that follows from a seed, or from another and the
    segments that have drawn since.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[int, bytes] = {}
        self._read: dict[int, bytes] = {}
        self._names: dict[int, tuple[bytes, int]] = {}  # and how many failures had been told then
        self._seed: int | None = None  # the last one that the worker was told
        self._others: set[int] = set()  # the generators that are not as this seed leaves them

    def __getitem__(self, index: int) -> torch.Tensor:
        with quiet():  # a transform of the program would have its word in this, and in the look at the answer
            known = self._read[index] = self._of(index)
            return plain_bytes(known)

    def _of(self, index: int) -> bytes:
        known = self._known.get(index)
        if known is None:
            known = self._known[index] = self._session._question("get_state", index)
        return known

    def __setitem__(self, index: int, state: torch.Tensor) -> None:
        data = _bytes_of(state)
        if self._read.get(index) != data:
            self._put(index, data)

    def put(self, index: int, state: torch.Tensor) -> None:
        """The worker goes on from this state."""
        self._put(index, _bytes_of(state))

    def _put(self, index: int, data: bytes) -> None:
        self.forget((index,))  # first: a signal handler may raise in between
        self._session._ask("set_state", index, data)
        self._known[index] = data

    def forget(self, indices: Iterable[int]) -> None:
        """Something may draw from these."""
        for index in indices:
            self._others.add(index)
            self._known.pop(index, None)
            self._names.pop(index, None)

    def clear(self) -> None:
        """Nothing is known of any."""
        self._seed = None
        self._known.clear()
        self._names.clear()

    def seed(self, seed: int, besides: Collection[int]) -> None:
        """Seed all generators but these."""
        self._seed = None  # first, as above
        self.forget([index for index in {*self._known, *self._names} if index not in besides])
        self._session._ask("seed", seed, list(besides))
        self._seed, self._others = seed, set(besides)

    # ---- names -------------------------------------------------------------------------------------------------------
    def name(self, index: int, failures: int) -> bytes:
        """What names the state, on a CPU: what `call` has said, unless the worker has told a failure since; else its
        digest. failures: how many the worker has told."""
        found = self._names.get(index)
        if found is None or found[1] != failures:
            if index not in self._known and self._seed is not None and index not in self._others:
                with quiet():
                    self._known[index] = _bytes_of(torch.Generator("cpu").manual_seed(self._seed).get_state())
            found = self._names[index] = hashlib.sha256(self._of(index)).digest(), failures
        return found[0]

    def call(self, index: int, name: bytes, failures: int) -> None:
        """The state has this name, until something may draw from it."""
        self._names[index] = name, failures

    def settle(self, index: int, data: bytes) -> None:
        """The worker has been asked to go on from this state."""
        self._known[index] = data


def _bytes_of(state: torch.Tensor) -> bytes:
    with quiet():  # as above
        return state.numpy().tobytes()
