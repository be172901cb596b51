"""``torch_npu.utils``: which CANN is installed; the rest is refused by name."""

from __future__ import annotations

import os
from pathlib import Path

from ..refused import getter

__all__ = ["get_cann_version"]

__path__: list[str] = []

_REFUSED = {
    "FlopsCounter": "genie profile and torch.utils.flop_counter count FLOPs",
    "reset_thread_affinity": "mindtorch does not bind threads to cores",
    "save_async": "use torch.save",
    "set_thread_affinity": "mindtorch does not bind threads to cores",
    **dict.fromkeys(
        ("get_part_combined_tensor", "is_combined_tensor_valid", "npu_combine_tensors"),
        "tensors are not combined: each has its own memory",
    ),
}
__getattr__ = getter("torch_npu.utils", _REFUSED)


def get_cann_version(module: str = "CANN") -> str:
    """The version that an installation of CANN writes down, in ``ascend_toolkit_install.info`` and its like below
    ``ASCEND_HOME_PATH``; ``not known`` without one, and of any other `module`."""
    if module != "CANN":
        return "not known"
    home = os.environ.get("ASCEND_HOME_PATH")
    for path in sorted(Path(home).rglob("ascend_*_install.info")) if home else ():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "version":
                return value.strip()
    return "not known"
