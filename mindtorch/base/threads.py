"""`ThreadWatch`: do something in every thread that begins, and when it ends. `under`: one thread at a time.

Torch keeps dispatch modes per thread, so whoever watches a program has to enter his in each.
"""

from __future__ import annotations

import _thread
import functools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from .patching import Patches

start_unwatched = _thread.start_new_thread  # for threads of ours, which are none of the program's

_RAW = "_thread"  # what threads without a name are called


def under(lock: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the function holds ``lock`` while it runs."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            with lock:
                return function(*args, **kwargs)

        return locked

    return decorated


class ThreadWatch:
    """Within the block, threads that begin run under `mode`; ``begin(thread)`` and ``end()`` are called in each.

    Threads of ``threading``, and so those of executors and of asyncio, and those of ``_thread``, whose ``thread`` has a
    name only; not those that C code starts, nor those that run already.
    """

    def __init__(
        self, mode: TorchDispatchMode, begin: Callable[[Any], object] = id, end: Callable[[], object] = object
    ) -> None:
        self._mode, self._begin, self._end = mode, begin, end
        self._watching = False

    def __enter__(self) -> ThreadWatch:
        original = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        def _bootstrap_inner(thread: threading.Thread) -> None:
            if threading.Thread._bootstrap_inner is not self._replacement:  # type: ignore[attr-defined]
                return original(thread)  # started while nobody watches any more
            self._run(thread, original, (thread,), {})  # not yet `threading.current_thread()`

        self._replacement = _bootstrap_inner
        self._held = Patches(yields=True)
        self._held.put([(threading.Thread, "_bootstrap_inner", _bootstrap_inner)])
        self._held.put(
            (_thread, name, self._raw_start(vars(_thread)[name])) for name in ("start_new_thread", "start_new")
        )
        self._watching = True
        return self

    def __exit__(self, *_: object) -> None:
        self._watching = False
        self._held.undo()

    def _raw_start(self, original: Callable[..., int]) -> Callable[..., int]:
        def start_new_thread(*args: Any) -> int:
            if not self._watching or not args or not callable(args[0]):  # it says itself what is wrong
                return original(*args)
            return original(_Raw(args[0], self), *args[1:])

        start_new_thread.__doc__ = original.__doc__
        return start_new_thread

    def _run(self, thread: Any, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> None:
        _python_dispatch._push_mode(self._mode)
        try:
            self._begin(thread)
            function(*args, **kwargs)
        finally:
            self._end()
            modes = _python_dispatch._get_current_dispatch_mode_stack()
            if modes and modes[-1] is self._mode:
                _python_dispatch._pop_mode()


class _Raw:
    """What a thread of ``_thread`` runs; where that fails, Python names the program's own function."""

    def __init__(self, function: Callable[..., Any], watch: ThreadWatch) -> None:
        self._function, self._watch = function, watch

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._watch._watching:
            self._watch._run(SimpleNamespace(name=_RAW), self._function, args, kwargs)
        else:
            self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self._function)
