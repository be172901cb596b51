"""``mindtorch.npu``: devices, streams and events of NPUs, with torch.cuda's names and meanings (SPEC N3).

A device is an index, ``"npu:1"``, a device, or None for the calling thread's current one, which is 0 until it is set.
The index of a device that is not there is a RuntimeError that says how many there are; another type a ValueError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mindtorch._ext import acl, pool, streams
from mindtorch._ext.blocks import mem_get_info
from mindtorch._ext.pool import is_initialized
from mindtorch._ext.streams import (
    Event,
    Stream,
    current_device,
    current_stream,
    default_stream,
    get_runtime,
    synchronize,
)

from ..base import config
from . import chips
from .library import device_index, why_unavailable
from .random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)

__all__ = [
    "DeviceProperties", "Event", "Stream", "StreamContext", "can_device_access_peer", "current_device",
    "current_stream", "default_stream", "device", "device_count", "device_of", "get_device_capability",
    "get_device_name", "get_device_properties", "get_rng_state", "get_rng_state_all", "get_runtime", "init",
    "initial_seed", "is_available", "is_bf16_supported", "is_initialized", "manual_seed", "manual_seed_all", "seed",
    "seed_all", "set_device", "set_rng_state", "set_rng_state_all", "set_stream", "stream", "synchronize",
]  # fmt: skip


def is_available() -> bool:
    """Whether there is an NPU that can be used. Never raises; `why_unavailable` says why not."""
    return why_unavailable() is None


def device_count() -> int:
    """How many NPUs there are for this process; 0 where none can be used. The library decides which are visible."""
    return pool.device_count() if why_unavailable() is None else 0


def init() -> None:
    """Load and initialize the library and the current device, which the first use does otherwise."""
    get_runtime(current_device())


def set_device(device: Any) -> None:
    """Make ``device`` the calling thread's current one. A negative index is ignored, as in torch."""
    index = device_index(device)
    if index >= 0:
        streams.exchange_device(pool.check_index(index))


class device:
    """Context manager: ``device`` is the calling thread's current one inside. None or a negative index: no change."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> device:
        if self.idx >= 0:
            pool.check_index(self.idx)
        self.prev_idx = streams.exchange_device(self.idx)
        return self

    def __exit__(self, *exception: object) -> None:
        streams.exchange_device(self.prev_idx)


class device_of(device):
    """Context manager: the device of a tensor or storage is the current one; no change for one that is on no NPU."""

    def __init__(self, obj: Any) -> None:
        where = getattr(obj, "device", None)
        super().__init__(where if getattr(where, "type", None) == "npu" else None)


class StreamContext:
    """Context manager: ``stream``, and its device, are the thread's current ones inside. None: no change."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *exception: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*exception)


def stream(stream: Stream | None) -> StreamContext:
    """``with mindtorch.npu.stream(s):`` what is put on a device inside goes to ``s``. None: no change."""
    return StreamContext(stream)


def set_stream(stream: Stream | None) -> None:
    """Make ``stream``, and its device, the calling thread's current ones. None is ignored."""
    if stream is not None:
        streams.set_stream(stream)


@dataclass(frozen=True)
class DeviceProperties:
    """What the library tells about a device; sizes in bytes, None where it does not tell."""

    name: str
    total_memory: int
    cube_core_num: int | None
    vector_core_num: int | None
    L2_cache_size: int | None

    # What CUDA's have and NPUs do not: None, as of torch_npu.
    major = minor = warp_size = gcnArchName = is_integrated = is_multi_gpu_board = None
    max_threads_per_multi_processor = regs_per_multiprocessor = None
    uuid = None  # only runtimes from 9.0 on have it (aclrtDeviceGetUuid), which are not asked


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Name, memory and cores of ``device``."""
    index = device_index(device)
    _, total = mem_get_info(index)  # initializes the device: the library tells nothing before
    cores, vectors, cache = (acl.capability(index, what) for what in range(3))
    return DeviceProperties(acl.soc_name() or "Ascend NPU", total, cores, vectors, cache)


def get_device_name(device: Any = None) -> str:
    """The name of the chip."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int] | None:
    """None, as Ascend chips have no compute capability, or what ``TORCH_NPU_DEVICE_CAPABILITY`` says, as in torch_npu.

    device may be the name of the chip, too.
    """
    if device != (acl.soc_name() or ""):
        pool.check_index(device_index(device))
    return config.npu_capability()


def is_bf16_supported() -> bool:
    """Whether the chip computes in bfloat16: all but the first 910 generation, 310 and 310P do."""
    return chips.computes_bfloat16(get_device_name())


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """False: copies between devices go through the host's memory, so no access is needed or asked for.

    AssertionError, as of torch.cuda, for a device that is not there.
    """
    for each, what in ((device, "device"), (peer_device, "peer device")):
        if not 0 <= device_index(each) < device_count():
            raise AssertionError(f"Invalid {what} id")
    return False
