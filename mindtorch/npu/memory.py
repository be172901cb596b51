"""``mindtorch.npu.memory``: what the caching allocator tells and is told, after ``torch.cuda.memory``."""

from __future__ import annotations

from typing import Any

from mindtorch._ext import blocks, streams
from mindtorch._ext.blocks import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_peak_memory_stats,
)

from ..base import config
from .library import device_index
from .refused import REFUSED, getter

__all__ = [
    "caching_allocator_alloc", "caching_allocator_delete", "empty_cache", "empty_virt_addr_cache",
    "get_allocator_backend", "get_per_process_memory_fraction", "ipc_collect", "max_memory_allocated",
    "max_memory_cached", "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_cached", "memory_reserved",
    "memory_stats", "memory_stats_as_nested_dict", "memory_summary", "reset_max_memory_allocated",
    "reset_max_memory_cached", "reset_peak_memory_stats", "set_per_process_memory_fraction",
]  # fmt: skip

_fractions: dict[int, float] = {}
_taken: dict[int, blocks.Block] = {}  # by address: what `caching_allocator_alloc` gave

# The older names.
memory_cached = memory_reserved
max_memory_cached = max_memory_reserved
reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """`memory_stats` with a dict for each part of its names: ``["allocated_bytes"]["all"]["peak"]``."""
    found: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *parts, last = name.split(".")
        inner = found
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return found


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """`memory_stats` as a table, laid out as torch.cuda's. abbreviated: allocated and reserved memory alone."""
    index, stats = device_index(device), memory_stats(device)
    rows = _ROWS if not abbreviated else {name: _ROWS[name] for name in ("allocated_bytes", "reserved_bytes")}
    ooms, retries = f"NPU OOMs: {stats['num_ooms']:<13}", f"npuMalloc retries: {stats['num_alloc_retries']:<9}"
    lines = [
        "=" * 75, f"{'':17} PyTorch NPU memory summary, device ID {index:<18} ", "-" * 75,
        f"{'':11} {ooms} | {'':6} {retries}  ", "=" * 75,
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
    ]  # fmt: skip
    for name, title in rows.items():
        values = [stats[f"{name}.all.{column}"] for column in ("current", "peak", "allocated", "freed")]
        told = [_bytes(each) if name.endswith("bytes") else f"{each:>10}" for each in values]
        lines += ["-" * 75, f" {title:<21} | {' | '.join(told)} "]
    return "".join(f"|{line}|\n" for line in [*lines, "=" * 75])


_ROWS = {
    "allocated_bytes": "Allocated memory", "active_bytes": "Active memory", "requested_bytes": "Requested memory",
    "reserved_bytes": "NPU reserved memory", "allocation": "Allocations", "segment": "NPU reserved segments",
}  # fmt: skip


def _bytes(size: int) -> str:
    for unit in ("B  ", "KiB", "MiB"):
        if size < 750 * 1024:
            return f"{size:6} {unit}"
        size //= 1024
    return f"{size:6} GiB"


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let the allocator hold at most this share of the memory of ``device``, from 0 to 1. What it holds stays."""
    if not isinstance(fraction, float):  # in torch.cuda's words, as for an integer
        raise TypeError(f"Invalid type for fraction argument, must be `float`, got {fraction!r}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    index = device_index(device)
    _, total = mem_get_info(index)
    blocks.limit_memory(index, int(total * fraction) if fraction < 1 else None)
    _fractions[index] = float(fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """What `set_per_process_memory_fraction` set; before, what ``PYTORCH_NPU_ALLOC_CONF`` says, else 1.0."""
    return _fractions.get(device_index(device), config.npu_memory_fraction())


def caching_allocator_alloc(size: int, device: Any = None, stream: Any = None) -> int:
    """The address of ``size`` bytes of ``device``, for other libraries; `caching_allocator_delete` gives them back.

    stream: a `Stream` or the address of one of this process's; None: the current one.
    """
    index = device_index(device)
    current = streams.current_stream(index)
    if stream is not None and stream not in (current, current.npu_stream):
        raise ValueError(f"[caching_allocator_alloc] expected the current stream of npu:{index}, got {stream}")
    block = blocks.allocate(index, size)
    _taken[block.ptr] = block
    return block.ptr


def caching_allocator_delete(mem_ptr: int) -> None:
    """Give back what `caching_allocator_alloc` gave."""
    if _taken.pop(mem_ptr, None) is None:
        raise ValueError(
            f"[caching_allocator_delete] expected an address from caching_allocator_alloc, got {mem_ptr:#x}"
        )


def get_allocator_backend() -> str:
    return "native"


def empty_virt_addr_cache() -> None:
    """Nothing is to be done: the allocator reserves no addresses beyond its memory."""


def ipc_collect() -> None:
    """Nothing is to be done: no memory is shared between processes."""


__getattr__ = getter("torch.npu.memory", REFUSED)
