"""TorchScript in an estimate: what is traced is run as it is, what is saved is remembered until the estimate ends.

ONNX files are of no content; what torch.export would give has no sizes that go on. For an NPU, modules and tensors that
are there are neither traced nor saved, as on an NPU itself (SPEC N5).
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ...base.patching import Patch
from ...devices import mode
from ...patch.tracing import held_by, not_saved, not_traced
from . import saved_objects
from .private_files import actual

__all__ = ["patches"]
_torch_load = torch.jit.load


def patches() -> list[Patch]:
    return [
        (torch.jit, "trace", _trace),
        (torch.jit, "save", _save),
        (torch.jit, "load", _load),
        (torch.jit.RecursiveScriptModule, "save", _save),
        (torch.onnx, "export", _to_onnx),
    ]


def _to_onnx(model: Any, args: Any = (), f: Any = None, *rest: Any, **options: Any) -> None:
    if f is not None:
        saved_objects.remember(f, None)


@dataclass
class _Saved:
    module: Any


def _trace(func: Any, example_inputs: Any = None, *args: Any, **options: Any) -> Any:
    """The function or module itself, after the run that tracing is."""
    given = options.get("example_kwarg_inputs") or {}
    inputs = () if example_inputs is None else example_inputs
    if there := _on_npus(getattr(func, "__self__", func), inputs, given):
        raise not_traced(there)
    func(*(inputs if isinstance(inputs, (tuple, list)) else (inputs,)), **given)
    if not hasattr(func, "save"):
        object.__setattr__(func, "save", functools.partial(_save, func))
    return func


def _on_npus(module: Any, *given: Any) -> torch.device | None:
    """Where one of these tensors is, of an estimate for an NPU; whatever the program calls it."""
    if mode.now.accelerator != "npu":
        return None
    found = (t.device for t in (*held_by(module), *tree_leaves(given)) if isinstance(t, torch.Tensor))
    return next((device for device in found if device.type not in ("cpu", "meta")), None)


def _save(m: Any, f: Any, *args: Any, **options: Any) -> None:
    if there := _on_npus(m):
        raise not_saved(there)
    saved_objects.remember(f, _Saved(m))


@functools.wraps(_torch_load)
def _load(f: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
    found = saved_objects.found(f)
    if not isinstance(found, _Saved):
        return _torch_load(actual(f), map_location, *args, **options)
    module = copy.deepcopy(found.module)
    return module if map_location is None else module.to(map_location)
