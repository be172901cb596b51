"""What torch.cuda (torch.npu, torch.accelerator) says about memory while a program is estimated: what a card would."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from mindtorch.profile.estimate.device_memory import DeviceMemory, Devices


def answers(devices: Devices, place: Callable[[Any], int]) -> dict[str, Any]:
    """By name in torch.cuda; place: the ledger's number of the device that the program names."""

    def now(device: Any = None) -> DeviceMemory:
        return devices.of(place(device))

    def info(device: Any = None) -> tuple[int, int]:
        memory = now(device)  # whoever asks the driver has a context from then on
        return max(0, devices.capacity - memory.allocator.reserved - memory.taken), devices.capacity

    def reset(device: Any = None) -> None:
        devices.ask(place(device), "reset_peak")

    def empty_cache() -> None:
        for index in range(devices.count):
            devices.ask(place(index), "empty_cache")

    def fraction(value: float, device: Any = None) -> None:
        devices.ask(place(device), "fraction", float(value))

    def said_fraction(device: Any = None) -> float:
        said = now(device).allocator.fraction
        return 1.0 if said is None else said

    def summary(device: Any = None, abbreviated: bool = False) -> str:
        memory = now(device)
        allocator = memory.allocator
        return (
            f"{allocator.allocated} bytes allocated, {allocator.reserved} reserved; peaks {allocator.peak_allocated} "
            f"and {allocator.peak_reserved}; {memory.elsewhere} elsewhere"
        )

    return {
        "mem_get_info": info,
        "memory_stats": lambda device=None: stats(now(device)),
        "memory_allocated": lambda device=None: now(device).allocator.allocated,
        "max_memory_allocated": lambda device=None: now(device).allocator.peak_allocated,
        "memory_reserved": lambda device=None: now(device).allocator.reserved,
        "max_memory_reserved": lambda device=None: now(device).allocator.peak_reserved,
        "memory_cached": lambda device=None: now(device).allocator.reserved,
        "max_memory_cached": lambda device=None: now(device).allocator.peak_reserved,
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "reset_max_memory_cached": reset,
        "memory_summary": summary,
        "empty_cache": empty_cache,
        "set_per_process_memory_fraction": fraction,
        "get_per_process_memory_fraction": said_fraction,
    }


def stats(memory: DeviceMemory) -> OrderedDict[str, int]:
    """As torch.cuda.memory_stats, of both pools together."""
    a = memory.allocator
    found: OrderedDict[str, int] = OrderedDict()
    rows = [
        ("active", a.allocations, a.peak_allocations),
        ("active_bytes", a.allocated, a.peak_allocated),
        ("allocated_bytes", a.allocated, a.peak_allocated),
        ("allocation", a.allocations, a.peak_allocations),
        ("inactive_split_bytes", a.inactive_split, a.inactive_split),
        ("requested_bytes", a.requested, a.peak_requested),
        ("reserved_bytes", a.reserved, a.peak_reserved),
        ("segment", a.segments_now, a.peak_segments),
    ]
    for name, current, peak in rows:
        found[f"{name}.all.current"] = current
        found[f"{name}.all.peak"] = peak
    found["max_split_size"] = memory.settings.max_split if memory.settings.limits_splits else -1
    found["num_alloc_retries"], found["num_ooms"] = a.retries, a.ooms
    found["num_device_alloc"], found["num_device_free"] = a.device_allocations, a.device_frees
    return found
