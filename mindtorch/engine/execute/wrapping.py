"""An executor that passes everything on to another one (SPEC R1)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from ...base.errors import UsageError
from .base import Executor
from .machine import Machine

__all__ = ["WrappingExecutor"]


class WrappingExecutor(Executor):
    """Passes every call on to ``inner``. Derive from it to do more in some of the methods.

    UsageError if ``inner`` is not an executor.
    """

    def __init__(self, inner: Executor) -> None:
        if not isinstance(inner, Executor):
            raise UsageError(f"[{type(self).__name__}] expected an Executor, got {inner!r:.80}")
        self.inner = inner
        self.device, self.place, self.count = inner.device, inner.place, inner.count
        self.lists_apart = inner.lists_apart

    @property
    def overlaps(self) -> bool:  # type: ignore[override]
        return self.inner.overlaps

    @property
    def ahead(self) -> bool:  # type: ignore[override]
        return self.inner.ahead

    @property
    def early(self) -> bool:  # type: ignore[override]
        return self.inner.early

    @property
    def waits(self) -> int:  # type: ignore[override]
        return self.inner.waits

    def machine(self, index: int = 0) -> Machine:
        return self.inner.machine(index)

    def submit(self, segment: Any) -> None:
        self.inner.submit(segment)

    def begin(self) -> None:
        self.inner.begin()

    def fetch(self, values: Sequence[torch.Tensor], whole: bool = False) -> list[torch.Tensor]:
        return self.inner.fetch(values, whole)

    def home(self, memory: torch.UntypedStorage) -> int:
        return self.inner.home(memory)

    def bring(self, memory: Sequence[torch.UntypedStorage]) -> None:
        self.inner.bring(memory)

    def address(self, value: torch.Tensor) -> int:
        return self.inner.address(value)

    def adopt(self, tensors: Sequence[torch.Tensor], index: int = 0) -> list[torch.Tensor]:
        return self.inner.adopt(tensors, index)

    def adopt_operand(self, tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
        return self.inner.adopt_operand(tensor, index)

    def move(self, value: torch.Tensor, index: int) -> torch.Tensor:
        return self.inner.move(value, index)

    def gather(self, values: Sequence[torch.Tensor], written: Sequence[torch.Tensor], draws: int | None) -> None:
        self.inner.gather(values, written, draws)

    def call(self, info: Any, args: tuple, kwargs: dict[str, Any], draws: int | None) -> Any:
        return self.inner.call(info, args, kwargs, draws)

    def copied_storage(self, value: torch.Tensor) -> torch.Tensor:
        return self.inner.copied_storage(value)

    def finish(self) -> None:
        self.inner.finish()

    def sync(self) -> None:
        self.inner.sync()

    def rng(self, index: int) -> AbstractContextManager[None]:
        return self.inner.rng(index)

    def seed(self, seed: int, besides: Sequence[int] = ()) -> None:
        self.inner.seed(seed, besides)

    def generators(self) -> tuple[int | None, dict[int, torch.Tensor]]:
        return self.inner.generators()

    def set_generators(self, seed: int | None, states: dict[int, torch.Tensor]) -> None:
        self.inner.set_generators(seed, states)
