"""Operations that the worker cannot run: they run in the program's process, on values fetched for them (SPEC R1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..._ext import lazy as _core
from ...base.storage_memory import memory_of
from ..execute.local import LocalExecutor
from .mirrors import view

if TYPE_CHECKING:
    from ..._ext.encoder import Encoded
    from .client import RemoteExecutor

__all__ = ["bytes_of", "run_here"]


def run_here(executor: RemoteExecutor, segment: Any, encoded: Encoded) -> None:
    """Run a segment that has a call in it which the worker does not have: an operator of the program's own.

    Its slots have plain tensors for as long as it runs. Everything fails as in the local executor.
    """
    mirrors = list({id(mirror): mirror for mirror, _root in encoded.given}.values())
    plain = executor.fetch(mirrors, whole=True)
    here = {id(mirror): value for mirror, value in zip(mirrors, plain, strict=True)}
    back = {id(value): mirror for mirror, value in zip(mirrors, plain, strict=True)}
    homes = {value.untyped_storage()._cdata: mirror for mirror, value in zip(mirrors, plain, strict=True)}
    kept = {value.untyped_storage()._cdata: value for value in plain}
    before = {key: bytes_of(value.untyped_storage()) for key, value in kept.items() if encoded.written}
    for slot, mirror in _core.computed():
        if id(mirror) in here:
            _core.exchange(slot, mirror, here[id(mirror)])
    local = LocalExecutor("cpu")
    local._states = executor._states  # type: ignore[assignment]
    try:
        local.submit(segment)
    finally:
        for key, contents in before.items():
            now = bytes_of(kept[key].untyped_storage())
            if now != contents:
                executor.write(homes[key], now)
        _mirror_again(executor, back, homes)


def _mirror_again(executor: RemoteExecutor, back: dict[int, Any], homes: dict[int, Any]) -> None:
    """Let mirrors stand for the values again, and for those that there are now besides."""
    for slot, value in _core.computed():
        if value.device == executor.place:
            continue
        home = homes.get(value.untyped_storage()._cdata)
        if id(value) in back:
            made = back[id(value)]
        elif home is None:
            (made,) = executor.adopt([value])
        else:
            storage = home.untyped_storage()
            bits = _core.view_bits(value)
            made = view(storage, value.dtype, value.shape, value.stride(), value.storage_offset(), bits)
        _core.exchange(slot, value, made)


def bytes_of(storage: torch.UntypedStorage) -> bytes:
    """What is in a storage of this process."""
    return bytes(memory_of(storage))
