"""What a profile is told of torch's own doings meanwhile: compiling, a profiler that the program starts itself, and
buckets that DistributedDataParallel makes in C++."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from mindtorch._ext.balance import Balance
from mindtorch.base.import_hooks import when_loaded
from mindtorch.base.patching import Patch, Patches
from mindtorch.profile.measure.peak import EXCHANGED


def compiled_frames() -> int:
    """How many functions Dynamo has compiled so far, without importing it."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)  # another thread may be importing it
    return 0 if counters is None else int(counters["frames"]["ok"])


class CompileWatch:
    """Calls ``compiling(True)`` and ``compiling(False)`` around each compilation, once Dynamo is there."""

    def __init__(self, compiling: Callable[[bool], None]) -> None:
        self._compiling = compiling
        self._handler: Any = None
        self._forget = when_loaded("torch._dynamo.callback", self._follow)  # it takes too long to import it for this

    def _follow(self, callback: Any) -> None:
        self._handler = handler = getattr(callback, "callback_handler", None)
        if handler is not None:
            handler.register_start_callback(self._begin)
            handler.register_end_callback(self._end)

    def stop(self) -> None:
        self._forget()
        if self._handler is not None:
            handler = self._handler
            for callbacks, own in ((handler.start_callbacks, self._begin), (handler.end_callbacks, self._end)):
                if own in callbacks:  # the program may have cleared them
                    callbacks.remove(own)

    def _begin(self, _: Any) -> None:
        self._compiling(True)

    def _end(self, _: Any) -> None:
        self._compiling(False)


class ProfilerWatch:
    """Counts how often the program starts torch's own profiler, or has it send ranges to NVTX or ITT: ``started``."""

    def __init__(self, begins: Callable[[], None] = lambda: None) -> None:
        """`begins()` is called before its profiler gets ready."""
        self.started = 0
        original = torch.autograd.profiler._enable_profiler  # type: ignore[attr-defined]
        prepares = torch.autograd.profiler._prepare_profiler  # type: ignore[attr-defined]

        def enable(*args: Any, **kwargs: Any) -> Any:
            self.started += 1
            begins()
            return original(*args, **kwargs)

        def prepare(*args: Any, **kwargs: Any) -> Any:
            begins()
            return prepares(*args, **kwargs)

        held = Patches(yields=True)
        held.put([
            (torch.autograd.profiler, "_enable_profiler", enable),
            (torch.autograd.profiler, "_prepare_profiler", prepare),
        ])  # fmt: skip
        self.stop = held.undo


def of_reducers(balance: Balance) -> list[Patch]:
    """What has `balance` know that a reducer makes buffers to send: at first, and anew after the first step. Nobody
    else holds them."""
    if not torch.distributed.is_available():
        return []
    kind: Any = torch.distributed.Reducer

    def noted(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            before, balance.making = balance.making, EXCHANGED
            try:
                return original(*args, **kwargs)
            finally:
                balance.making = before

        return call

    return [(kind, name, noted(getattr(kind, name))) for name in ("__init__", "_rebuild_buckets")]
