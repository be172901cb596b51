"""What takes programs apart by watching them meets tensors of ours.

``torch.jit.trace`` watches C++ handle tensors with memory, which ours do not have: refused in one clear error, as is
``torch.export`` of NPU tensors, and ``make_fx`` where its graph would hold values of recorded tensors. A program traced
on the CPU runs on tensors of ours as any other; under ``genie run``, a module that the program moved there is traced
there, whatever device its inputs were made on. Scripted modules with tensors of ours cannot be saved either.
``torch.compile`` runs calls on tensors of ours as they are, also where it is to make one graph of them
(``fullgraph=True``).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..base import torch_facts
from ..base.errors import UnsupportedOperationError
from ..base.patching import Patch, for_builtins
from ..devices import mode
from ..devices.places import where
from ..engine.execute import values
from ..engine.record.unwrapping import tracing_mode
from ..npu.tensor import is_npu
from . import flex_attention
from .module_moves import is_opaque

__all__ = ["held_by", "not_saved", "not_traced", "of_dynamo", "of_make_fx", "patches"]


def not_traced(device: Any) -> UnsupportedOperationError:
    """The error for a module or an input that is there."""
    return UnsupportedOperationError(
        f"[torch.jit.trace] expected tensors and modules on the CPU, got one on {device}: trace there, then move the "
        f"traced module with .to('{device}') or call it on tensors of that device"
    )


def not_saved(device: Any) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"[torch.jit.save] expected parameters, buffers and attributes on the CPU, got one on {device}: C++ cannot "
        "read its memory; .to('cpu') first"
    )


def held_by(module: Any) -> tuple[torch.Tensor, ...]:
    return (*module.parameters(), *module.buffers()) if isinstance(module, torch.nn.Module) else ()


@contextmanager
def _beside(held: tuple[torch.Tensor, ...], given: Any) -> Iterator[Any]:
    """`given` on the CPU, and the CPU as default device, if a module's tensors are there though the program's default
    device is one of ours: the program moved the module there. Else `given` as it is."""
    if mode.now.meets is None or not held or not all(t.is_cpu and not is_opaque(t) for t in held):
        yield given
        return
    moved = tree_map(lambda each: each.cpu() if isinstance(each, torch.Tensor) and is_opaque(each) else each, given)
    with mode.enter(default=None, meets=None):
        yield moved


def _refusing(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def trace(func: Any, *args: Any, **kwargs: Any) -> Any:
        held = held_by(getattr(func, "__self__", func))  # of a module, or of one that this is a method of
        with _beside(held, (args, kwargs)) as (args, kwargs):
            return there(held, func, args, kwargs)

    def there(held: tuple[torch.Tensor, ...], func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        given = (*held, *tree_leaves((args, kwargs)))
        lazy = next((t for t in given if is_opaque(t)), None)
        if lazy is not None:
            raise not_traced(lazy.device)
        return original(func, *args, **kwargs)

    return trace


def _tensors(module: Any) -> Iterator[torch.Tensor]:
    """What a module of TorchScript's holds, in C++: parameters, buffers and attributes."""
    for name in torch._C.ConcreteModuleType.from_jit_type(module._type()).get_attributes():
        yield from (t for t in tree_leaves(module.getattr(name)) if isinstance(t, torch.Tensor))
    for _, inner in torch._C.ModuleDict(module).items():
        yield from _tensors(inner)


def _saving(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        there = next(filter(is_opaque, _tensors(self)), None)
        if there is not None:
            raise not_saved(there.device)
        return original(self, *args, **kwargs)

    return save


def _exporting(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def export(mod: torch.nn.Module, args: Any = (), kwargs: Any = None, *others: Any, **options: Any) -> Any:
        held = held_by(mod)
        given = (*held, *tree_leaves((args, kwargs)))
        there = next((t for t in given if is_npu(t)), None)
        if there is not None:
            raise UnsupportedOperationError(
                f"[torch.export] expected a module and inputs on the CPU, got one on {there.device}: .to('cpu') first"
            )
        with _beside(held, (args, kwargs)) as (args, kwargs):
            return original(mod, args, kwargs, *others, **options)

    return export


def _compiling(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        _tell_dynamo()
        torch_facts.let_dynamo_know(for_builtins)
        made = original(*args, **kwargs)
        inner = getattr(args[0] if args else None, "__name__", "") == "_flex_attention_hop_wrapper"
        return _unless_ours(made) if inner else made

    return compile


def _unless_ours(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """What torch's flex_attention compiles by itself: a whole graph, which calls on tensors of ours are no part of."""
    return lambda *args: (flex_attention.run if is_opaque(args[0]) else compiled)(*args)


@functools.cache
def _tell_dynamo() -> None:
    from torch._dynamo import trace_rules  # seconds of imports, which torch.compile needs anyway

    torch_facts.leave_ours_alone(trace_rules)


class _Compiling(threading.local):
    """Has Dynamo met a tensor of ours in the frame that it compiles?"""

    met = False


_compiling_now = _Compiling()


def _are_ours(given: Iterable[Any]) -> bool:
    """Is a tensor of ours among them, in what they contain, or does a module hold one?"""
    return any(
        any(map(is_opaque, held_by(leaf))) if isinstance(leaf, torch.nn.Module) else is_opaque(leaf)
        for leaf in tree_leaves(list(given)) if isinstance(leaf, (torch.Tensor, torch.nn.Module))
    )  # fmt: skip


def of_dynamo(convert_frame: Any) -> Iterator[Patch]:
    """Let Dynamo run frames with tensors of ours as they are, with all that they call, and for this call only.

    Most have them in their variables. Where it meets one elsewhere (a global, an attribute, one that the frame makes),
    and then finds that it cannot compile the frame, it is the same. With a torch that does this elsewhere, nothing is
    compiled from then on.
    """
    wrapper = getattr(convert_frame, "CatchErrorsWrapper", None)
    if wrapper is None:
        torch_facts.lost["torch._dynamo.convert_frame.CatchErrorsWrapper"] = "torch.compile compiles nothing"
        torch.compiler.set_stance("force_eager")
        return
    converts = wrapper.__call__

    @functools.wraps(converts)
    def convert(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        if _are_ours(frame.f_locals.values()):
            if getattr(self._torchdynamo_orig_backend, "_export", False):
                raise UnsupportedOperationError(
                    "[torch._dynamo.export] expected tensors and modules on the CPU: "
                    "torch.export.export takes recorded tensors"
                )
            return torch_facts.uncompiled()
        before, _compiling_now.met = _compiling_now.met, False
        try:
            return converts(self, frame, *args, **kwargs)
        except Exception:
            if not _compiling_now.met:
                raise
            return torch_facts.uncompiled()
        finally:
            _compiling_now.met = before

    yield wrapper, "__call__", convert
    yield from torch_facts.met_by_dynamo(_meets)


def of_make_fx(proxy_tensor: Any) -> Iterator[Patch]:
    """``make_fx`` on recorded tensors refuses what its graph would hold as a constant: values that are read."""
    tracer = getattr(proxy_tensor, "_MakefxTracer", None)
    if tracer is None:
        torch_facts.lost["torch.fx.experimental.proxy_tensor._MakefxTracer"] = "make_fx keeps values that are read"
        return
    original = tracer._trace_inner

    @functools.wraps(original)
    def trace(self: Any, f: Any, *args: Any) -> Any:
        there = next((t for t in tree_leaves(args) if is_opaque(t)), None)
        if there is None:
            return original(self, f, *args)
        if self.pre_dispatch:
            raise UnsupportedOperationError(
                f"[make_fx] expected tensors on the CPU with pre_dispatch=True, got one on {there.device}"
            )
        thread = threading.get_ident()

        def refuse(tensors: Iterable[Any], reason: str) -> None:
            if (
                threading.get_ident() == thread
                and tracing_mode() is not None
                and any(t in self.fx_tracer.tensor_tracker for t in tensors)
            ):
                raise UnsupportedOperationError(
                    f"[make_fx] expected a function that stays on {there.device}, got one that reads a traced value "
                    f"({reason}): the graph would hold it as a constant"
                )

        values.refusing.append(refuse)
        try:
            return original(self, f, *args)
        finally:
            values.refusing.remove(refuse)

    yield tracer, "_trace_inner", trace


def _meets(met: Iterable[Any]) -> None:
    """Tensors that a frame reads, and devices that its calls are given."""
    for value in met:
        if where(getattr(value, "device", None) if isinstance(value, torch.Tensor) else value).ours:
            _compiling_now.met = True


_stand_ins = [
    (torch.jit._trace, "_trace_impl", _refusing(torch.jit._trace._trace_impl)),
    *((owner, "trace_module", _refusing(torch.jit._trace.trace_module)) for owner in (torch.jit._trace, torch.jit)),
    (torch, "compile", _compiling(torch.compile)),
    (torch.export, "export", _exporting(torch.export.export)),
    *(
        (torch._C.ScriptModule, name, _saving(getattr(torch._C.ScriptModule, name)))
        for name in ("save", "save_to_buffer", "_save_for_mobile", "_save_to_buffer_for_mobile")
    ),
]


def patches() -> list[Patch]:
    """(owner, name, stand-in) of torch's ways to trace."""
    return list(_stand_ins)
