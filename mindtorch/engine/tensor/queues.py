"""What goes wrong as a queue between processes takes a tensor comes up at its other end, where somebody waits (L9).

``multiprocessing.Queue`` pickles in a thread of its own, which prints an error and goes on. A DataLoader's worker, or
whoever is to get the tensor, would wait for good. With torch's own tensors nothing goes wrong there; with ours
everything that was recorded may, as they are read.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from multiprocessing.queues import Queue
from typing import Any, NoReturn

from ...base.errors import MaterializationError

__all__ = ["told_at_the_other_end"]
_prints: Any = Queue._on_queue_feeder_error  # type: ignore[attr-defined]


def told_at_the_other_end(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """``reduce``, as pickle calls it, whose errors are raised by whoever loads what a queue was to hand over."""

    @functools.wraps(reduce)
    def reduced(t: Any, *protocol: Any) -> Any:
        try:
            return reduce(t, *protocol)
        except Exception as error:
            if not _only_printed():
                raise
            text = str(error) if isinstance(error, MaterializationError) else f"{type(error).__name__}: {error}"
            return _raise, (f"a tensor could not be handed over by a queue: {text}",)

    return reduced


def _only_printed() -> bool:
    """Is this the thread of a queue that prints errors? Those of executors tell whoever waits for the result."""
    return _prints in getattr(threading.current_thread(), "_args", ())


def _raise(text: str) -> NoReturn:
    raise MaterializationError(text)
