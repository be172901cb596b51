"""``import torch_npu`` where the real one is not installed: which module of ours is found under which of its names.

Only while somebody wants it (`watch`), and only where no other finder finds torch_npu itself (SPEC N6).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from ..base.import_hooks import find_elsewhere, is_asking
from . import library

__all__ = ["NAMES", "is_installed", "unwatch", "watch"]

_HERE = __name__.rpartition(".")[0]
#: torch_npu's module → ours, within this package
NAMES = {
    "torch_npu": "compat.top",
    "torch_npu._C": "compat.extension",
    "torch_npu._inductor": "compat.inductor",
    "torch_npu.contrib": "compat.contrib",
    "torch_npu.contrib.function": "compat.contrib",
    "torch_npu.contrib.module": "compat.contrib",
    "torch_npu.contrib.transfer_to_npu": "compat.transfer_to_npu",
    "torch_npu.distributed": "compat.distributed",
    "torch_npu.npu": "",
    "torch_npu.npu.amp": "amp",
    "torch_npu.npu.amp.autocast_mode": "amp",
    "torch_npu.npu.amp.grad_scaler": "amp",
    "torch_npu.npu.autocast_utils": "settings",
    "torch_npu.npu.memory": "memory",
    "torch_npu.npu.npu_config": "settings",
    "torch_npu.npu.random": "random",
    "torch_npu.npu.streams": "",
    "torch_npu.npu.utils": "",
    "torch_npu.optim": "compat.optim",
    "torch_npu.profiler": "compat.profiler",
    "torch_npu.profiler.experimental_config": "compat.profiler",
    "torch_npu.profiler.profiler": "compat.profiler",
    "torch_npu.utils": "compat.utils",
    "torch_npu.utils.collect_env": "compat.utils",
    "torch.npu": "",
    "torch.npu.amp": "amp",
    "torch.npu.memory": "memory",
    "torch.npu.random": "random",
}


class _Loader:
    """Puts the module that is meant in the place of the new one, as a module may do itself."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        importlib.import_module(".compat", _HERE)
        name = module.__name__
        sys.modules[name] = importlib.import_module(f".{NAMES[name]}" if NAMES[name] else _HERE, _HERE)
        if name == "torch_npu":  # its submodules are attributes, imported or not; transfer_to_npu acts by its import
            for each in NAMES:
                if each.startswith("torch_npu.") and NAMES[each] != "compat.transfer_to_npu":
                    importlib.import_module(each)


class _Finder:
    def __init__(self) -> None:
        self.wanted: Callable[[], bool] = bool
        self.probes = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith(("torch_npu", "torch.npu")) or is_asking(self, name):
            return None
        if name == "torch_npu" and (
            is_installed() or not self.wanted() or not (self.probes or not _is_probe()) or not _may_be_ours()
        ):
            return None
        if name not in NAMES:
            if name.startswith(("torch_npu.", "torch.npu.")) and _is_ours():  # files of ours are not found as theirs
                raise ModuleNotFoundError(f"No module named {name!r}: mindtorch does not have it", name=name)
            return None
        if name != "torch_npu" and not _is_ours():
            return None
        return ModuleSpec(name, _Loader(), is_package=True)  # type: ignore[arg-type]


def _may_be_ours() -> bool:
    """Can torch know the device by name? Not once it knows `remote_accelerator`, as in a program that used that before:
    libraries that import torch_npu where they find it (transformers) go on without.
    """
    return torch._C._get_privateuse1_backend_name() in ("privateuseone", "npu")


def _is_ours() -> bool:
    package = __name__.partition(".")[0]
    return any(
        getattr(sys.modules.get(name), "__name__", "").startswith(f"{package}.") for name in ("torch_npu", "torch.npu")
    )


def _is_probe() -> bool:
    """Does somebody ask whether there is such a module (``importlib.util.find_spec``), without importing it?"""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap":
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and frame.f_globals.get("__name__") == "importlib.util"


_finder: Any = _Finder()


def is_installed() -> bool:
    """Is torch_npu itself there, whether it works or not?"""
    return find_elsewhere(_finder, "torch_npu") is not None


def watch(wanted: Callable[[], bool] = lambda: True, probes: bool = True) -> None:
    """From now on ``import torch_npu`` finds ours, where there is no other and ``wanted()`` says so.

    probes: ``importlib.util.find_spec`` finds it, too, before it was imported: libraries choose NPUs by themselves.
    """
    library.stands_aside()  # looks for torch_npu, once: it must not find ours
    _finder.wanted, _finder.probes = wanted, probes
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def unwatch() -> None:
    """Nothing is found any more; what was imported stays."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
