"""What a program says of CUDA means ``remote_accelerator`` (SPEC C9): ``genie run --map cuda``.

``cuda`` as a name of devices, ``torch.cuda`` and ``torch.accelerator``, ``.cuda()``, ``is_cuda``. What the device does
not have (graphs, allocators) raises an UnsupportedOperationError where it is called.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .._ext import lazy as _core
from ..base.errors import UsageError
from ..base.patching import Patch, replaced
from ..devices.places import RECORDED, take, where
from ..engine.execute import tensors, values
from ..engine.tensor.recorded import RecordedTensor
from ..npu.refused import refusing
from . import creation, generators, hooks, parallel, slot, tensor_types
from .default_device import one_generator
from .device_module import NOT_APPLICABLE, REFUSED
from .instead_of_cuda import generators_made_by, of_cuda

__all__ = ["cuda_is_ours"]

_torch_loader_init = torch.utils.data.DataLoader.__init__
_torch_generator = torch.Generator
_PIN_MEMORY = 7  # its place among a DataLoader's arguments
#: Names in torch.cuda that stay torch's own, or are modules whose functions are answered for.
_TORCHS = NOT_APPLICABLE | {"is_available", "device_count", "is_initialized"}


@contextmanager
def cuda_is_ours() -> Iterator[None]:
    """Within the block, ``cuda`` is another name for ``remote_accelerator``, also on a machine that has CUDA.

    UsageError where recordings run on CUDA in this process: there the name is wanted for what it is.
    """
    hooks.enable()
    if values.executor().device.type == "cuda":
        raise UsageError(
            "--map cuda: the executor runs on CUDA in this process (GENIE_EXECUTOR_DEVICE), so the program's cuda "
            "cannot be told from the executor's: use --executor pipe"
        )
    told = [
        *of_cuda(_said()),
        *_of_any_kind(),
        *_of_tensors(),
        *tensor_types.patches("cuda", named_otherwise=True),
    ]
    told += [*parallel.data_parallel(), *parallel.process_groups()]
    with one_generator(0), replaced(told):
        before = take("cuda", RECORDED)
        try:
            yield
        finally:
            take("cuda", before)


def _said() -> dict[str, Any]:
    """What ``torch.cuda`` says."""
    device = slot.module
    said: dict[str, Any] = {}
    for name in set(torch.cuda.__all__) - _TORCHS:
        if name in REFUSED:
            said[name] = refusing("torch.cuda", name, REFUSED[name])
        elif hasattr(device, name):
            said[name] = getattr(device, name)
    return said | _memory() | {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": _count,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "manual_seed_all": creation.manual_seed_all,
        "get_rng_state": lambda device="cuda": slot.module.get_rng_state(device),
        "set_rng_state": lambda new_state, device="cuda": slot.module.set_rng_state(new_state, device),
    }  # fmt: skip


_most = 0


def _allocated(device: Any = None) -> int:
    """Bytes of the values that live tensors name, once they are computed."""
    global _most
    values.flush("memory_allocated")
    with values.lock:
        storages = {s._cdata: s.nbytes() for _, value in _core.computed() for s in (value.untyped_storage(),)}
    now = sum(storages.values())
    _most = max(_most, now)
    return now


def _most_allocated(device: Any = None) -> int:
    """The most that a question for it has found, now included: nobody counts in between."""
    _allocated()
    return _most


def _reset_peak(device: Any = None) -> None:
    global _most
    _most = 0


def _memory_stats(device: Any = None) -> dict[str, int]:
    now = _allocated()
    figures = {"current": now, "peak": _most}
    return {f"{kind}_bytes.all.{when}": n for kind in ("allocated", "reserved") for when, n in figures.items()}


def _memory() -> dict[str, Any]:
    return {
        **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_cached"), _allocated),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "max_memory_cached"), _most_allocated),
        **dict.fromkeys(
            ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"), _reset_peak
        ),
        "memory_stats": _memory_stats,
        "memory_summary": lambda device=None, abbreviated=False: f"{_allocated()} bytes allocated",
    }


def _of_any_kind() -> Iterator[Patch]:
    """The same of ``torch.accelerator``, which asks the device's module for the rest (`torch_accelerator`)."""
    memory = {name: answer for name, answer in _memory().items() if name in vars(torch.accelerator)}
    for owner in (torch.accelerator, torch.accelerator.memory):
        for name, answer in memory.items():
            yield owner, name, answer
    yield torch.accelerator, "is_available", lambda: True
    yield torch.accelerator, "device_count", _count


def _count() -> int:
    return values.executor().count


def _of_tensors() -> Iterator[Patch]:
    for owner in (torch.Tensor, tensors.LazyTensor, torch.nn.Module):
        yield owner, "cuda", _to_cuda
    is_cuda = property(lambda t: t.device.type == tensors.DEVICE_TYPE, doc="True if the tensor is where cuda means.")
    for owner in (torch.Tensor, RecordedTensor):
        yield owner, "is_cuda", is_cuda
    yield torch, "Generator", generators_made_by(_generator)  # where there is CUDA, torch would make one there
    # Pinned memory is for copies that a CUDA driver makes.
    yield torch.Tensor, "pin_memory", lambda self, device=None: self
    yield torch.Tensor, "record_stream", lambda self, stream: None
    yield torch.utils.data.DataLoader, "__init__", _loader_init


def _generator(device: Any) -> torch.Generator:
    return generators.Generator(device) if where(device) is RECORDED else _torch_generator(device)


def _to_cuda(self: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """``t.cuda()``, and a module's."""
    named = "cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device
    return self.to(named, non_blocking=non_blocking, **kwargs)


@functools.wraps(_torch_loader_init)
def _loader_init(self: Any, *args: Any, **kwargs: Any) -> None:
    if len(args) > _PIN_MEMORY:
        args = (*args[:_PIN_MEMORY], False, *args[_PIN_MEMORY + 1 :])
    else:
        kwargs["pin_memory"] = False
    _torch_loader_init(self, *args, **kwargs)
