"""The executor interface (SPEC R1): what it runs, gives and frees, and its generators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch


class Executor(ABC):
    """Runs segments and keeps the values they make until they are freed.

    ``device`` is where the values live, as a torch.device.
    """

    device: torch.device

    @abstractmethod
    def submit(
        self, segment: Any, blobs: Mapping[int, torch.Tensor] | None = None, outputs: Sequence[int] | None = None
    ) -> None:
        """Run ``segment`` (a ``mindtorch._ext.replay.Segment``) in program order.

        ``blobs``: values by slot that the executor does not hold yet. ``outputs``: slots whose values will be
        asked for; None keeps every value that a live tensor can still read. Raises MaterializationError.
        """

    @abstractmethod
    def fetch(self, ids: Sequence[Any]) -> list[torch.Tensor]:
        """The values behind the handles. The tensors belong to the executor: callers must not write to them."""

    @abstractmethod
    def free(self, ids: Sequence[Any]) -> None:
        """Values nobody can read any more."""

    @abstractmethod
    def sync(self) -> None:
        """Return when all submitted work is done."""

    @abstractmethod
    def rng(self, index: int) -> AbstractContextManager[None]:
        """While active, torch's default generator on ``device`` is that of ``remote_accelerator:index``.

        Every index has a generator of its own; as in CUDA, they all start from the same seed.
        """

    @abstractmethod
    def seed(self, seed: int, besides: Sequence[int] = ()) -> None:
        """Seed the generators of all indices but ``besides``, those that are used later for the first time included."""
