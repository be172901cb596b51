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
    asked for by one message, and known from then on until something may draw there.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[int, bytes] = {}

    def __getitem__(self, index: int) -> torch.Tensor:
        known = self._known.get(index)
        if known is None:
            known = self._known[index] = self._session._question("get_state", index)
        return plain_bytes(known)

    def __setitem__(self, index: int, state: torch.Tensor) -> None:
        with quiet():  # a transform of the program would have its word in this
            data = state.numpy().tobytes()
        if self._known.pop(index, None) != data:  # taken out first: a signal handler may raise in between
            self._session._ask("set_state", index, data)
        self._known[index] = data

    def forget(self) -> None:
        """Something may draw from them."""
        self._known.clear()
