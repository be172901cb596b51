"""What stands in for functions of torch that are told a device, or ask for one, by its name (SPEC L1)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.dlpack

from .. import npu
from .._ext import lazy as _core
from .._ext.guards import Unseen
from ..base import torch_facts
from ..base.patching import Patch
from ..devices import lazy_device
from ..devices.places import ESTIMATED, NPU, RECORDED, where
from ..engine.execute import tensors, values
from ..engine.record.predict import quiet
from ..engine.tensor import classes
from ..npu import moves as npu_moves
from ..npu import random as npu_random
from ..npu import subclasses
from ..npu.tensor import is_npu
from . import creation, meshes, slot
from .module_moves import is_opaque

_torch_to_dlpack, _torch_from_dlpack = torch.utils.dlpack.to_dlpack, torch._C._from_dlpack
_torch_manual_seed = torch.random.manual_seed
_torch_get_device_module = torch.get_device_module
_torch_has_function = torch.overrides.has_torch_function
_CrossEntropyOptions = torch_facts.cross_entropy_options()
_torch_adjust: Any = getattr(_CrossEntropyOptions, "_adjust", None)
_optimizers = sys.modules[torch.optim.Optimizer.__module__]  # torch.optim forgets its name
_torch_group = torch.nn.utils.clip_grad._group_tensors_by_device_and_dtype
_torch_autocast_init = torch.amp.autocast_mode.autocast.__init__


def patches() -> Iterator[Patch]:
    """(owner, attribute, what stands in for it)."""
    for owner in (torch, torch.utils.dlpack):
        yield owner, "to_dlpack", _to_dlpack
    yield torch._C, "_from_dlpack", _from_dlpack
    for owner in (torch, torch.random):
        yield owner, "manual_seed", _manual_seed
    yield torch, "get_device_module", _get_device_module
    yield torch.amp.autocast_mode.autocast, "__init__", _autocast_init
    yield torch.nn.utils.clip_grad, "_group_tensors_by_device_and_dtype", _group_tensors
    yield _optimizers, "_group_tensors_by_device_and_dtype", _group_for_optimizers
    yield torch.overrides, "has_torch_function", _has_torch_function
    yield from meshes.patches()
    if torch_facts.assumes_cuda():
        from . import assumed_cuda

        yield from assumed_cuda.patches()
    if _torch_adjust is not None:
        yield _CrossEntropyOptions, "_adjust", functools.wraps(_torch_adjust)(_adjust_cross_entropy)


@functools.wraps(_torch_from_dlpack)
def _from_dlpack(capsule: Any) -> Any:
    from ..npu.dlpack import importing  # few programs exchange tensors

    return importing(_torch_from_dlpack, capsule)


@functools.wraps(_torch_to_dlpack)
def _to_dlpack(self: torch.Tensor) -> Any:
    if is_npu(self):
        return self.detach().__dlpack__()
    if _core.get_handle(self) is None:
        return _torch_to_dlpack(self)
    with Unseen():
        plain = tensors._copy_out(self.detach(), "dlpack")
    return _torch_to_dlpack(plain)


@functools.wraps(_torch_manual_seed)
def _manual_seed(seed: Any) -> torch.Generator:
    with quiet():  # torch's own generator
        generator = _torch_manual_seed(seed)
        chosen = generator.initial_seed()
    creation.manual_seed_all(chosen)
    npu_random.manual_seed_all(chosen)
    return generator


@functools.wraps(_torch_get_device_module)
def _get_device_module(device: Any = None) -> Any:
    if where(device) is NPU:
        return npu
    # Without an argument: of the accelerator. Torch would name whoever owns the slot, available or not.
    nobody = device is None and slot.claimed() and not torch.accelerator.is_available()
    return _torch_get_device_module("cpu" if nobody else device)


def make_subclass(cls: type, data: torch.Tensor, *args: Any, **options: Any) -> Any:
    """``torch.Tensor._make_subclass(cls, data)`` where class or data are ours."""
    make = subclasses.make_subclass if is_npu(data) else classes.make_subclass
    return make(cls, data, *args, **options)


def pin_memory(original: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``t.pin_memory()``: in the NPU's library's memory where an NPU is the accelerator."""
    if not is_opaque(self) and _names_npu(args, kwargs, npu_moves.pins):
        return npu_moves.pin_memory(self)
    if slot.claimed() and torch.accelerator.is_available() and not (args or kwargs or npu.is_the_accelerator()):
        return self  # pinned memory is for copies that a driver makes: the executor that was asked for has none
    return original(self, *args, **kwargs)


def is_pinned(original: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> bool:
    """``t.is_pinned()``: the NPU's library knows of its own memory alone."""
    if is_opaque(self) or not _names_npu(args, kwargs, npu.is_the_accelerator):
        return original(self, *args, **kwargs)
    if not (args or kwargs or lazy_device.torch_knows_npu) and original(self):  # modes of the program see the question
        return True
    with Unseen():
        return npu_moves.is_pinned(self)


def _names_npu(args: tuple, kwargs: dict[str, Any], unnamed: Callable[[], bool]) -> bool:
    """Whether the device for which memory is to be pinned is an NPU; ``unnamed()`` where no device is named."""
    device = args[0] if args else kwargs.get("device")
    place = where(device)
    return place is not ESTIMATED and (unnamed() if device is None else place is NPU)


# ``torch.is_autocast_enabled("npu")`` and its like: autocast of our tensors is the CPU's.
AUTOCAST = (
    "is_autocast_enabled",
    "get_autocast_dtype",
    "set_autocast_enabled",
    "set_autocast_dtype",
    "_is_autocast_available",
)


@functools.wraps(_torch_autocast_init)
def _autocast_init(
    self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
) -> None:
    # To C++ a lazy tensor is on the CPU, so its autocast is the CPU's, with the CPU's lists of ops.
    place = where(device_type)
    as_cuda = place.records and isinstance(device_type, str) and device_type.startswith("cuda")
    if dtype is None and (as_cuda or place is NPU):
        dtype = torch.float16  # which is NPUs' own, as torch_npu has it, and CUDA's
    wide = as_cuda and dtype not in (torch.float16, torch.bfloat16)  # CUDA's takes it, without a word
    _torch_autocast_init(self, "cpu" if place.ours else device_type, dtype, enabled and not wide, cache_enabled)
    self._enabled |= wide and enabled


@functools.wraps(_torch_group)
def _group_tensors(lists: Any, with_indices: bool = False) -> dict[Any, Any]:
    # Clipping moves a coefficient to the device of each group, which C++ takes to be the CPU.
    found = {}
    for (device, dtype), (held, indices) in _torch_group(lists, with_indices).items():
        where = [t.device if _core.get_handle(t) is not None else device for t in held[0]]
        for each in dict.fromkeys(where):
            at = [i for i, other in enumerate(where) if other == each]
            found[each, dtype] = (
                [[some[i] for i in at] if some else some for some in held],
                [indices[i] for i in at if indices],
            )
    return found


@functools.wraps(_torch_group)
def _group_for_optimizers(lists: Any, with_indices: bool = False) -> dict[Any, Any]:
    # They ask by the device which kernels to take. Those are the CPU's.
    places = {
        _core.device_index(t) for some in lists for t in some if t is not None and _core.get_handle(t) is not None
    }
    return (_torch_group if len(places) < 2 else _group_tensors)(lists, with_indices)


def _adjust_cross_entropy(self: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    # F.linear_cross_entropy looks its precision up by the device's name: by that of where it will run.
    there = values.executor().device if where(device) is RECORDED else device
    return _torch_adjust(self, *args, device=there, **kwargs)


@functools.wraps(_torch_has_function)
def _has_torch_function(relevant_args: Any) -> bool:
    # nn.TransformerEncoderLayer and nn.MultiheadAttention ask this before they take the fused path that eager takes:
    # our classes have a __torch_function__, which plain tensors in their place would not have.
    if not _torch_has_function(relevant_args):
        return False
    if torch._C._len_torch_function_stack() or not isinstance(relevant_args, (tuple, list)):
        return True
    return any(_torch_has_function((a,)) and not _is_ordinary(a) for a in relevant_args)


def _is_ordinary(a: Any) -> bool:
    """Would the program have a plain tensor here, without us?"""
    return isinstance(a, torch.Tensor) and _core.get_handle(a) is not None and not getattr(type(a), "_routed", False)
