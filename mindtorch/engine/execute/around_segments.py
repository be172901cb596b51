"""What stands between a segment and its executor: who keeps values, and who listens (SPEC L14)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch

__all__ = ["Keeper", "Listener", "Submit", "is_lent", "lend"]

Submit = Callable[[Any], None]


class Keeper(Protocol):
    """What may have the values of a segment."""

    @property
    def nbytes(self) -> int:
        """Bytes held now."""

    def submit(self, executor: Any, segment: Any) -> None:
        """See to it that the segment's slots have what stands for their values, as ``executor.submit`` does."""


#: (executor, segment, why it runs, what runs it).
Listener = Callable[[Any, Any, str, Submit], None]

#: Segments whose values a keeper had, and those that it ran and kept; why others were not kept: reason -> segments.
counts = {"cache_hits": 0, "cache_misses": 0}
refused: dict[str, int] = {}

keeper: Keeper | None = None
listener: Listener | None = None


def submit(executor: Any, segment: Any, reason: str) -> None:
    """Run a segment, with whoever stands in between."""
    run: Submit = executor.submit if keeper is None else functools.partial(keeper.submit, executor)
    if listener is None:
        run(segment)
    else:
        listener(executor, segment, reason, run)


#: Why values are looked at by code that does not write to them.
_READS = frozenset("item tolist bool int float complex index print numpy dlpack cpu cuda to backward deepcopy".split())


def lend(values: list[torch.Tensor], reason: str) -> None:
    """Something else than recorded calls gets hold of the values' memory, and may write to it from now on."""
    if reason not in _READS:
        for value in values:
            if value.layout is torch.strided:
                value.untyped_storage()._genie_lent = True  # type: ignore[attr-defined]


def is_lent(storage: torch.UntypedStorage) -> bool:
    """May something else than recorded calls write to it?"""
    return getattr(storage, "_genie_lent", False) or storage.is_shared()
