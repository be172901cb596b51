"""Data loaded beside a worker: batches go from an actor on its machine to it, not through the program (SPEC R2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .actor import Gives, look_in

__all__ = ["Feeder"]


class Feeder(Gives):
    """An actor: calls a function there by its name, and goes through what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: Iterator[Any] = iter(())

    def begin(self, path: list[str] | None, source: str, args: bytes, seed: int) -> str:
        """Call ``source``, MODULE:FUNCTION, with arguments as `wire` has them, after torch's seed has been set. Why
        that failed; empty if it did not. ``path``: as for `Actor.begin`.
        """
        if path is not None:
            look_in(path)
        import importlib

        import torch

        from ..engine.remote.wire import loads

        module, _, name = source.partition(":")
        torch.manual_seed(seed)
        try:
            function: Any = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            self._batches = iter(function(*loads(args)))
        except Exception as error:  # noqa: BLE001 - the user's code; all of it is told to the program
            return f"{type(error).__name__}: {error}"
        return ""

    def next(self, first: int) -> tuple[bytes, list[int]] | str | None:
        """Put aside the next batch as parcels from ``first`` on. (its description, bytes of each); None after the last;
        why there is none, as a string.
        """
        from .worker_files import put_aside

        try:
            batch = next(self._batches, None)
            return None if batch is None else put_aside(batch, first, self._parcels)
        except Exception as error:  # noqa: BLE001 - as above
            return f"{type(error).__name__}: {error}"
