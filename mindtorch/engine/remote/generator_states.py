"""States of a worker's generators, which the program draws from on the CPU, too."""

from __future__ import annotations

import torch

from ..record.arguments import quiet
from .exchange import Session
from .reads import plain_bytes

__all__ = ["DRAWING", "GeneratorStates"]

DRAWING = frozenset({"call", "run", "seed"})  # requests after which a state may be another


class GeneratorStates:
    """``states[index]``: the state of the worker's generator of ``remote_accelerator:index``, a uint8 tensor. It is
    asked for by one message, and known from then on until something may draw there. What is put back as it was read
    changes nothing: the worker may have drawn in between.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[int, bytes] = {}
        self._read: dict[int, bytes] = {}

    def __getitem__(self, index: int) -> torch.Tensor:
        with quiet():  # a transform of the program would have its word in this, and in the look at the answer
            known = self._known.get(index)
            if known is None:
                known = self._known[index] = self._session._question("get_state", index)
            self._read[index] = known
            return plain_bytes(known)

    def __setitem__(self, index: int, state: torch.Tensor) -> None:
        data = _bytes_of(state)
        if self._read.get(index) != data:
            self._put(index, data)

    def put(self, index: int, state: torch.Tensor) -> None:
        """The worker goes on from this state."""
        self._put(index, _bytes_of(state))

    def _put(self, index: int, data: bytes) -> None:
        self._known.pop(index, None)  # first: a signal handler may raise in between
        self._session._ask("set_state", index, data)
        self._known[index] = data

    def forget(self) -> None:
        """Something may draw from them."""
        self._known.clear()


def _bytes_of(state: torch.Tensor) -> bytes:
    with quiet():  # as above
        return state.numpy().tobytes()
