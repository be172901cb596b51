"""Measure an unmodified program: `Profiler` records, `build_report` sums up, `write_csv` and `write_trace` export.

The package itself can be called: ``with mindtorch.profile() as p: …`` and then ``print(p)``, or
``mindtorch.profile(model, inputs)``. One name is both: as a module it has ``mindtorch.profile.callbacks``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindtorch.profile.measure.collect import Profiler
    from mindtorch.profile.report.build import build_report
    from mindtorch.profile.report.export import SCHEMA_VERSION, write_csv, write_json
    from mindtorch.profile.report.flame import write_flame
    from mindtorch.profile.report.page import write_html
    from mindtorch.profile.report.trace import write_trace
    from mindtorch.profiling import Profile

# Where they are. Loaded when they are asked for: the command's options are in this package, and need no torch.
_HOMES = {
    "Profiler": "measure.collect", "SCHEMA_VERSION": "report.export", "build_report": "report.build",
    "write_csv": "report.export", "write_flame": "report.flame", "write_html": "report.page",
    "write_json": "report.export", "write_trace": "report.trace",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        return importlib.import_module(f"{__name__}.callbacks")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


__all__ = [
    "SCHEMA_VERSION",
    "Profiler",
    "build_report",
    "write_csv",
    "write_flame",
    "write_html",
    "write_json",
    "write_trace",
]


class _Callable(ModuleType):
    def __call__(self, of: Callable[..., object] | None = None, /, *inputs: Any, **options: Any) -> Profile:
        """Without `of`, a context manager that profiles its ``with`` block, with the options of `Profiler`.

        With it, the profile of ``of(*inputs)``, a model or another function, in its current mode, with or without
        gradients. It is called ``warmup`` times (1) unreported, then ``steps`` times (1) that the report covers.
        """
        # By name, as what shows a report may use this package, not the other way round.
        profiling = importlib.import_module("mindtorch.profiling")
        profile: Profile = profiling.Profile(**options) if of is None else profiling.profiled(of, *inputs, **options)
        return profile


sys.modules[__name__].__class__ = _Callable
