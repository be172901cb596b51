"""Values that a cache keeps where the worker has them, and what names them (SPEC L14)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .small_values import comes_unasked

if TYPE_CHECKING:
    from ..._ext.encoder import Encoded
    from .client import RemoteExecutor
    from .exchange import Entry

__all__ = ["KeptValues"]


class KeptValues:
    """Of one executor."""

    def __init__(self, executor: RemoteExecutor) -> None:
        self._executor = executor

    @property
    def failures(self) -> int:
        """How many failures of the worker have been told: what has been kept may be without some of its values."""
        return len(self._executor._failures)

    def names(self, mirrors: Sequence[torch.Tensor]) -> list[bytes | None]:
        """Names of what is in the storages of these: their digest, or what `name` said; None for what has failed.

        The worker is asked once, for all that nobody knows.
        """
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

    def settle(
        self, segment: Any, encoded: Encoded, own: Sequence[torch.Tensor], written: Mapping[int, torch.Tensor]
    ) -> None:
        """Let a segment be over that does not run: it makes copies of ``own``, and what it is given has the contents
        of ``written``, by its place among that."""
        executor = self._executor
        executor._reads.are_over()
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
        segment.settle(executor._made(encoded, base), executor._line[-1].requests, requests)
