"""NPUs through AscendCL, after the conventions of ``torch.cuda`` and ``torch.npu`` (SPEC N1-N7).

Nothing is loaded until it is used. Where torch_npu is installed and works, every name here is its own (SPEC N6).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .library import is_test_library as is_test_library
from .library import stands_aside as stands_aside
from .library import why_unavailable as why_unavailable

if TYPE_CHECKING:
    from .api import *  # noqa: F403
    from .moves import is_pinned as is_pinned
    from .moves import pin_memory as pin_memory


_initialized = True  # torch.utils.checkpoint then keeps the generators' states for the recomputation
_OF_TENSORS = ("is_pinned", "pin_memory")  # in a module that imports torch


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    api = importlib.import_module(".api", __name__)
    if stands_aside():
        torch: Any = importlib.import_module("torch")
        return getattr(torch.npu, name)
    if name in _OF_TENSORS:
        return getattr(importlib.import_module(".moves", __name__), name)
    if name not in api.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(api, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_TENSORS, *importlib.import_module(".api", __name__).__all__})
