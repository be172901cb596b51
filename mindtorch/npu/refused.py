"""Names of ``torch.npu`` that cannot be had here: each is an error at its call that says what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ..base.errors import UnsupportedOperationError

__all__ = ["REFUSED", "getter", "refusing"]

_GRAPHS = "graphs of the runtime (aclmdlRI) are not supported: each call runs at once"
_DUMP = "CANN's dump of operators is not supported: read tensors with .cpu()"
_POOLS = "each device has one caching allocator, its own"
_LIMITS = "core limits (aclrtSetDeviceResLimit) are not supported"
_RECOVERY = "repairing device memory and restarting after faults are not supported: restart the process"
_HOST = "pinned memory is not counted"
_OBFUSCATION = "CANN's obfuscation service is not supported"

#: name → what is missing
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        (
            "NPUGraph", "NpuGraphOpHandler", "graph", "graph_pool_handle", "graph_task_group_begin",
            "graph_task_group_end", "graph_task_update_begin", "graph_task_update_end", "make_graphed_callables",
            "register_npu_graph_handler", "super_kernel_scope_begin", "super_kernel_scope_end",
        ),
        _GRAPHS,
    ),
    **dict.fromkeys(("finalize_dump", "init_dump", "set_dump"), _DUMP),
    **dict.fromkeys(("MemPool", "NPUPluggableAllocator", "change_current_allocator", "use_mem_pool"), _POOLS),
    **dict.fromkeys(
        ("get_device_limit", "get_stream_limit", "reset_stream_limit", "set_device_limit", "set_stream_limit"), _LIMITS
    ),
    **dict.fromkeys(("check_uce_in_memory", "restart_device", "stop_device", "stress_detect"), _RECOVERY),
    **dict.fromkeys(
        (
            "host_empty_cache", "host_memory_stats", "host_memory_stats_as_nested_dict",
            "reset_accumulated_host_memory_stats", "reset_peak_host_memory_stats",
        ),
        _HOST,
    ),
    **dict.fromkeys(("obfuscation_calculate", "obfuscation_finalize", "obfuscation_initialize"), _OBFUSCATION),
    **dict.fromkeys(("ExternalEvent", "ExternalStream", "SyncLaunchStream"), "only mindtorch makes streams and events"),
    **dict.fromkeys(
        ("clear_npu_overflow_flag", "get_npu_overflow_flag"),
        "the chip's overflow flag is not read: torch.isfinite checks a tensor",
    ),
    **dict.fromkeys(
        ("disable_deterministic_with_backward", "enable_deterministic_with_backward", "set_deterministic_level"),
        "levels are not supported: CANN's operators follow torch.use_deterministic_algorithms, forward and backward",
    ),
    "current_blas_handle": "CANN has no such handle",
    "memory_snapshot": "the allocator keeps no history",
    "npurt": "only mindtorch calls the runtime",
    "reset_accumulated_memory_stats": "totals since the start cannot be reset",
    "set_op_timeout_ms": "operator timeouts (aclrtSetOpExecuteTimeOut) are not supported",
    "utilization": "it needs the driver's management library, which mindtorch does not use: use npu-smi",
}  # fmt: skip


def refusing(module: str, name: str, why: str) -> type:
    """A class, as some of them are, that programs name in annotations: calling it raises."""
    import torch  # not before it must be: `genie devices` asks this package, too

    def refuse(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedOperationError(f"[{module}.{name}] {why}")

    held = {"__new__": refuse, "__module__": module, "__doc__": why}
    wrapped = getattr(getattr(torch.cuda, name, None), "__wrapped__", None)
    if wrapped is not None:  # Dynamo asks torch's context managers for it as it is imported
        held["__wrapped__"] = wrapped
    return type(name, (), held)


def getter(module: str, names: dict[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module that refuses these, each with what is missing."""

    def __getattr__(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return refusing(module, name, names[name])

    return __getattr__
