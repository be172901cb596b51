"""S10: selecting the current stream and device, and looking up a kernel, from Python, on the NPU test library."""

from __future__ import annotations

import atexit
import importlib.util
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from .instructions import instructions
from .timing import Pair, compare

SETUP = """
from mindtorch import device, npu
from mindtorch._ext.dispatch import lookup
current_stream, current_device, here = npu.current_stream, npu.current_device, device("npu:0")
"""
STATEMENTS = ("current_stream(0)", "current_stream()", "current_device()", "lookup('aten::add.Tensor', here)")


def library() -> str:
    """The test library over host memory, as ``GENIE_ACL_LIBRARY``: what is measured needs no hardware."""
    if "GENIE_ACL_LIBRARY" not in os.environ:
        source = Path(__file__).resolve().parents[2] / "tests" / "npu" / "acl_library.py"
        spec = importlib.util.spec_from_file_location("acl_library", source)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder)
        os.environ["GENIE_ACL_LIBRARY"] = str(module.build(Path(folder)))
    return os.environ["GENIE_ACL_LIBRARY"]


def names() -> dict[str, Any]:
    library()
    found: dict[str, Any] = {}
    exec(SETUP, found)
    found["current_stream"](0)  # makes the runtime
    return found


def select(statement: str) -> Pair:
    """S10: one of `STATEMENTS`, against a call of a C function that does next to nothing."""
    return compare((statement, names()), ("sqrt(2.0)", {"sqrt": math.sqrt}), 100_000, 25)


def count(statement: str) -> float | None:
    """Instructions of one of `STATEMENTS`, the loop around it included; None where they cannot be counted."""
    return instructions(statement, SETUP + "current_stream(0)", {"GENIE_ACL_LIBRARY": library()})


class Streams:
    def setup(self) -> None:
        found = names()
        self.current_stream, self.current_device = found["current_stream"], found["current_device"]

    def time_current_stream(self) -> None:
        self.current_stream(0)

    def time_current_device(self) -> None:
        self.current_device()

    def track_S10_current_stream(self) -> float:
        return select("current_stream(0)").value * 1e6

    def track_S10_current_stream_instructions(self) -> float:
        counted = count("current_stream(0)")
        return float("nan") if counted is None else counted

    track_S10_current_stream.unit = "us"  # type: ignore[attr-defined]
    track_S10_current_stream_instructions.unit = "instructions"  # type: ignore[attr-defined]
    track_S10_current_stream_instructions.timeout = 600  # type: ignore[attr-defined]
