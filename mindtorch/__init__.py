"""mindtorch: see, size and move PyTorch programs without changing them.

``import mindtorch`` gives torch a device ``remote_accelerator[:i]`` whose tensors record what is done to them and
compute it when a value is read. Public names are in ``__all__``; the command line is ``genie``.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if "t" in getattr(sys, "abiflags", ""):  # its extension modules have other names: else it would be one not found
    raise ImportError("[mindtorch] expected a Python with the global interpreter lock, got a free-threaded build")


def _find_compiled() -> None:
    """Take the rest from the installed package where this file's folder has no ``_ext``.

    That is a checkout that comes first on the path, as with ``python -c`` in its root.
    """
    if os.path.isdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "_ext")):
        return
    for entry in sys.path:
        folder = os.path.join(os.path.abspath(entry or os.curdir), "mindtorch")
        if os.path.isdir(os.path.join(folder, "_ext")):
            __path__[:] = [folder]
            return


_find_compiled()

from .base import VERSION  # noqa: E402
from .base.errors import LazyTensorError, MaterializationError, NoDataError, UnsupportedOperationError, UsageError  # noqa: E402
from .base.import_hooks import without_collecting  # noqa: E402

if TYPE_CHECKING:
    from . import profile
    from .base.resources import Resources
    from .cluster.connect import connect, disconnect
    from .cluster.ray_executor import RayExecutor
    from .devices import device, get_default_device, set_default_device
    from .engine.cache import Cache, cache
    from .engine.execute import Executor, LocalExecutor, WrappingExecutor
    from .engine.execute.counters import reset_stats, stats
    from .engine.execute.tensors import LazyTensor
    from .engine.execute.values import flush, get_executor, set_executor
    from .engine.passes import set_passes
    from .engine.record.meta import MetaStorage, MetaTensor
    from .engine.remote.client import RemoteExecutor
    from .engine.remote.loopback import LoopbackExecutor
    from .engine.remote.pipe import PipeExecutor
    from .engine.remote.placing import PlacingExecutor
    from .engine.remote.run_time import Computing
    from .engine.remote.spread import SpreadExecutor
    from .graph import ComputationGraph, capture  # type: ignore[no-redef]
    from .graph.analysis import Analysis, Analyzer, get_analyzer, set_analyzer
    from .graph.segment_hooks import SegmentRun, register_segment_hook
    from .patch.hooks import disable, enable, is_enabled
    from .profile.cost.analyzer import RooflineAnalyzer
    from .profiling import Report, load_report

__version__ = VERSION
__all__ = [
    "Analysis",
    "Analyzer",
    "Cache",
    "ComputationGraph",
    "Executor",
    "LazyTensor",
    "LazyTensorError",
    "LocalExecutor",
    "LoopbackExecutor",
    "MaterializationError",
    "MetaStorage",
    "MetaTensor",
    "NoDataError",
    "PipeExecutor",
    "PlacingExecutor",
    "RayExecutor",
    "RemoteExecutor",
    "Report",
    "Resources",
    "RooflineAnalyzer",
    "SegmentRun",
    "SpreadExecutor",
    "UnsupportedOperationError",
    "UsageError",
    "WrappingExecutor",
    "cache",
    "capture",
    "connect",
    "device",
    "disable",
    "disconnect",
    "enable",
    "flush",
    "get_analyzer",
    "get_default_device",
    "get_executor",
    "is_enabled",
    "load_report",
    "profile",
    "register_segment_hook",
    "reset_stats",
    "set_analyzer",
    "set_default_device",
    "set_executor",
    "set_passes",
    "stats",
]

# Where each public name lives; imported at first use so that `genie --help` does not wait for torch.
_HOME = {
    "device": "devices",
    "get_default_device": "devices",
    "set_default_device": "devices",
    "Executor": "engine.execute",
    "LocalExecutor": "engine.execute",
    "LoopbackExecutor": "engine.remote.loopback",
    "PipeExecutor": "engine.remote.pipe",
    "PlacingExecutor": "engine.remote.placing",
    "RayExecutor": "cluster.ray_executor",
    "RemoteExecutor": "engine.remote.client",
    "SpreadExecutor": "engine.remote.spread",
    "WrappingExecutor": "engine.execute",
    "Resources": "base.resources",
    "Analysis": "graph.analysis",
    "Analyzer": "graph.analysis",
    "get_analyzer": "graph.analysis",
    "set_analyzer": "graph.analysis",
    "SegmentRun": "graph.segment_hooks",
    "register_segment_hook": "graph.segment_hooks",
    "RooflineAnalyzer": "profile.cost.analyzer",
    "Cache": "engine.cache",
    "cache": "engine.cache",
    "ComputationGraph": "graph",
    "capture": "graph",
    "connect": "cluster.connect",
    "disconnect": "cluster.connect",
    "disable": "patch.hooks",
    "enable": "patch.hooks",
    "is_enabled": "patch.hooks",
    "reset_stats": "engine.execute.counters",
    "stats": "engine.execute.counters",
    "MetaStorage": "engine.record.meta",
    "MetaTensor": "engine.record.meta",
    "LazyTensor": "engine.execute.tensors",
    "flush": "engine.execute.values",
    "get_executor": "engine.execute.values",
    "set_executor": "engine.execute.values",
    "set_passes": "engine.passes",
    "load_ipython_extension": "profiling",
    "Report": "profiling",
    "load_report": "profiling",
    "unload_ipython_extension": "profiling",
}
# Packages that are public names themselves; `profile` is called.
_PACKAGES = frozenset({"npu", "profile"})
_NEEDS_TORCH = frozenset(_HOME) - {"device", "get_default_device", "set_default_device"}
_ready = False


def _bootstrap(wait: bool = False) -> None:
    """Load torch and the engine, and hook torch unless GENIE_AUTO_ENABLE=0. Idempotent.

    wait: hook torch when somebody outside the package imports it: a program that `genie` runs, if it does so.
    """
    global _ready
    if _ready:
        return
    _ready = True
    with without_collecting():
        _load(wait)
        if not gc.get_freeze_count():  # else some of it is the program's
            # What was loaded stays: it counts as old, or the next collection would go through all of it.
            gc.freeze()
            gc.unfreeze()


def _load(wait: bool) -> None:
    from .base import config, torch_facts

    torch_facts.check()  # before anything else of ours looks at torch
    from . import graph
    from .engine import semantics
    from .engine.execute import machine, tensors, values
    from .engine.semantics import phases
    from .engine.tensor import metadata
    from .patch import hooks

    config.check()
    values.set_default_executor(_executor)
    tensors.set_tracking(semantics)
    graph.set_tracking(semantics)
    phases.after_backward.append(values.passed)
    phases.after_step.append(values.stepped)
    graph.set_default_analyzer(_analyzer)
    machine.set_timing(_timing)
    metadata.set_hints(_hints)
    if not config.auto_enable():
        return
    if wait and __spec__ is not None:
        __spec__.__class__ = _Awaited
    else:
        hooks.enable()


def _analyzer() -> Analyzer:
    """The analyzer that is asked where none was set."""
    from .profile.cost.analyzer import RooflineAnalyzer

    return RooflineAnalyzer()


def _timing(calls: Any, machines: Any, footprint: int) -> Computing | None:
    from .profile.cost.recorded_calls import computing

    return computing(calls, machines, footprint)


def _hints(tensor: Any) -> dict[str, Any]:
    from .graph import analysis

    return analysis.hints(tensor)


def _executor() -> Executor:
    """The executor that the environment asks for."""
    from .base import config
    from .engine.execute import LocalExecutor

    name = config.executor()  # which may have to read the entry points
    if name == "local":
        return LocalExecutor(config.executor_device())
    if name == "loopback":
        from .engine.remote.loopback import LoopbackExecutor

        return LoopbackExecutor(config.executor_device())
    if name == "ray":
        from .cluster.connect import default_executor

        return default_executor()
    if name != "pipe":
        return _executor_of_others(name)
    from .engine.remote.pipe import PipeExecutor

    found = [PipeExecutor(config.executor_device()) for _ in range(config.workers() or 1)]
    if len(found) == 1:
        return found[0]
    from .engine.remote.placing import PlacingExecutor

    return PlacingExecutor(found, config.worker_memory())


def _executor_of_others(name: str) -> Executor:
    """What the class of that name gives, called without arguments; one that wraps another gets the one of here."""
    from .base import config, plugins
    from .base.errors import UsageError
    from .engine.execute import Executor, LocalExecutor, WrappingExecutor

    try:
        make = plugins.load(name, "mindtorch.executors")
    except (ImportError, AttributeError) as error:
        raise UsageError(f"GENIE_EXECUTOR: expected a class that can be imported, got {name!r}: {error}") from error
    wraps = isinstance(make, type) and issubclass(make, WrappingExecutor)
    try:
        made = make(LocalExecutor(config.executor_device())) if wraps else make()
    except TypeError as error:
        raise UsageError(f"GENIE_EXECUTOR: expected {name} to take no arguments, got {error}") from error
    if not isinstance(made, Executor):
        raise UsageError(f"GENIE_EXECUTOR: expected {name} to give an Executor, got {type(made).__name__}")
    return made


class _Awaited(ModuleSpec):
    """The package's spec until the program imports it. Of a module that is there, `import` asks only one thing."""

    @property
    def _initializing(self) -> bool:  # type: ignore[override]
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "importlib":
            frame = frame.f_back
        if frame.f_globals.get("__name__", "").partition(".")[0] != __name__:
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            from .patch import hooks

            hooks.enable()
        return False


def _is_submodule(name: str) -> bool:
    found = (os.path.join(folder, name) for folder in __path__)
    return any(os.path.isdir(path) or os.path.isfile(f"{path}.py") for path in found)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        if name in _PACKAGES:
            import importlib

            return importlib.import_module(f".{name}", __name__)
        if name.startswith("_") or _is_submodule(name):  # `from . import graph` asks here before it imports
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        _bootstrap()
        from .patch import namespace

        try:
            return namespace.lookup(name)
        except AttributeError:
            raise AttributeError(f"neither module {__name__!r} nor torch has an attribute {name!r}") from None
    if name in _NEEDS_TORCH:
        _bootstrap()
    import importlib

    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    torch = sys.modules.get("torch")
    return sorted({*globals(), *__all__, *(name for name in dir(torch) if not name.startswith("_"))})


def _started_as_genie() -> bool:
    # The command imports torch itself, and only when a subcommand needs it. An executor's worker has no program.
    program = sys.argv[0] if sys.argv else ""
    if program == "-m" and "-m" in sys.orig_argv[:-1]:
        return sys.orig_argv[sys.orig_argv.index("-m") + 1] in (__name__, f"{__name__}.cli.main")
    name = os.path.basename(program).removesuffix(".exe")
    return name in ("genie", "genie-worker") or program.endswith(os.path.join("cli", "main.py"))


if not _started_as_genie():
    _bootstrap()
