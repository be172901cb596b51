"""Measure an unmodified program: `Profiler` records, `build_report` sums up, `write_csv` and `write_trace` export."""

from mindtorch.profile.collect import Profiler
from mindtorch.profile.export import write_csv, write_json, write_trace
from mindtorch.profile.report import SCHEMA_VERSION, build_report

__all__ = ["SCHEMA_VERSION", "Profiler", "build_report", "write_csv", "write_json", "write_trace"]
