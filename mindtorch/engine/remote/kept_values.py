"""Values that a cache keeps where the worker has them, and what names them (SPEC L14)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .reads import plain_bytes
from .small_values import comes_unasked

if TYPE_CHECKING:
    from ..._ext.encoder import Encoded
    from .client import RemoteExecutor
    from .exchange import Entry

__all__ = ["STATE_BYTES", "KeptValues"]

STATE_BYTES = torch.Generator().get_state().numel()  # of a generator on a CPU


class KeptValues:
    """Of one executor, which may be one of several."""

    def __init__(self, executor: RemoteExecutor) -> None:
        self._executor = executor
        self._coming: set[int] = set()  # ids of the states of generators that have not come yet

    @property
    def failures(self) -> int:
        """How many failures workers have told: what has been kept may be without some of its values, here or where a
        value has come from."""
        several = (self._executor,) if self._executor.among is None else self._executor.among.executors
        return sum(len(executor._failures) for executor in several)

    @property
    def is_lost(self) -> bool:
        """Has the worker gone, and its values with it?"""
        return self._executor._lost is not None

    # ---- names -------------------------------------------------------------------------------------------------------
    def names(self, mirrors: Sequence[torch.Tensor]) -> list[bytes | None]:
        """Names of what is in the storages of these: their digest, or what `name` said; None for what has failed.

        Each worker is asked once, for all that nobody knows.
        """
        among = self._executor.among
        if among is None:
            return self.names_here(mirrors)
        places: dict[Any, list[int]] = {}
        for k, mirror in enumerate(mirrors):
            places.setdefault(among.owner(mirror), []).append(k)
        found: list[bytes | None] = [None] * len(mirrors)
        for owner, at in places.items():
            for k, name in zip(at, owner.names_of([mirrors[k] for k in at]), strict=True):
                found[k] = name
        return found

    def names_here(self, mirrors: Sequence[torch.Tensor]) -> list[bytes | None]:
        """The same of what this worker has."""
        executor = self._executor
        executor._take()
        contents = executor._uploads.contents
        numbers = [executor._mirrors.number_of(mirror) for mirror in mirrors]
        unknown = [number for number in dict.fromkeys(numbers) if contents.name(number) is None]
        asked = []
        for number in unknown:
            if number in executor._known:
                contents.call(number, hashlib.sha256(executor._known.storage(number)).digest())
            else:
                asked.append(number)
        if asked:
            for number, digest in zip(asked, executor._question("digest", asked), strict=True):
                if digest is not None:
                    contents.call(number, digest)
        return [contents.name(number) for number in numbers]

    def name(self, mirror: torch.Tensor, name: bytes) -> None:
        """What is in its storage has this name, until something writes to it."""
        self._executor._uploads.contents.call(self._executor._mirrors.number_of(mirror), name)

    def name_as(self, mirror: torch.Tensor, other: KeptValues, value: torch.Tensor) -> None:
        """What is in its storage is what the other executor has in that of a value."""
        name = other._executor._uploads.contents.name(other._executor._mirrors.number_of(value))
        if name is not None:
            self.name(mirror, name)

    def learn(self, mirrors: Sequence[torch.Tensor], copies: Sequence[torch.Tensor]) -> None:
        """Have what is in these storages, and in copies of them, named by its digest, with the reply to what was asked.

        What a segment writes to may be what it was before, such as the statistics of a batch norm in evaluation.
        """
        contents = self._executor._uploads.contents
        of = self._executor._mirrors.number_of
        pairs = list(zip(map(of, mirrors), map(of, copies)))
        for pair in pairs:
            for number in pair:
                contents.expect(number)

        def answer(found: list[bytes | None]) -> None:
            for pair, digest in zip(pairs, found, strict=True):
                for number in pair:
                    contents.arrive(number, digest)

        if pairs:
            self._executor._ask("digest", [number for _, number in pairs], answer=answer)

    # ---- generators --------------------------------------------------------------------------------------------------
    def _drawing(self, index: int) -> RemoteExecutor:
        """Who has the generator of ``remote_accelerator:index``."""
        return self._executor if self._executor.among is None else self._executor.among.drawing(index)

    def state_name(self, index: int) -> bytes:
        """What names the state of a generator."""
        return self._drawing(index)._states.name(index, self.failures)

    def name_state(self, index: int, name: bytes) -> None:
        """It has this name, until something may draw from it."""
        self._drawing(index)._states.call(index, name, self.failures)

    def state(self, index: int) -> torch.Tensor:
        """The state that a generator has when what was asked for before has been done: it comes with the reply to
        that, see `has_come`."""
        state = torch.zeros(STATE_BYTES, dtype=torch.uint8)
        self._coming.add(id(state))

        def answer(found: bytes) -> None:
            state.copy_(plain_bytes(found))
            self._coming.discard(id(state))

        self._drawing(index)._ask("get_state", index, answer=answer)
        return state

    def has_come(self, state: torch.Tensor) -> bool:
        """Is it known, once what has been sent is answered?"""
        self._executor._take_in_while(lambda: id(state) in self._coming)
        return id(state) not in self._coming

    # ---- values ------------------------------------------------------------------------------------------------------
    def copies(self, mirrors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of whole storages, which are there when what was asked for before has been done.

        The little ones come with the reply to that, so that a copy of one is known without asking.
        """
        found = []
        for mirror in mirrors:
            copy = self._executor.copied_storage(mirror)
            if (
                comes_unasked(mirror)
                and (number := self._executor._mirrors.number_of(copy)) not in self._executor._known
            ):
                self._executor._small.append(number)
            found.append(copy)
        return found

    def settle_given(self, encoded: Encoded) -> None:
        """Have here what a segment begins with that is going to run here."""
        if self._executor.among is not None:
            self._executor.among.settle_given(encoded, self._executor)

    def settle(
        self, segment: Any, encoded: Encoded, own: Sequence[torch.Tensor], written: Mapping[int, torch.Tensor],
        states: Mapping[int, torch.Tensor],
    ) -> None:  # fmt: skip
        """Let a segment be over that does not run: it makes copies of ``own``, and what it is given has the contents
        of ``written``, by its place among that; generators go on from ``states``."""
        executor = self._executor
        if executor.among is not None:
            executor.among.settle_written(encoded, executor)
        executor._reads.are_over()
        executor._speculation.start_anew()
        base = executor._mirrors.fresh(encoded.n_outputs)
        requests: list[Entry] = []
        for (_slot, _root, ordinal, *_), kept in zip(encoded.kept, own):  # what is kept besides are views
            number, source = base + ordinal, executor._mirrors.number_of(kept)
            requests.append(executor._uploads.copy(number, source, kept.numel()))
            executor._known.copy(number, source)
        for place, kept in written.items():
            number, source = map(executor._mirrors.number_of, (encoded.given[place][0], kept))
            executor._changed(number)
            executor._known.copy(number, source)
            if (name := executor._uploads.contents.name(source)) is not None:
                executor._uploads.contents.call(number, name)
            requests.append((("overwrite", number, source), None))
        drawn = {index: (self._drawing(index), state.numpy().tobytes()) for index, state in states.items()}
        asked: list[tuple[list[Entry], list[Entry]]] = [(executor._line[-1].requests, requests)]
        for index, (there, data) in drawn.items():
            there._states.forget((index,))
            asked.append((there._line[-1].requests, [(("set_state", index, data), None)]))
        segment.settle(executor._made(encoded, base), asked)
        for index, (there, data) in drawn.items():
            there._states.settle(index, data)
