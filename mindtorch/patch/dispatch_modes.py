"""Creation on our devices below Python: what calls aten's operators by name, torch's modes and torch's own C++ code.

Calls of ``torch.zeros`` and its like are answered before torch parses them, above any mode. While dispatch modes are on
they are put to torch after all: every mode sees the operator with its device, as it sees it of the CPU, and torch comes
back to the kernels that are registered here for its foreign-device slot. Those answer ``torch.ops.aten.zeros.default``
too, and what C++ composes of ``empty`` and ``empty_strided``.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _python_dispatch as _dispatch

from .._ext import hooks as _hooks
from .._ext.guards import Modes
from ..base.errors import LazyTensorError
from ..devices.lazy_device import index_of, torch_device
from ..devices.places import RECORDED, where
from ..engine.record import eager
from . import creation

__all__ = ["create_shown", "made_by_estimate", "register", "unregister"]
_transforming = torch._C._functorch.peek_interpreter_stack
_lift = torch.ops.aten.lift_fresh.default
_functions = torch._C._VariableFunctions


_libraries: dict[str, torch.library.Library] = {}  # by the dispatch key that their kernels answer


def register() -> None:
    """Give torch's slot, which bears our name, the kernels that make tensors on our devices."""
    unregister()
    _libraries["PrivateUse1"] = _factories_of("PrivateUse1")


def unregister() -> None:
    """Take them away: torch itself says then that the device has none."""
    if "PrivateUse1" in _libraries:
        _libraries.pop("PrivateUse1")._destroy()


@contextmanager
def made_by_estimate(kind: str) -> Iterator[None]:
    """Within the block, an estimate, operators that are called by name make its tensors on devices of this type."""
    key = "PrivateUse1" if kind == "npu" else "CUDA"
    if key in _libraries:  # the same kernels
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch built with CUDA has kernels, and tells that these come before them
        library = _libraries[key] = _factories_of(key)
    try:
        yield
    finally:
        if _libraries.get(key) is library:  # else the program has begun to use our device
            _libraries.pop(key)._destroy()


def _factories_of(key: str) -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    for name, overload in _factories():
        library.impl(overload, functools.partial(_make, _hooks.original(getattr(_functions, name))), key)
    return library


@functools.cache
def _factories() -> list[tuple[str, Any]]:
    """(name of torch's function, overload) of every operator that makes a tensor of none on a device that it names."""
    found = []
    for name in creation.RECORDED:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None and hasattr(_functions, name) else ():
            arguments = getattr(packet, overload)._schema.arguments
            if any(a.name == "device" for a in arguments) and not any(str(a.type) == "Tensor" for a in arguments):
                found.append((name, getattr(packet, overload)))
    return found


def _make(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if torch._C._dispatch_tls_is_dispatch_key_excluded("Python"):
        # torch.tensor copies its data from C++ into what we return, which has no memory.
        raise LazyTensorError(
            "[tensor] expected mindtorch's torch.tensor, got the one imported from torch before "
            "`import mindtorch`, which cannot create recorded tensors: import mindtorch first, or use .to(device)"
        )
    kwargs = {name: value for name, value in kwargs.items() if value is not None and name != "pin_memory"}
    if (generator := kwargs.get("generator")) is not None:  # C++ hands down another object for it
        kwargs["generator"] = eager.generators.get(generator._cdata, generator)
    return creation.create(func, args, kwargs)


def create_shown(func: Any, args: tuple, kwargs: dict[str, Any], from_data: bool) -> Any:
    """``func(*args, **kwargs)``, with the dispatch modes that are on told; NotImplemented if they cannot be.

    from_data: what torch makes of Python numbers comes to modes when it is made.
    """
    if where(kwargs.get("device")) is not RECORDED or kwargs.get("out") is not None or _transforming() is not None:
        return NotImplemented
    device = torch_device(index_of(kwargs["device"]))
    if not isinstance(device, torch.device):
        return NotImplemented  # torch's parser does not know the device
    options = {name: value for name, value in kwargs.items() if name != "requires_grad"}
    if from_data:
        modes = _dispatch._get_current_dispatch_mode_stack()
        with Modes():
            made = creation.create(func, args, options)
        with Modes(*modes):
            out = _lift(made)
    else:
        out = func(*args, **{**options, "device": device})
    return out.requires_grad_() if kwargs.get("requires_grad", False) else out
