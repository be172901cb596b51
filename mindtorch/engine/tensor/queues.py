"""What goes wrong as a queue between processes takes a tensor comes up at its other end, where somebody waits (L9).

``multiprocessing.Queue`` pickles in a thread of its own, which prints an error and goes on. A DataLoader's worker, or
whoever is to get the tensor, would wait for good. With torch's own tensors nothing goes wrong there; with ours
everything that was recorded may, as they are read.
"""

from __future__ import annotations

import functools
import pickle
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
            return _raise, (f"a queue could not pass on a tensor: {text}", _sendable(type(error)))

    return reduced


def _only_printed() -> bool:
    """Is this the thread of a queue that prints errors? Those of executors tell whoever waits for the result."""
    return _prints in getattr(threading.current_thread(), "_args", ())


def _sendable(kind: type[Exception]) -> type[MaterializationError]:
    also = MaterializationError.also(kind)
    try:
        pickle.dumps(also)
    except Exception:  # noqa: BLE001 - a class of the program's, which may be found by no name or refuse in any way
        return MaterializationError
    return also


def _raise(text: str, kind: type[MaterializationError]) -> NoReturn:
    raise kind(text)
