"""The torch-compatible namespace: ``import mindtorch as torch`` (SPEC D6).

Everything torch has is reachable as ``mindtorch.<name>``. Creation functions also take ``device="meta[:i]"`` as this
package's meta device, a ``mindtorch.device``, and the default device set here; on ``cpu`` and ``cuda`` they give plain
torch tensors. In a file where ``torch`` is this package, ``meta`` is its meta device for what torch's own code makes,
too: ``torch.ones(2).to("meta:1")``, ``torch.nn.Linear(2, 2, device="meta")``. Elsewhere it stays torch's.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from types import FrameType
from typing import Any

import torch

from .._ext import hooks as _hooks
from ..base import NAME
from ..devices.names import device as mindtorch_device
from ..devices.names import get_default_device
from ..devices.places import where
from . import creation

CREATION = frozenset((*creation.RECORDED, *creation.EAGER))
_made: dict[str, Any] = {}
_package = sys.modules[NAME]
# A checkout that comes first on the path takes its modules from the installed package: see __init__.
_own = (os.path.dirname(os.path.abspath(file or "")) for file in (torch.__file__, _package.__file__))
_folders = tuple(folder + os.sep for folder in (*_own, *_package.__path__))
_used = False


def speaks() -> bool:
    """True if the program's code that is running, torch's and ours left out, calls this package ``torch``."""
    if not _used or not torch._C._is_torch_function_enabled():
        return False
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_folders):
        frame = frame.f_back
    return _name_in(frame, "torch") is _package


def unused() -> bool:
    """True while the program has asked this package for none of torch's names: its `meta` device is torch's."""
    return not _used


def _name_in(frame: FrameType, name: str) -> Any:
    """What a name means to a frame's code. Keeps none of the frame's variables alive, as looking at f_locals would."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:  # a module's or a class's own dictionary
        return frame.f_locals.get(name, frame.f_globals.get(name))
    if name not in code.co_varnames and name not in code.co_cellvars and name not in code.co_freevars:
        return frame.f_globals.get(name)
    copy = frame.f_locals
    found = copy.get(name, frame.f_globals.get(name))
    if type(copy) is dict and sys.getrefcount(copy) == 3:  # the frame's (until Python 3.12), ours, and the question's
        copy.clear()
    return found


def lookup(name: str) -> Any:
    """What ``mindtorch.<name>`` is when it is not one of this package's own names. Raises AttributeError."""
    global _used
    if not _used:
        _hooks.take_meta_where(speaks)
        _used = True
    if name not in CREATION and name != "from_numpy":
        return getattr(torch, name)  # looked up each time: patched functions come and go
    if name not in _made:
        _made.setdefault(name, _from_numpy() if name == "from_numpy" else _creation(name))
    return _made[name]


def _creation(name: str) -> Any:
    @functools.wraps(getattr(torch, name))
    def create(*args: Any, **kwargs: Any) -> Any:
        function = getattr(torch, name)
        device = kwargs.get("device")
        if device is None and get_default_device().type in ("meta", "npu") and _on_default_device(name):
            device = get_default_device()
        if device is not None and not where(device).has_data:
            return creation.create(_hooks.original(function), args, {**kwargs, "device": device})
        if isinstance(device, mindtorch_device):
            kwargs["device"] = device if device.type == "remote_accelerator" else str(device)
        return function(*args, **kwargs)

    return create


def _on_default_device(name: str) -> bool:
    return not name.endswith("_like") and name not in creation.ON_THE_HOST | creation.WITHOUT_DEVICE


def _from_numpy() -> Any:
    @functools.wraps(torch.from_numpy)
    def from_numpy(array: Any, device: Any = None) -> Any:
        t = torch.from_numpy(array)
        return t if device is None else lookup("as_tensor")(t, device=device)

    return from_numpy
