"""``torch_npu.profiler``: torch's own profiler, which sees the host's side; NPUs' own events are not collected."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch
from torch.profiler import ProfilerAction as ProfilerAction
from torch.profiler import ProfilerActivity as ProfilerActivity
from torch.profiler import schedule as schedule
from torch.profiler import tensorboard_trace_handler as _torch_handler

__all__ = [
    "AiCMetrics", "ExportType", "HostSystem", "ProfilerAction", "ProfilerActivity", "ProfilerLevel",
    "_ExperimentalConfig", "profile", "schedule", "supported_activities", "supported_ai_core_metrics",
    "supported_export_type", "supported_profiler_level", "tensorboard_trace_handler",
]  # fmt: skip

__path__: list[str] = []


def _names(title: str, names: str) -> Any:
    return Enum(title, {name: name for name in names.split()})


ProfilerLevel = _names("ProfilerLevel", "Level_none Level0 Level1 Level2")
AiCMetrics = _names(
    "AiCMetrics",
    "AiCoreNone PipeUtilization ArithmeticUtilization Memory MemoryL0 ResourceConflictRatio MemoryUB L2Cache "
    "MemoryAccess",
)
ExportType = _names("ExportType", "Db Text")
HostSystem = _names("HostSystem", "CPU MEM DISK NETWORK OSRT")


class _ExperimentalConfig(SimpleNamespace):
    """What CANN's profiler would be asked for; kept, and not looked at."""


_IGNORED = frozenset({"use_cuda"})  # torch_npu takes it, and does nothing with it


class profile(torch.profiler.profile):
    """``torch.profiler.profile`` of the host's side. ``experimental_config`` of torch_npu's kind is not looked at."""

    def __init__(self, *, activities: Any = None, experimental_config: Any = None, **options: Any) -> None:
        known = {"schedule", "on_trace_ready", "record_shapes", "profile_memory", "with_stack", "with_flops",
                 "with_modules"}  # fmt: skip
        unknown = sorted(options.keys() - known - _IGNORED)
        if unknown:
            raise TypeError(
                f"[profile] expected options among {', '.join(sorted(known | _IGNORED))}, got {', '.join(unknown)}"
            )
        chosen = [ProfilerActivity.CPU] if activities is None or ProfilerActivity.CPU in activities else []
        super().__init__(activities=chosen or [ProfilerActivity.CPU], **{k: options[k] for k in known & options.keys()})


def tensorboard_trace_handler(
    dir_name: str | None = None, worker_name: str | None = None, analyse_flag: bool = True, **options: Any
) -> Any:
    """torch's own; there is nothing that an analysis would add."""
    return _torch_handler(dir_name or "./", worker_name)


def supported_activities() -> set[Any]:
    return {ProfilerActivity.CPU}


def supported_profiler_level() -> set[Any]:
    return set(ProfilerLevel)


def supported_ai_core_metrics() -> set[Any]:
    return set(AiCMetrics)


def supported_export_type() -> set[Any]:
    return set(ExportType)
