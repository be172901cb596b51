"""`ThreadWatch`: do something in every thread that begins, and when it ends.

Torch keeps dispatch modes per thread, so whoever watches a program has to enter his in each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode


class ThreadWatch:
    """Within the block, threads that begin run under `mode`; ``begin(thread)`` and ``end()`` are called in each.

    Threads of ``threading``, and so those of executors and of asyncio; not those that C code or ``_thread`` starts,
    nor those that run already.
    """

    def __init__(self, mode: TorchDispatchMode, begin: Callable[[threading.Thread], object] = id,
                 end: Callable[[], object] = object) -> None:
        self._mode, self._begin, self._end = mode, begin, end

    def __enter__(self) -> ThreadWatch:
        self._original = original = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        def _bootstrap_inner(thread: threading.Thread) -> None:
            if threading.Thread._bootstrap_inner is not self._replacement:  # type: ignore[attr-defined]
                return original(thread)  # started while nobody watches any more
            _python_dispatch._push_mode(self._mode)
            try:
                self._begin(thread)  # not yet `threading.current_thread()`
                original(thread)
            finally:
                self._end()
                modes = _python_dispatch._get_current_dispatch_mode_stack()
                if modes and modes[-1] is self._mode:
                    _python_dispatch._pop_mode()

        self._replacement = threading.Thread._bootstrap_inner = _bootstrap_inner  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        if threading.Thread._bootstrap_inner is self._replacement:  # type: ignore[attr-defined]
            threading.Thread._bootstrap_inner = self._original  # type: ignore[attr-defined]
