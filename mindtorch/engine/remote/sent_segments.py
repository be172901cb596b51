"""The plans and definitions that a worker already has, and what the next segment must still send (SPEC R1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..._ext.encoder import Encoded
from .definitions import Definition, definition

__all__ = ["Sent", "SentSegments", "is_float"]

_FEW = 10_000  # records: what a worker sets aside for messages is enough for a plan of so many
_RECORD = 2 << 10  # bytes that a record of a plan takes there
_MOST = 64 << 20  # bytes of plans beyond which they are all forgotten

#: Of floats, these give the same on every machine, as views of them do: nothing is rounded.
_EXACT = frozenset({"isfinite", "isinf", "isnan"})


class Sent:
    """A segment that the worker knows by ``number``, and the numbers that it had when it last ran.

    exact: does it give the same on every machine: integers and booleans, none of them drawn, and what is `_EXACT`?
    draws: indices of the devices whose generators it draws from.
    """

    def __init__(self, number: int, numbers: Any, exact: bool, draws: frozenset[int]) -> None:
        self.number, self.numbers, self.exact, self.draws = number, numbers, exact, draws

    def change(self, now: Any) -> tuple[bytes, bytes]:
        """Which numbers are others than they were, and what they are now, as a run tells them; they are these then."""
        changed = np.flatnonzero(now != self.numbers)
        self.numbers = now
        return changed.astype(np.uint32).tobytes(), now[changed].tobytes()


def is_float(dtype: torch.dtype) -> bool:
    """Are its numbers rounded, as complex ones are, too?"""
    return dtype.is_floating_point or dtype.is_complex


def _is_exact(function: str) -> bool:
    """By a name such as ``torch.isnan`` or ``aten::isnan.default``."""
    return not _EXACT.isdisjoint(function.replace("::", ".").split("."))


class SentSegments:
    """ask(name of a request, …, nbytes=…) tells the worker. room(bytes, for what) raises an error where it has no
    memory."""

    def __init__(self, ask: Callable[..., Any], room: Callable[[int, str], None] | None = None) -> None:
        self._ask, self._room = ask, room
        self._plans: dict[bytes, Sent] = {}  # by the structure of a segment (see mindtorch._ext.encoder)
        self._definitions: dict[bytes, tuple[int, Definition]] = {}  # calls in them by their part of it, with a number
        self._nbytes = 0
        self.plans = 0  # told in all

    def plan(self, encoded: Encoded) -> Sent:
        """The segment's plan, which the worker is told where it does not know it."""
        plan = self._plans.get(encoded.structure)
        if plan is None or self._nbytes > _MOST:
            plan = self._tell(encoded)
        return plan

    def changed_numbers(self, encoded: Encoded) -> tuple[bytes, bytes]:
        """Which of the plan's numbers are others than when this was last asked, and what they are now."""
        plan = self._plans[encoded.structure]
        now = np.frombuffer(encoded.numbers, np.int64).copy()  # which another worker may use with other storages
        return plan.change(now)

    def forget(self) -> None:
        """Tell everything anew, the worker's having been told to forget it."""
        self._nbytes = _MOST + 1

    def _tell(self, encoded: Encoded) -> Sent:
        if len(encoded) > _FEW and self._room is not None:
            self._room(len(encoded) * _RECORD, f"{len(encoded):,} operations")
        if self._nbytes > _MOST:
            self._ask("forget")
            self._plans.clear()
            self._definitions.clear()
            self._nbytes = 0
        new: dict[bytes, tuple[int, Definition]] = {}
        records: list[tuple] = []
        given = encoded.begins()
        computed: list[bool] = []  # of each output: is it a float?
        exact = True
        draws: set[int] = set()
        for k in range(len(encoded)):
            call = encoded.call(k)
            known = self._definitions.get(call) or new.get(call)
            if known is None:
                known = new[call] = len(self._definitions) + len(new), definition(encoded.origin(k)[1])
            number, made = known
            inputs = encoded.inputs(k)
            reads = any(computed[n // 2] if n % 2 else is_float(given[n // 2][0]) for n in inputs)
            gives = [is_float(dtype) for dtype, *_ in made.predicted]
            computed += gives
            if made.random >= 0:
                draws.add(made.random)
            exact &= made.random < 0 and (not (reads or any(gives)) or made.view or _is_exact(made.function))
            records.append((number, encoded.grad(k), *inputs))
        staying = [ordinal for _slot, _root, ordinal, _meta, _bits in encoded.kept[: encoded.n_own]]
        if new:
            self._definitions.update(new)
            self._ask("define", [tuple(made) for _number, made in new.values()], nbytes=128 * len(new))
        self._ask("plan", records, given, staying, nbytes=32 * len(records))
        self.plans += 1
        self._nbytes += len(encoded.structure) + len(encoded.numbers)
        plan = Sent(len(self._plans), np.zeros(len(encoded.numbers) // 8, np.int64), exact, frozenset(draws))
        self._plans[encoded.structure] = plan
        return plan
