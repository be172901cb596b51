"""A DataLoader's forked workers, where values of the device are in another process: they take along what they hand out.

A child has no part in its parent's session with an executor. What a dataset holds is fetched before its workers are
started, and in them a tensor of it is computed with in the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from .._ext import lazy as _core
from ..base.patching import Patch
from ..engine.execute import LocalExecutor, values

__all__ = ["workers"]

_torch_start = _MultiProcessingDataLoaderIter.__init__
_carried: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
_DEEP = 6  # datasets within datasets, lists of tuples of tensors


def workers() -> Patch:
    """(owner, name, replacement) of what starts a DataLoader's workers."""
    return _MultiProcessingDataLoaderIter, "__init__", _start


def _start(self: Any, loader: Any) -> None:
    there = values.executor()
    held = [] if there.place.type != "meta" else list({id(t): t for t in _held(loader.dataset, _DEEP)}.values())
    if held:
        fetched = values.read(held, "DataLoader", whole=True)
        _carried[:] = [(t._handle.slot, _core.value(t._handle), plain) for t, plain in zip(held, fetched, strict=True)]
    try:
        _torch_start(self, loader)
    finally:
        _carried.clear()


def _held(a: Any, depth: int) -> Iterator[Any]:
    """Tensors of ours in a dataset."""
    if _core.get_handle(a) is not None:
        yield a
    elif depth and isinstance(a, (list, tuple)):
        for item in a:
            yield from _held(item, depth - 1)
    elif depth and isinstance(a, dict):
        for item in a.values():
            yield from _held(item, depth - 1)
    elif depth and isinstance(a, (Dataset, IterableDataset)):
        yield from _held(vars(a), depth - 1)


def _in_child() -> None:
    if not _carried:
        return
    local = LocalExecutor("cpu")
    values.begin_again(local)
    for (slot, old, _), value in zip(_carried, local.adopt([plain for _, _, plain in _carried]), strict=True):
        _core.exchange(slot, old, value)


os.register_at_fork(after_in_child=_in_child)
