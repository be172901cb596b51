"""Executors for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import mindtorch

AnExecutor = TypeVar("AnExecutor", bound=mindtorch.Executor)


@contextmanager
def using(executor: AnExecutor) -> Iterator[AnExecutor]:
    """``executor`` is the one in use, and then again the one that was."""
    previous = mindtorch.set_executor(executor)
    try:
        yield executor
    finally:
        mindtorch.set_executor(previous)
