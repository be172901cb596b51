"""Measure an unmodified program: `Profiler` records, `build_report` sums up, `write_csv` and `write_trace` export.

The package itself can be called: ``with mindtorch.profile() as p: …`` and then ``print(p)``.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from mindtorch.profile.measure.collect import Profiler
from mindtorch.profile.report.build import SCHEMA_VERSION, build_report
from mindtorch.profile.report.export import write_csv, write_json, write_trace

__all__ = ["SCHEMA_VERSION", "Profiler", "build_report", "write_csv", "write_json", "write_trace"]


class _Callable(ModuleType):
    def __call__(self, **options: Any) -> Profiler:
        """Options are those of `Profiler`."""
        # By name, as what shows a report may use this package, not the other way round.
        profile: Profiler = importlib.import_module("mindtorch.profiling").Profile(**options)
        return profile


sys.modules[__name__].__class__ = _Callable
