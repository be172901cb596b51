"""DataLoaders in an estimate: their workers do not start, what they would do runs here, where it is seen.

What workers do, they do beside the model: neither the device nor the program's own thread takes any time for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mindtorch._ext import context, ledger

from ...base.patching import Patch

__all__ = ["BESIDE", "HOSTS", "begin", "flags", "on_fetch", "patches", "workers"]

#: Flags of calls, beside those of `compiling`: in a worker; of data loading in the program's own thread.
BESIDE, HOSTS = 8, 16
_DATA = context.PHASES.index("data")
#: Attributes of a DataLoader that starts no workers and pins no memory.
_HERE = {
    "num_workers": 0, "pin_memory": False, "prefetch_factor": None, "persistent_workers": False, "timeout": 0,
}  # fmt: skip

_torch_iter = torch.utils.data.DataLoader.__iter__
_regions: list[tuple[int, int]] = []  # positions in the ledger, from and until
_listeners: list[Callable[[bool], None]] = []
_most = 0
_inside = False


def begin() -> None:
    """An estimate begins."""
    global _most, _inside
    _most, _inside = 0, False
    _regions.clear()
    _listeners.clear()


def workers() -> int:
    """The most that one loader would have started."""
    return _most


def on_fetch(call: Callable[[bool], None]) -> None:
    """Call this with True when what a worker would do begins, with False when it has ended."""
    _listeners.append(call)


def patches() -> list[Patch]:
    return [(torch.utils.data.DataLoader, "__iter__", _iter)]


def flags(calls: Any) -> Any:
    """Of each entry of a log of calls."""
    found = np.zeros(len(calls), np.uint8)
    found[(calls["phase"] & (ledger.ENTERED - 1)) == _DATA] = HOSTS
    for first, last in _regions:
        found[first:last] = BESIDE
    return found


@functools.wraps(_torch_iter)
def _iter(self: Any) -> Any:
    # Workers are other processes: what they do would be seen by nobody. The program sees what it asked for.
    global _most
    asked = {name: getattr(self, name) for name in _HERE}
    vars(self).update(_HERE)
    try:
        found = _torch_iter(self)
    finally:
        vars(self).update(asked)
    fetcher = getattr(found, "_dataset_fetcher", None)
    if asked["num_workers"] and fetcher is not None:
        _most = max(_most, asked["num_workers"])
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
