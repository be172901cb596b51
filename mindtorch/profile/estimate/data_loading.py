"""DataLoaders in an estimate: their workers do not start, what they would do runs here, where it is seen.

What workers do, they do beside the model: neither the device nor the program's own thread takes any time for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from mindtorch._ext import context, ledger

from ...base.patching import Patch

__all__ = ["BESIDE", "HOSTS", "begin", "flags", "on_fetch", "patches", "workers"]

#: Flags of calls, beside those of `compiling`: in a worker; of data loading in the program's own thread.
BESIDE, HOSTS = 8, 16
_DATA = context.PHASES.index("data")
_WORKERS = 5  # its place among a DataLoader's arguments

_torch_init = torch.utils.data.DataLoader.__init__
_torch_iter = torch.utils.data.DataLoader.__iter__
_numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of workers, by loader
_regions: list[tuple[int, int]] = []  # positions in the ledger, from and until
_listeners: list[Callable[[bool], None]] = []
_most = 0
_inside = False


def begin() -> None:
    """An estimate begins."""
    global _most, _inside
    _most, _inside = 0, False
    _numbers.clear()
    _regions.clear()
    _listeners.clear()


def workers() -> int:
    """The most that one loader would have started."""
    return _most


def on_fetch(call: Callable[[bool], None]) -> None:
    """Call this with True when what a worker would do begins, with False when it has ended."""
    _listeners.append(call)


def patches() -> list[Patch]:
    loader = torch.utils.data.DataLoader
    return [(loader, "__init__", _init), (loader, "__iter__", _iter)]


def flags(calls: Any) -> Any:
    """Of each entry of a log of calls."""
    found = np.zeros(len(calls), np.uint8)
    found[(calls["phase"] & (ledger.ENTERED - 1)) == _DATA] = HOSTS
    for first, last in _regions:
        found[first:last] = BESIDE
    return found


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    # Workers are other processes: what they do would be seen by nobody.
    asked = args[_WORKERS] if len(args) > _WORKERS else kwargs.get("num_workers", 0)
    args = (*args[:_WORKERS], 0, *args[_WORKERS + 1 :]) if len(args) > _WORKERS else args
    changed = {
        "num_workers": 0,
        "pin_memory": False,
        "prefetch_factor": None,
        "persistent_workers": False,
        "multiprocessing_context": None,
        "timeout": 0,
    }
    _torch_init(self, *args, **{k: changed.get(k, v) for k, v in kwargs.items()})
    _numbers[self] = asked


def _iter(self: Any) -> Any:
    global _most
    found = _torch_iter(self)
    asked, fetcher = _numbers.get(self, 0), getattr(found, "_dataset_fetcher", None)
    if asked and fetcher is not None:
        _most = max(_most, asked)
        fetcher.fetch = _in_a_worker(fetcher.fetch)
    return found


def _in_a_worker(fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def noted(indices: Any) -> Any:
        global _inside
        if _inside:  # a loader within a dataset
            return fetch(indices)
        _inside, at = True, ledger.position()
        for call in _listeners:
            call(True)
        try:
            return fetch(indices)
        finally:
            _inside = False
            for call in _listeners:
                call(False)
            _regions.append((at, ledger.position()))

    return noted
