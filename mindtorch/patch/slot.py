"""Torch's one slot for a foreign device: claimed when a program first names ours, never before (SPEC L1).

Whoever claims it becomes ``torch.accelerator.current_accelerator()``, for good, and torch picks streams, process groups
and meshes by that. So a program that does not use our devices must find it as torch made it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import torch

from .. import npu
from .._ext import hooks as _hooks
from ..base import config, import_hooks
from ..base.errors import UnsupportedOperationError
from ..base.patching import for_good, replaced
from ..devices import lazy_device, mode
from ..devices.lazy_device import cuda_present
from ..devices.places import NPU, RECORDED, where
from ..engine.execute import tensors, values
from ..engine.tensor import classes
from ..npu import subclasses
from ..npu.tensor import is_npu
from . import dispatch_modes, files, flex_attention, generators, held, meshes, torch_accelerator
from .device_module import DeviceModule

__all__ = ["claim", "claim_npu", "claimed", "module", "watch"]

log = logging.getLogger("mindtorch")
module = DeviceModule(f"torch.{tensors.DEVICE_TYPE}")
_claimed = False
_refused = False
_claiming = False


def watch() -> None:
    """From now on the slot is claimed when the program makes a ``torch.device`` of ours, or a generator there, …"""
    asked = _hooks.ConstructorHook(_asked)
    held.put((torch._C, name, asked) for name in ("device", "Generator", "Stream", "Event", "TensorBase"))
    held.put_when_loaded("safetensors", lambda safetensors: [(safetensors, "safe_open", asked)])
    held.put_when_loaded("torch.nn.attention.flex_attention", flex_attention.patches)
    held.put_when_loaded("torch.distributed.fsdp", meshes.of_fsdp)
    held.after(import_hooks.forget)
    tensors.set_claim(claim)
    if _claimed:
        dispatch_modes.register()
    held.after(dispatch_modes.unregister)  # a slot that was claimed stays claimed, without kernels


def _asked(cls: type, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Torch did not understand these arguments: was it because it does not know our device, or tensors, yet?"""
    if issubclass(cls, torch.Tensor):  # type: ignore[arg-type]
        if len(args) == 1 and not kwargs and is_npu(args[0]):
            return subclasses.as_subclass(args[0], cls)
        return classes.of_tensor(cls, args, kwargs)
    if cls is torch.Generator:
        device = args[0] if args else kwargs.get("device")
        if where(device) is NPU:
            return generators.NpuGenerator(device)
        return generators.Generator(device) if where(device) is RECORDED else None
    if cls.__name__ == "safe_open":
        return files.open_safetensors(cls, *args, **kwargs)
    if cls is torch.device and mode.now.cudas is not None and len(args) == 1 and type(args[0]) is int and not kwargs:
        return lazy_device.accelerator_at(args[0])  # of the target, of which C++ knows nothing
    given = [value.partition(":")[0] for value in (*args[:1], *kwargs.values()) if isinstance(value, str)]
    if "npu" in given and mode.now.estimate is not None and not lazy_device.torch_knows_npu:
        return True if claim_npu() else None  # whatever is named is a place
    return True if tensors.DEVICE_TYPE in given and claim() else None  # another thread may have claimed it meanwhile


def claimed() -> bool:
    """True once torch knows the device by name."""
    return _claimed


def claim() -> bool:
    """A device of ours is about to be used: let torch know its name where that does no harm. True if it does now.

    Other threads that use one wait until it does.
    """
    global _claimed, _refused, _claiming
    if _claimed or _refused:
        return _claimed
    with values.lock:
        if _claimed or _refused or _claiming:  # torch asks for the device while it is told of it
            return _claimed or _claiming
        mode = config.register_device()
        owner = torch._C._get_privateuse1_backend_name()
        if owner != "privateuseone":
            log.debug(
                "torch's foreign-device slot belongs to %r: strings and mindtorch.device still name mindtorch's device",
                owner,
            )
        elif mode == "auto" and cuda_present():
            log.debug("CUDA present: the name is not registered (GENIE_REGISTER_DEVICE=always to do it)")
        elif mode != "never":
            _claiming = True
            try:
                _claim()
                _claimed = True
            finally:
                _claiming = False
        _refused = not _claimed
    return _claimed


def _claim() -> None:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    held.keep(torch, tensors.DEVICE_TYPE)
    # Torch's own refuses a name that is there. It is not taken away for that: another thread may be using it.
    with replaced([(torch, "_register_device_module", _registered)]):
        _setup_privateuseone_for_python_backend(tensors.DEVICE_TYPE, module)
    dispatch_modes.register()
    for_good([(torch.UntypedStorage, "__new__", _new_storage), *torch_accelerator.patches(module)])


def _registered(device_type: str, module: Any) -> None:
    sys.modules[f"torch.{device_type}"] = module


def claim_npu() -> bool:
    """Let torch know ``npu`` by name, for good, as torch_npu does: ``torch.device("npu:0")``. True if it does now.

    Only where somebody asks for it: `remote_accelerator` then has no name in torch.
    """
    if torch._C._get_privateuse1_backend_name() == "privateuseone":
        from torch.utils import backend_registration

        torch.utils.rename_privateuse1_backend("npu")
        # What C++ has to be told. Tensors of ours are on the CPU to it, so nothing asks these for streams or memory.
        torch._C._acc.register_python_privateuseone_hook(backend_registration._DummyPrivateUse1Hook())
        torch._C._acc.register_python_privateuseone_device_guard(backend_registration._DummyDeviceGuard())
        sys.modules["torch.npu"] = npu  # where C++ looks for a device's functions
        for_good([(torch.UntypedStorage, "__new__", _new_storage), *torch_accelerator.of_npus()])
        lazy_device.torch_knows_npu = True
    return lazy_device.torch_knows_npu


def _new_storage(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Torch would call the allocator that the slot does not have, and crash: also in ``storage.to(device)``."""
    place = where(kwargs.get("device"))
    if place is NPU and (not args or isinstance(args[0], int)):
        return torch.empty(args[0] if args else 0, dtype=torch.uint8, device=kwargs["device"]).untyped_storage()
    if place in (RECORDED, NPU):
        raise UnsupportedOperationError(
            f"[{cls.__name__}] expected a device that gives out memory, got {kwargs['device']}: it holds tensors, for "
            "example torch.empty(n, dtype=torch.uint8, device=...)"
        )
    return torch._C.StorageBase.__new__(cls, *args, **kwargs)
