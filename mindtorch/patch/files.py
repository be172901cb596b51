"""``torch.load(..., map_location="remote_accelerator:0")``, or ``"npu:1"``: tensors of a file, put there (SPEC L7)."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.serialization

from .._ext import blocks as _blocks
from ..devices import mode
from ..devices.lazy_device import index_of
from ..devices.places import NPU, RECORDED, where
from ..engine.execute import tensors, values
from ..engine.record import eager
from ..engine.record.predict import quiet
from ..npu import moves as _moves
from ..npu import tensor as _npu

__all__ = ["FRAMEWORKS", "OpenedFile", "make_rebuild", "open_safetensors", "package", "restore_location"]
_MARK = "_mindtorch_target"
FRAMEWORKS = ("pt", "torch", "pytorch")  # what safetensors calls torch


@dataclass
class _Target:
    """Where the tensors on a loaded storage go, and the last one made: those that follow share its storage."""

    index: int
    npu: bool = False
    last: Callable[[], Any] = lambda: None


def _tag(storage: Any) -> str | None:
    """What a file says of where a storage was: recorded tensors are saved as plain ones, but of a program that calls
    their device cuda, which is to find them there again.
    """
    return getattr(storage, tensors.SAVED_FROM, None)


def _restore(storage: Any, location: str) -> Any:
    if where(location) is NPU:
        if getattr(storage, "_torch_load_uninitialized", False):  # of the older format
            storage = _FilledLater(storage.nbytes())
        setattr(storage, _MARK, _Target(_moves.index_of(location), npu=True))
        return storage
    if where(location) is not RECORDED:
        return None
    target = _Target(index_of(location))  # raises for a name like remote_accelerator:x
    device = values.executor().device
    if device.type != "cpu":
        storage = storage.to(device=device)
    setattr(storage, _MARK, target)
    return storage


class _FilledLater(torch.UntypedStorage):
    """What torch reads into after the tensors were made, so that they are on the NPU by then."""

    def _set_from_file(self, *args: Any) -> None:
        super()._set_from_file(*args)  # type: ignore[misc]
        made = getattr(self, _MARK).last()
        if made is not None:
            _blocks.copy_in(_npu.block_of(made), 0, self.data_ptr(), self.nbytes())


# Before torch's own: the first that knows a location has it.
package = (0, _tag, _restore)


_torch_restore_location: Any = getattr(torch.serialization, "_get_restore_location", None)


@functools.wraps(_torch_restore_location or _restore)
def restore_location(map_location: Any) -> Callable[[Any, str], Any]:
    """Stand-in for torch.serialization._get_restore_location: where the program's own function of a storage gives one
    on an NPU, torch goes on with one of its own, whose tensors go there: it takes no other class.
    """
    restore = _torch_restore_location(map_location)

    def restored(storage: Any, location: str) -> Any:
        found = restore(storage, location)
        if not isinstance(found, _npu.NpuStorage):
            return found
        later = getattr(storage, "_torch_load_uninitialized", False)  # of the older format
        return _restore(storage if later else found.cpu(), str(found.device))

    return restored if callable(map_location) else restore


def make_rebuild(original: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Stand-in for torch._utils._rebuild_tensor, through which every dense tensor of a file goes."""

    @functools.wraps(original)
    def rebuild(storage: Any, storage_offset: int, size: Any, stride: Any) -> Any:
        target = getattr(storage._untyped_storage, _MARK, None)
        if target is None:
            holds_data = mode.now.estimate is not None and storage._untyped_storage.device.type != "meta"
            with quiet() if holds_data else nullcontext():  # in an estimate, else, a tensor without data
                return original(storage, storage_offset, size, stride)
        if target.npu:
            return _on_npu(target, original(storage, storage_offset, size, stride))
        tensors.in_use()
        tensors.on_device()
        lazy = eager.held(original(storage, storage_offset, size, stride), target.index, True, target.last())
        target.last = weakref.ref(lazy)
        return lazy

    return rebuild


def _on_npu(target: _Target, plain: torch.Tensor) -> Any:
    """``plain`` on the NPU, in one storage there with the others of its storage here."""
    root = target.last()
    if root is None:
        whole = torch.empty(0, dtype=torch.uint8, device="cpu")
        whole.set_(plain.untyped_storage())  # type: ignore[call-overload]
        root = _moves.upload(whole, target.index)
    made = _npu.view_of(root, plain.shape, plain.stride(), plain.storage_offset(), plain.dtype)
    target.last = weakref.ref(made)
    return made


# ---- safetensors -----------------------------------------------------------------------------------------------------
def open_safetensors(safe_open: Any, filename: Any, framework: Any, device: Any = "cpu", **options: Any) -> Any:
    """``safe_open`` of a device that safetensors does not know; None: it is not one of ours."""
    if framework not in FRAMEWORKS or where(device) is not RECORDED:
        return None
    return OpenedFile(safe_open(filename, framework, device="cpu", **options), device)


class OpenedFile:
    """A safetensors file opened on the CPU, where it is mapped and not read, that gives tensors on another device."""

    def __init__(self, opened: Any, device: Any) -> None:
        self._opened, self._device = opened, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def __enter__(self) -> OpenedFile:
        self._opened.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    def get_tensor(self, name: str) -> Any:
        return self._opened.get_tensor(name).to(self._device)

    def get_tensors(self) -> dict[str, Any]:
        return {name: self.get_tensor(name) for name in self._opened.keys()}  # noqa: SIM118 - no mapping

    def get_slice(self, name: str) -> Any:
        return _Slice(self._opened.get_slice(name), self._device)


class _Slice:
    def __init__(self, part: Any, device: Any) -> None:
        self._part, self._device = part, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __getitem__(self, at: Any) -> Any:
        return self._part[at].to(self._device)
