"""What a program's ``TorchDispatchMode``s see of creation on our devices: the ops that they see of it on the CPU.

Calls that make tensors are answered before torch parses them, above any mode. While dispatch modes are on they are put
to torch after all, with a mode of ours below the program's: what comes down to it on a device of ours is made there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor
from torch.utils import _python_dispatch as _dispatch

from .._ext import hooks as _hooks
from .._ext import lazy as _core
from .._ext.guards import Modes
from ..devices.lazy_device import index_of, is_ours, torch_device

__all__ = ["create_shown"]
_transforming = torch._C._functorch.peek_interpreter_stack
_lift = torch.ops.aten.lift_fresh.default
_functions = torch._C._VariableFunctions
Create = Callable[[Any, tuple, "dict[str, Any]"], Any]


class _Last(_dispatch.TorchDispatchMode):
    """Below the modes of the program."""

    def __init__(self, create: Create, generator: Any, tracer: Any) -> None:
        super().__init__()
        self._create, self._generator, self._tracer = create, generator, tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func is _lift and _core.get_handle(args[0]) is not None:
            return args[0]  # was made a moment ago
        name = func._schema.name.removeprefix("aten::")
        if not is_ours(kwargs.get("device")) or not hasattr(_functions, name):
            return func(*args, **kwargs)
        kwargs = {k: v for k, v in kwargs.items() if v is not None and k != "pin_memory"}
        drawn_from = kwargs.get("generator")
        if drawn_from is not None and self._generator is not None and drawn_from._cdata == self._generator._cdata:
            kwargs["generator"] = self._generator  # C++ hands down another object for it
        made = self._create(_hooks.original(getattr(_functions, name)), args, kwargs)
        if self._tracer is not None and drawn_from is None:
            # torch's mode that traces is below this one. Its call would be of the operator, which the device has not.
            call = self._tracer.create_proxy("call_function", getattr(torch, name), args, kwargs)
            proxy_tensor.track_tensor_tree(made, call, constant=None, tracer=self._tracer)
        return made


def create_shown(create: Create, func: Any, args: tuple, kwargs: dict[str, Any], from_data: bool) -> Any:
    """``create(func, args, kwargs)``, with the program's dispatch modes told; NotImplemented if they cannot be.

    from_data: what torch makes of Python numbers comes to modes when it is made.
    """
    if not is_ours(kwargs.get("device")) or kwargs.get("out") is not None or _transforming() is not None:
        return NotImplemented
    device = torch_device(index_of(kwargs["device"]))
    modes = _dispatch._get_current_dispatch_mode_stack()
    own = [mode for mode in modes if getattr(mode, "_mode_key", None) is not None]
    tracing = [mode for mode in own if isinstance(mode, proxy_tensor.ProxyTorchDispatchMode) and not from_data]
    if not isinstance(device, torch.device) or own != tracing:
        return NotImplemented  # torch's parser does not know the device; modes of torch's own (fake tensors)
    needs_gradient = kwargs.get("requires_grad", False)
    options = {k: v for k, v in kwargs.items() if k != "requires_grad"}
    made = None
    if from_data:
        with Modes():
            made = create(func, args, options)
    tracer = tracing[0].tracer if tracing else None
    with Modes(_Last(create, kwargs.get("generator"), tracer), *modes):
        out = func(*args, **{**options, "device": device}) if made is None else _lift(made)
    return out.requires_grad_() if needs_gradient else out
