"""The plans and definitions that a worker already has, and what the next segment must still send (SPEC R1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..._ext.encoder import Encoded
from .definitions import definition

__all__ = ["SentSegments"]

_MOST = 64 << 20  # bytes of plans beyond which they are all forgotten


class _Plan:
    """A segment that the worker knows by ``number``, and the numbers that it had when it last ran.

    whole: are all its values integers and booleans, and none of them drawn?
    """

    def __init__(self, number: int, numbers: Any, whole: bool) -> None:
        self.number, self.numbers, self.whole = number, numbers, whole


class SentSegments:
    """ask(name of a request, …, nbytes=…) tells the worker."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self._plans: dict[bytes, _Plan] = {}  # by the structure of a segment (see mindtorch._ext.encoder)
        self._definitions: dict[bytes, tuple[int, bool]] = {}  # calls in them, by their part of it: number, `whole`
        self._nbytes = 0
        self.plans = 0  # told in all

    def plan(self, encoded: Encoded) -> tuple[int, bool]:
        """Number of the plan, and whether all its values are integers and booleans."""
        plan = self._plans.get(encoded.structure)
        if plan is None or self._nbytes > _MOST:
            plan = self._tell(encoded)
        return plan.number, plan.whole

    def changes(self, encoded: Encoded) -> tuple[bytes, bytes]:
        """Which of the plan's numbers are others than when this was last asked, and what they are now."""
        plan = self._plans[encoded.structure]
        now = np.frombuffer(encoded.numbers, np.int64)
        changed = np.flatnonzero(now != plan.numbers)
        plan.numbers = now
        return changed.astype(np.uint32).tobytes(), now[changed].tobytes()

    def forget(self) -> None:
        """Tell everything anew, the worker's having been told to forget it."""
        self._nbytes = _MOST + 1

    def _tell(self, encoded: Encoded) -> _Plan:
        if self._nbytes > _MOST:
            self._ask("forget")
            self._plans.clear()
            self._definitions.clear()
            self._nbytes = 0
        new: dict[bytes, tuple[int, bool]] = {}
        definitions: list[tuple] = []
        records = []
        given = encoded.begins()
        whole = not any(dtype.is_floating_point or dtype.is_complex for dtype, *_ in given)
        for k in range(len(encoded)):
            call = encoded.call(k)
            known = self._definitions.get(call) or new.get(call)
            if known is None:
                made = definition(encoded.origin(k)[1])
                drawn = made.random >= 0 or any(d.is_floating_point or d.is_complex for d, *_ in made.predicted)
                known = new[call] = len(self._definitions) + len(new), not drawn
                definitions.append(tuple(made))
            number, calculates = known
            whole = whole and calculates
            records.append((number, encoded.grad(k), *encoded.inputs(k)))
        staying = [ordinal for _slot, _root, ordinal, _meta, _bits in encoded.kept[: encoded.n_own]]
        if new:
            self._definitions.update(new)
            self._ask("define", definitions, nbytes=128 * len(new))
        self._ask("plan", records, given, staying, nbytes=32 * len(records))
        self.plans += 1
        self._nbytes += len(encoded.structure) + len(encoded.numbers)
        plan = _Plan(len(self._plans), np.zeros(len(encoded.numbers) // 8, np.int64), whole)
        self._plans[encoded.structure] = plan
        return plan
