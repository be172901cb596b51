"""NPUs through AscendCL, after the conventions of ``torch.cuda`` and ``torch.npu`` (SPEC N1-N7).

Nothing is loaded until it is used. Where torch_npu is installed and works, every name here is its own (SPEC N6).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mindtorch._ext import pool

from .library import device_index
from .library import is_test_library as is_test_library
from .library import is_the_accelerator as is_the_accelerator
from .library import stands_aside as stands_aside
from .library import why_unavailable as why_unavailable

if TYPE_CHECKING:
    from .api import *  # noqa: F403
    from .legacy import *  # noqa: F403
    from .memory import *  # noqa: F403
    from .moves import is_pinned as is_pinned
    from .moves import pin_memory as pin_memory
    from .settings import *  # noqa: F403


def _is_in_bad_fork() -> bool:  # torch.manual_seed asks before it seeds
    return pool.in_bad_fork()


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """The index that ``device`` names, as ``torch.cuda``'s and torch_npu's function of the name that libraries call.

    optional: None, and ``"npu"`` without an index, are the thread's current device; else they are a ValueError.
    allow_cpu: -1 for the CPU.
    """
    torch: Any = importlib.import_module("torch")
    if isinstance(device, str) and not device.startswith("npu:") and device != "npu":
        device = torch.device(device)  # or torch's error
    if allow_cpu and getattr(device, "type", None) == "cpu":
        return -1
    unnumbered = device is None or device == "npu" or (hasattr(device, "type") and device.index is None)
    index = device_index(device)
    if unnumbered and not optional:
        raise ValueError(f"Expected a npu device with a specified index or an integer, but got: {device}")
    return index


_initialized = True  # torch.utils.checkpoint then keeps the generators' states for the recomputation
# Where the public names are, the first that has one. Those after the second import torch.
_HOMES = ("api", "memory", "settings", "legacy", "moves")
_MODULES = frozenset({"amp", "api", "compat", "memory", "operators", "random"})


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if stands_aside() and name != "compat":
        torch: Any = importlib.import_module("torch")
        return getattr(torch.npu, name)
    value = importlib.import_module(f".{name}", __name__) if name in _MODULES else _find(name)
    globals()[name] = value
    return value


def _find(name: str) -> Any:
    for home in _HOMES:
        module = importlib.import_module(f".{home}", __name__)
        if name in module.__all__:
            return getattr(module, name)
    refused = importlib.import_module(".refused", __name__)
    if name not in refused.REFUSED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return refused.refusing("torch.npu", name, refused.REFUSED[name])


def __dir__() -> list[str]:
    homes = (importlib.import_module(f".{home}", __name__).__all__ for home in _HOMES)
    return sorted({*globals(), *_MODULES, *(name for names in homes for name in names)})
