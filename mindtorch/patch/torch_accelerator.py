"""``torch.accelerator`` once a device of ours is in use: the whole of it answers (SPEC L1).

Torch's own answers come from C++ that the device does not have: an allocator, streams. Ours: calls run in the order in
which they were made, on one stream; values are in memory that other parts of the process share, so no allocator of the
device's own counts them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import npu
from .._ext import streams
from ..base.patching import Patch
from ..devices.lazy_device import npu_device
from ..npu.library import device_index

__all__ = ["of_npus", "patches"]

_INTEGERS = tuple(getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64))
_DTYPES = (
    torch.bool,
    *_INTEGERS,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)


def patches(module: Any) -> Iterator[Patch]:
    """What ``module`` (``torch.remote_accelerator``) answers where torch would ask C++."""

    def get_device_index() -> int:
        return module.current_device()

    def set_device_index(index: int) -> None:
        exchange(index)

    def exchange(index: int) -> int:
        previous = module.current_device()
        if index >= 0:
            module.set_device(index)
        return previous

    def capability(index: int) -> dict[str, Any]:
        return {"supported_dtypes": set(_DTYPES)}

    def nothing(*_: Any) -> None:
        """There is one stream, and no cache."""

    yield from _answers(
        getDeviceIndex=get_device_index,
        setDeviceIndex=set_device_index,
        exchangeDevice=exchange,
        maybeExchangeDevice=exchange,
        getDeviceCapability=capability,
        getMemoryInfo=module.mem_get_info,
        synchronizeDevice=module.synchronize,
        setStream=nothing,
        isAllocatorInitialized=lambda: False,
        emptyCache=nothing,
        emptyHostCache=nothing,
        getDeviceStats=lambda index: {},
        resetAccumulatedStats=nothing,
        resetPeakStats=nothing,
    )
    # Whom process groups and meshes are for without being told: to C++ our tensors are on the CPU.
    yield torch._C, "_get_accelerator", lambda check=None: torch.device("cpu")
    if torch.distributed.is_available():  # as of torch 2.15, its process groups ask torch.accelerator
        groups = torch.distributed.distributed_c10d.BackendConfig
        yield groups, "__init__", _of_cpu(groups.__init__)


def _of_cpu(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def __init__(self: Any, backend: Any) -> None:
        init(self, "cpu:gloo" if backend == torch.distributed.Backend.UNDEFINED else backend)

    return __init__


def of_npus() -> Iterator[Patch]:
    """What `mindtorch.npu` answers, once torch's slot has its name."""
    streams.configure(device_index, npu_device)  # of streams and events
    return _answers(
        getDeviceIndex=npu.current_device,
        setDeviceIndex=npu.set_device,
        exchangeDevice=streams.exchange_device,
        maybeExchangeDevice=streams.exchange_device,
        getDeviceCapability=lambda index: {"supported_dtypes": set(_DTYPES)},
        getMemoryInfo=npu.mem_get_info,
        synchronizeDevice=npu.synchronize,
        getStream=npu.current_stream,
        setStream=npu.set_stream,
        isAllocatorInitialized=npu.is_initialized,
        emptyCache=npu.empty_cache,
        getDeviceStats=npu.memory_stats,
        resetPeakStats=npu.reset_peak_memory_stats,
    )


def _answers(**answers: Any) -> Iterator[Patch]:
    return ((torch._C, f"_accelerator_{name}", answer) for name, answer in answers.items())
