"""``nn.DataParallel``, its parts and process groups where ``cuda`` means ``remote_accelerator`` (SPEC C9).

Torch's own parts copy with CUDA's C++ functions and streams. Copies of recorded tensors are calls like any other, which
autograd sees; the replicas' calls are recorded one replica after the other, and run where their devices are. Groups
that a program wants of NCCL are gloo's: there is no GPU that NCCL could work on.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.cuda.comm

from ..base.patching import Patch
from ..devices.lazy_device import DEVICE_TYPE
from ..engine.execute.tensors import torch_device

__all__ = ["as_without_devices", "data_parallel", "process_groups"]


def process_groups() -> Iterator[Patch]:
    """(owner, name, what stands there for the length of ``--map cuda``)."""
    if torch.distributed.is_available():
        for owner in (torch.distributed, torch.distributed.distributed_c10d):
            for name, backend in (("init_process_group", 0), ("new_group", 2)):
                yield owner, name, _by_gloo(getattr(owner, name), backend)


def _by_gloo(make: Callable[..., Any], at: int) -> Callable[..., Any]:
    """`make`, whose argument `at`, or `backend`, is gloo where it has NCCL in it."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        if len(args) > at and "nccl" in str(args[at]).lower():
            args = (*args[:at], "gloo", *args[at + 1 :])
        if "nccl" in str(kwargs.get("backend")).lower():
            kwargs["backend"] = "gloo"
        return make(*args, **kwargs)

    return made


def data_parallel() -> Iterator[Patch]:
    """(owner, name, what stands there for the length of ``--map cuda``)."""
    # By their names: torch.nn.parallel has functions of the same names.
    whole, copies, parts, comm = (
        importlib.import_module(f"torch.nn.parallel.{name}")
        for name in ("data_parallel", "replicate", "scatter_gather", "comm")
    )
    yield whole, "_get_available_device_type", lambda: DEVICE_TYPE
    yield whole, "parallel_apply", _apply
    yield torch.nn.parallel, "parallel_apply", _apply
    yield copies, "_broadcast_coalesced_reshape", _copies
    yield parts, "Scatter", types.SimpleNamespace(apply=lambda devices, sizes, dim, x: _scatter(x, devices, sizes, dim))
    yield parts, "Gather", types.SimpleNamespace(apply=lambda device, dim, *each: _gather(each, dim, device))
    for owner in (comm, torch.cuda.comm):
        yield owner, "broadcast", _broadcast
        yield owner, "broadcast_coalesced", lambda tensors, devices, buffer_size=0: _copies(tensors, devices, True)
        yield owner, "reduce_add", _reduce_add
        yield owner, "reduce_add_coalesced", _reduce_add_coalesced
        yield owner, "scatter", _scatter
        yield owner, "gather", _gather


def as_without_devices() -> Iterator[Patch]:
    """(owner, name, what stands there) for programs that do not ask for CUDA.

    Without a device, ``DataParallel`` just calls its module. With one, torch refuses a module that the program has put
    on the CPU.
    """
    torch_forward = torch.nn.DataParallel.forward

    @functools.wraps(torch_forward)
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        held = itertools.chain(self.module.parameters(), self.module.buffers())
        if self.device_ids and all(t.device.type == "cpu" for t in held):
            return self.module(*inputs, **kwargs)
        return torch_forward(self, *inputs, **kwargs)

    yield torch.nn.DataParallel, "forward", forward


def _to(t: torch.Tensor, device: Any) -> torch.Tensor:
    if isinstance(device, int) and device >= 0:
        return t.to(torch_device(device))
    return t.to("cpu" if device == -1 else device)


def _out(made: Sequence[torch.Tensor], out: Any) -> Any:
    for given, value in zip(out, made, strict=True):
        given.copy_(value)
    return out


def _broadcast(tensor: torch.Tensor, devices: Any = None, *, out: Any = None) -> Any:
    return tuple(_to(tensor, d) for d in devices) if out is None else tuple(_out([tensor] * len(out), out))


def _copies(tensors: Sequence[torch.Tensor], devices: Sequence[Any], detach: bool = False) -> list[list[torch.Tensor]]:
    """The tensors on each of the devices; not as parameters, which a replica does not have."""
    return [[_to(t.detach() if detach else t.view_as(t), d) for t in tensors] for d in devices] if tensors else []


def _reduce_add(inputs: Sequence[torch.Tensor], destination: Any = None) -> torch.Tensor:
    at = inputs[0].device if destination is None else destination
    total = _to(inputs[0], at)
    for each in inputs[1:]:
        total = total + _to(each, at)
    return total


def _reduce_add_coalesced(inputs: Any, destination: Any = None, buffer_size: int = 0) -> tuple[torch.Tensor, ...]:
    return tuple(_reduce_add(each, destination) for each in zip(*inputs, strict=True))


def _scatter(
    tensor: torch.Tensor,
    devices: Any = None,
    chunk_sizes: Any = None,
    dim: int = 0,
    streams: Any = None,
    *,
    out: Any = None,
) -> Any:
    if out is not None:
        return tuple(_out(tensor.split([o.size(dim) for o in out], dim), out))
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
    return tuple(_to(chunk, d) for chunk, d in zip(chunks, devices, strict=False))


def _gather(tensors: Sequence[torch.Tensor], dim: int = 0, destination: Any = None, *, out: Any = None) -> Any:
    if all(t.dim() == 0 for t in tensors) and dim == 0:
        warnings.warn(
            "Was asked to gather along dimension 0, but all input tensors were scalars; will instead unsqueeze and "
            "return a vector.",
            stacklevel=4,
        )
        tensors = [t.view(1) for t in tensors]
    at = tensors[0].device if destination is None else destination
    made = torch.cat([_to(t, at) for t in tensors], dim)
    return made if out is None else _out([made], [out])[0]


def _apply(modules: Any, inputs: Any, kwargs_tup: Any = None, devices: Any = None) -> list[Any]:
    kwargs_tup = kwargs_tup or [{}] * len(modules)
    each = zip(modules, inputs, kwargs_tup, strict=True)
    return [m(*(args if isinstance(args, (list, tuple)) else (args,)), **kwargs) for m, args, kwargs in each]
