"""What a program means by its ops: module path, execution phase and source line (SPEC L12).

`install` and `uninstall` are counted: each part of mindtorch that needs the tracking (lazy tensors, the profiler)
installs it, and torch is as it was once all have uninstalled. Nothing is patched by importing this package.
"""

import contextlib
import functools
import logging
import os
import sys
import threading
import types

import torch

from mindtorch._ext import context, location, paths
from mindtorch.base import PACKAGE, sourceline
from mindtorch.engine.semantics import generation, modules, phases
from mindtorch.engine.semantics.phases import stage

__all__ = [
    "generation",
    "install",
    "installed_folders",
    "is_installed",
    "modules",
    "phases",
    "skipped_prefixes",
    "stage",
    "uninstall",
]

log = logging.getLogger(__name__)
_lock = threading.Lock()
_installs = 0
_PARTS = ((modules.patch, modules.unpatch), (phases.patch, phases.unpatch), (generation.install, generation.uninstall))


def install() -> None:
    """Track modules and phases until the matching `uninstall`. Repeated calls are counted and cheap."""
    global _installs
    with _lock:
        if _installs == 0:
            _configure()
            with contextlib.ExitStack() as undo:  # of a part that fails, or is interrupted, nothing stays
                for begin, end in _PARTS:
                    undo.callback(end)
                    begin()
                context.enter_stage(context.PHASES.index("other"))  # what was seen last is long over
                undo.pop_all()
        _installs += 1


def uninstall() -> None:
    """Undo one `install`; the last one restores torch's own objects."""
    global _installs
    with _lock:
        if _installs == 0:
            return
        _installs -= 1
        if _installs == 0:
            for _begin, end in reversed(_PARTS):
                end()


def is_installed() -> bool:
    return _installs > 0


def skipped_prefixes() -> tuple[str, ...]:
    """File-name prefixes that are never the user's line: torch, mindtorch, the import system, wrappers of functions."""
    folders = (os.path.dirname(torch.__file__), PACKAGE)
    wrappers = (contextlib, functools, *_of_deprecated())
    return (*(f + os.sep for f in folders), "<frozen ", "<eval_with_key>", *(str(m.__file__) for m in wrappers))


def installed_folders() -> tuple[str, ...]:
    """Where the standard library is, and what is installed, the command included: none of the program's own files."""
    command = getattr(sys.modules.get("mindtorch.cli"), "__file__", None)  # elsewhere than the package, when developed
    places = [os.path.dirname(command)] if command else []
    folders = (folder + os.sep for folder in (*places, os.path.dirname(sys.executable)))
    return tuple(dict.fromkeys((*sourceline.installed(), *folders, *sourceline.STANDARD)))


def _of_deprecated() -> list[types.ModuleType]:
    """Where the functions are that stand before deprecated ones: torch has loaded the first for its own."""
    names = ("typing_extensions", "warnings")
    return [sys.modules[name] for name in names if getattr(sys.modules.get(name), "__file__", None)]


def know_lines() -> None:
    """From now on a location is a line of the program's, not one of torch's or ours."""
    location.configure(skipped_prefixes(), installed_folders())


def _configure() -> None:
    know_lines()
    context.configure(
        torch._C._autograd._get_sequence_nr,
        torch._C._current_autograd_node,
        torch.is_grad_enabled,
        torch.nn.Module,
        modules.parameter_owner,
    )
    paths.configure(modules.saw_root, modules.recomputed_path, modules.outermost_path)
