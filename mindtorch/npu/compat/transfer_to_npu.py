"""``from torch_npu.contrib import transfer_to_npu``: a program that says CUDA means NPUs, from here on and for good.

``cuda`` as a name of devices, ``torch.cuda.*`` for what ``torch.npu`` has, ``.cuda()``, ``is_cuda``, ``nccl``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from mindtorch import npu

from ...base.patching import Patch, for_good
from ...devices import lazy_device, mode
from ...devices.places import NPU, take
from ...engine.tensor.recorded import RecordedTensor
from .. import amp, refused

__all__ = ["install"]

_torch_process_group: Any = getattr(torch.distributed, "init_process_group", None)


def install() -> None:
    """Idempotent."""
    if lazy_device.cuda_is_npu:
        return
    lazy_device.cuda_is_npu = True
    for_good(_always())
    if mode.now.estimate is None:  # which answers for torch.cuda; and wherever a tensor is, it has no data
        take("cuda", NPU)
        for_good(_of_cuda())


def _always() -> Iterator[Patch]:
    is_cuda = property(lambda t: t.device.type == "npu")
    for owner in (torch.Tensor, RecordedTensor):
        yield owner, "is_cuda", is_cuda
    if _torch_process_group is not None:
        yield torch.distributed, "init_process_group", _init_process_group
        yield torch.distributed, "is_nccl_available", lambda: False


def _of_cuda() -> Iterator[Patch]:
    cuda: Any = torch.cuda
    for name in {*dir(npu), *refused.REFUSED} & set(cuda.__all__):
        if name not in ("amp", "memory", "random"):
            yield cuda, name, getattr(npu, name)
    for module in (npu.memory, npu.random):
        theirs = getattr(cuda, module.__name__.rpartition(".")[2])
        for name in set(module.__all__) & set(vars(theirs)):
            yield theirs, name, getattr(module, name)
    yield cuda.amp, "autocast", amp.autocast
    yield cuda.amp, "GradScaler", amp.GradScaler
    yield cuda, "CUDAGraph", npu.NPUGraph
    yield cuda, "_lazy_init", npu.init
    owner: Any
    for owner in (torch.Tensor, torch.nn.Module):
        yield owner, "cuda", owner.npu


@functools.wraps(_torch_process_group)
def _init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
    asked = backend.replace("nccl", "hccl").replace("cuda", "npu") if isinstance(backend, str) else backend
    return _torch_process_group(asked, *args, **kwargs)


install()
