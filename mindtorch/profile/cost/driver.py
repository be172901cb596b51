"""What the driver holds of a GPU for one process: the context, and kernels; the figures are in `driver.toml`."""

from __future__ import annotations

import functools
from typing import Any

from mindtorch.profile.cost.toml_files import read


@functools.cache
def _tables() -> dict[str, Any]:
    return read("driver.toml")


def is_amd(capability: tuple[int, int]) -> bool:
    """Whether that is what ROCm says of an MI300 and its successors (gfx94x, gfx95x): CUDA has none like it."""
    return (9, 4) <= capability < (10, 0)


def context_bytes(capability: tuple[int, int], processors: int) -> int:
    """Of a process that trains; 0 where nothing is known (AMD)."""
    if is_amd(capability):
        return 0
    tables = _tables()
    threads = {tuple(int(part) for part in key.split(".")): number for key, number in tables["threads"].items()}
    below = [key for key in threads if key <= capability]
    resident = processors * int(threads[max(below) if below else min(threads)])
    return int(tables["context"]["base_bytes"] + tables["context"]["thread_bytes"] * resident)
