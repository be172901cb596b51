"""Device meshes of ``remote_accelerator``, for DTensors and FSDP2 (SPEC L1).

A mesh takes our device as any other, by its name; what torch's usual entries ask of names and models is another thing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ..base.patching import Patch
from ..devices.lazy_device import DEVICE_TYPE
from ..devices.places import RECORDED, where

__all__ = ["of_fsdp", "patches"]

# Those that are loaded: a build of torch may be without.
_owners: list[Any] = [
    sys.modules[name]
    for name in ("torch.distributed.device_mesh", "torch.distributed", "torch.distributed.tensor")
    if hasattr(sys.modules.get(name), "init_device_mesh")
]
_torch_init: Any = _owners[0].init_device_mesh if _owners else None


class _Letters(str):
    """A device's name that torch takes for one without an index, which it tells by its letters."""

    __slots__ = ()

    def isalpha(self) -> bool:
        return True


def patches() -> Iterator[Patch]:
    for owner in _owners:
        yield owner, "init_device_mesh", functools.wraps(_torch_init)(_init)


def _init(device_type: str, *args: Any, **kwargs: Any) -> Any:
    if device_type != DEVICE_TYPE:
        return _torch_init(device_type, *args, **kwargs)
    mesh = _torch_init(_Letters(device_type), *args, **kwargs)
    for name, value in vars(mesh).items():
        if type(value) is _Letters:
            setattr(mesh, name, DEVICE_TYPE)
    return mesh


def of_fsdp(fsdp: Any) -> Iterator[Patch]:
    """Where ``torch.distributed.fsdp`` is loaded: without a mesh, a model is sharded where it is.

    Torch has a mesh of the accelerator then, which there is only where one was asked for.
    """
    torchs = getattr(fsdp, "fully_shard", None)
    if torchs is None:
        return

    @functools.wraps(torchs)
    def fully_shard(module: Any, *, mesh: Any = None, **kwargs: Any) -> Any:
        models = module if isinstance(module, (list, tuple)) else [module]
        if mesh is None and any(where(p.device) is RECORDED for model in models for p in model.parameters()):
            if not torch.distributed.is_initialized():
                torch.distributed.init_process_group()
            mesh = _init(DEVICE_TYPE, (torch.distributed.get_world_size(),))
        return torchs(module, mesh=mesh, **kwargs)

    yield fsdp, "fully_shard", fully_shard
