"""DataParallel in an estimate of several devices: what torch does in C++ and threads, one device after the other."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from ...base.patching import Patch
from ...devices.lazy_device import meant

__all__ = ["patches"]
_data_parallel = importlib.import_module("torch.nn.parallel.data_parallel")
_torch_device = torch.device


def patches() -> list[Patch]:

    def place(index: Any) -> Any:
        return _torch_device(meant(), index) if isinstance(index, int) and index >= 0 else index

    def scatter(tensor: Any, devices: Any = None, chunk_sizes: Any = None, dim: int = 0, *rest: Any) -> Any:
        parts = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
        return tuple(part.to(place(device)) for part, device in zip(parts, devices, strict=False))

    def gather(tensors: Sequence[Any], dim: int = 0, destination: Any = None, **options: Any) -> Any:
        there = place(torch.cuda.current_device() if destination is None else destination)
        return torch.cat([t.to(there) for t in tensors], dim)

    def broadcast(tensors: Sequence[Any], devices: Sequence[Any], buffer_size: int = 0) -> Any:
        return [[t.detach().to(place(device)) for t in tensors] for device in devices]  # where it is, no copy

    def reduce(inputs: Sequence[Sequence[Any]], destination: Any = None, buffer_size: int = 0) -> Any:
        there = place(destination)
        return tuple(sum((t.to(there) for t in rest), first.to(there)) for first, *rest in zip(*inputs, strict=True))

    def apply(modules: Sequence[Any], inputs: Sequence[Any], kwargs_tup: Any = None, devices: Any = None) -> list[Any]:
        found = []
        for i, (module, given) in enumerate(zip(modules, inputs, strict=True)):
            with torch.cuda.device(i if devices is None else devices[i]):
                args = given if isinstance(given, (list, tuple)) else (given,)
                found.append(module(*args, **(kwargs_tup[i] if kwargs_tup else {})))
        return found

    comm = torch.nn.parallel.comm
    return [
        (comm, "scatter", scatter), (comm, "gather", gather), (comm, "broadcast_coalesced", broadcast),
        (comm, "reduce_add_coalesced", reduce), (_data_parallel, "parallel_apply", apply),
        (torch.nn.parallel, "parallel_apply", apply),
    ]  # fmt: skip
