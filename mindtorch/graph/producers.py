"""Producers: which node makes the value that a tensor holds now.

A plain tensor is identified by its storage and its place in it (offset, sizes, strides, dtype), not by its Python
object: autograd hands out new objects for saved tensors, and views share what is written through one of them. Weak
references keep the address of a dead storage from being used again while it is in the table.

A tensor whose class handles ops in Python (a lazy tensor) may have no storage of its own to ask for: it is known by
its object, held weakly, and shares with others what the recorded ops say.
"""

from __future__ import annotations

import weakref
from array import array
from typing import Any

import torch
from torch._C import _functorch
from torch.multiprocessing.reductions import StorageWeakRef

from .._ext import lazy as _core
from ..base.errors import LazyTensorError
from .parts import Reading

Source = tuple[int, int]  # node id, output index
_DEFAULT = torch.Tensor.__torch_dispatch__
_storage_of = torch._C.TensorBase.untyped_storage
_SWEEP = 4096


def packed(node: int, output: int) -> int:
    """A source as one number above 0."""
    return (node + 1) << 32 | output


def unpacked(code: int) -> Source | None:
    """The source behind `packed`, None for 0."""
    return ((code >> 32) - 1, code & 0xFFFFFFFF) if code else None


class StorageState:
    """What is known about one storage: who made each view of it, and who wrote to it last."""

    __slots__ = ("ref", "views", "writer")

    def __init__(self, ref: StorageWeakRef | None) -> None:
        self.ref = ref
        self.views: dict[Any, Source] = {}
        self.writer: Source | None = None


class Producers:
    """From tensors to the nodes that make their values."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageState] = {}
        self._objects: dict[int, tuple[weakref.ref[torch.Tensor], StorageState]] = {}
        self._sweep_at = _SWEEP
        self._slots = array("q")
        self._slots_until = 0

    def find(self, tensor: torch.Tensor) -> Source | None:
        """The maker of the tensor's value, None if no node makes it.

        After a write, the writer, for every view of what it wrote to: it read what was there before, so the whole
        history hangs on it.
        """
        memory = self._memory(tensor)
        if memory is None:
            return self._on_tape(tensor)
        return memory.views.get(_geometry(tensor)) or memory.writer

    def made(self, tensor: torch.Tensor, node: int, output: int, like: torch.Tensor | None = None) -> None:
        """``tensor`` is output ``output`` of ``node``; a view of ``like``, if given."""
        memory = self._memory(tensor)
        if memory is None:
            memory = self._add(tensor, self._memory(like) if like is not None else None)
        memory.views[_geometry(tensor)] = (node, output)

    def alias(self, tensor: torch.Tensor, like: torch.Tensor) -> None:
        """``tensor`` is ``like`` under another name (only where the storage cannot tell)."""
        if self._memory(tensor) is None:
            self._add(tensor, self._memory(like))

    def wrote(self, tensor: torch.Tensor, node: int, output: int) -> None:
        """``node`` wrote to ``tensor``, and so to everything that shares its storage."""
        memory = self._memory(tensor) or self._add(tensor, None)
        memory.views.clear()
        memory.writer = memory.views[_geometry(tensor)] = (node, output)

    def reading(self, tensor: torch.Tensor) -> Reading | None:
        """How the tensor lies in the storage of what `find` gives; None: as that itself, or nobody knows."""
        memory = self._memory(tensor)
        if memory is None or memory.writer is None or memory.ref is None or _geometry(tensor) in memory.views:
            return None
        return Reading(tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def read_from(self, tensor: torch.Tensor) -> Source | None:
        """The maker of the lazy tensor whose computed value ``tensor`` is: what ``item()`` reads. O(live tensors)."""
        for ref, memory in self._objects.values():
            lazy = ref()
            handle = getattr(lazy, "_handle", None)
            if lazy is None or handle is None or handle.pending:
                continue
            try:
                found = _core.value(handle) is tensor
            except LazyTensorError:  # its op failed: it has no value
                continue
            if found:
                return memory.views.get(_geometry(lazy)) or memory.writer
        return None

    def know_slots(self, slots: array[int], until: int) -> None:
        """Makers of lazy values by tape slot, `packed`, 0 for none.

        Good for handles numbered up to ``until``: a slot may be used again for a value made later.
        """
        self._slots, self._slots_until = slots, until

    def _on_tape(self, tensor: torch.Tensor) -> Source | None:
        handle = getattr(tensor, "_handle", None) if self._slots else None
        if handle is None or handle.id > self._slots_until or handle.slot >= len(self._slots):
            return None
        return unpacked(self._slots[handle.slot])

    def _memory(self, tensor: torch.Tensor) -> StorageState | None:
        if _has_storage(tensor):
            return self._storages.get(_storage_of(tensor)._cdata)
        entry = self._objects.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def _add(self, tensor: torch.Tensor, shared: StorageState | None) -> StorageState:
        if len(self._storages) + len(self._objects) > self._sweep_at:
            self._sweep()
        if _has_storage(tensor):
            memory = StorageState(StorageWeakRef(_storage_of(tensor)))
            self._storages[memory.ref.cdata] = memory  # type: ignore[union-attr]
            return memory
        memory = shared or StorageState(None)
        self._objects[id(tensor)] = (weakref.ref(tensor), memory)
        return memory

    def _sweep(self) -> None:
        self._storages = {k: m for k, m in self._storages.items() if not m.ref.expired()}  # type: ignore[union-attr]
        self._objects = {k: entry for k, entry in self._objects.items() if entry[0]() is not None}
        self._sweep_at = _SWEEP + 2 * (len(self._storages) + len(self._objects))


def _has_storage(tensor: torch.Tensor) -> bool:
    dispatch = type(tensor).__torch_dispatch__
    return (
        (dispatch is _DEFAULT or dispatch is torch._C._disabled_torch_dispatch_impl)
        and tensor.layout is torch.strided
        and not _functorch.is_functorch_wrapped_tensor(tensor)  # vmap's, grad's: what is inside has one
    )


def _geometry(tensor: torch.Tensor) -> Any:
    if tensor.layout is not torch.strided:
        return None
    return (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())
