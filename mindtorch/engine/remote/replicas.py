"""Copies that workers have of what others have, too: to read it without a move (SPEC R5)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from .client import RemoteExecutor

__all__ = ["Copies"]


class Copies:
    """Of storages that one executor has, on others. A copy ends when its storage is written, or is no more."""

    def __init__(self, executors: Sequence[RemoteExecutor]) -> None:
        self._executors = executors
        # (its home, its number there) -> where there are copies -> mirror of the whole copy.
        self._held: dict[tuple[int, int], dict[int, torch.Tensor]] = {}
        self._failures = 0

    def end_of(self, owner: RemoteExecutor, number: int) -> None:
        """Let none of the storage that the owner has by this number be there."""
        if self._held:
            self._held.pop((self._executors.index(owner), number), None)

    def _key(self, value: torch.Tensor, owner: RemoteExecutor) -> tuple[int, int]:
        owner._take()  # memory of the program's that shares the storage may have been written
        return self._executors.index(owner), owner._mirrors.number_of(value)

    def of(self, value: torch.Tensor, owner: RemoteExecutor) -> Mapping[int, torch.Tensor]:
        """The copies of a value's storage by worker."""
        self._forget_failures()
        if not self._held:
            return {}
        return self._held.get(self._key(value, owner), {})

    def add(self, value: torch.Tensor, owner: RemoteExecutor, worker: int, whole: torch.Tensor) -> None:
        """``whole`` is one."""
        self._held.setdefault(self._key(value, owner), {})[worker] = whole

    def end(self, value: torch.Tensor, owner: RemoteExecutor) -> None:
        """Let none of a value's storage be there."""
        self._held.pop(self._key(value, owner), None)

    def let_go(self, but: Collection[tuple[Any, int]]) -> list[int]:
        """Free all copies, but those of storages that are named by executor and number. Returns bytes by worker."""
        stay = {(self._executors.index(owner), number) for owner, number in but}
        before = self.nbytes()
        self._held = {key: copies for key, copies in self._held.items() if key in stay}
        return [was - now for was, now in zip(before, self.nbytes(), strict=True)]

    def nbytes(self) -> list[int]:
        """Bytes of copies by worker."""
        found = [0] * len(self._executors)
        for executor in self._executors:
            executor._mirrors.bury()  # which ends the copies of what has died
        for copies in self._held.values():
            for worker, whole in copies.items():
                found[worker] += whole.untyped_storage().nbytes()
        return found

    def _forget_failures(self) -> None:
        """What failed on a worker may be a copy, of which the value has not failed, or has been computed again."""
        failures = sum(len(executor._failures) for executor in self._executors)
        if failures != self._failures:
            self._held.clear()
            self._failures = failures
