"""What the compiled interception asks Python: what an op is, what it gives, how to run it when it cannot wait.

The answers are asked for once per function (`describe`) or once per distinct call (`infer`); both are memoized by
the extension, so this file is off the hot path except for ops that run eagerly.
"""

from __future__ import annotations

import functools
import logging
import operator
import os
import threading
import types
from typing import Any

import torch
from torch.autograd import forward_ad

from . import meta, ops
from ._ext import intern as _intern
from ._ext import lazy as _core
from ._ext.signals import by_signal_handler
from .backward import on_values
from .config import unsupported
from .errors import UnsupportedOperationError
from .meta import as_meta, refuse
from .mixing import common_place, mixed_devices, no_ordinary_cpu_tensor, torchs_meta
from .predict import (
    RULES,
    collect,
    concrete,
    decompose,
    extent,
    infer,
    knowing_views,
    lazy_in,
    meta_tensor,
    multiplies_inside,
    quiet,
    taken_apart,
    tensors_in,
)

log = logging.getLogger("mindtorch.intercept")
# What the extension is handed (`_ext.intercept.init`), and the rest of the package uses.
__all__ = [
    "describe", "infer", "labelled", "lift", "mixed_devices", "note_fallback", "on_record",
    "run_eagerly", "run_whole", "set_label", "set_runtime", "show_log",
]
# Composite functions that fill tensors or mutate state in ways their schema does not show, or whose replay would
# depend on state that is not part of the call.
_NEVER_WHOLE = frozenset({
    "aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu", "aten::batch_norm", "aten::instance_norm",
    "aten::fractional_max_pool2d", "aten::fractional_max_pool3d",  # draw inside
    "aten::_add_batch_dim", "aten::_remove_batch_dim",  # torch's older vmap: wrappers, not values
})
#: What copies its input, or views it, or gives it back, as the arguments and its strides have it.
_MAY_COPY = frozenset({"aten::to", "aten::contiguous", "aten::reshape", "aten::flatten", "aten::type_as"})
#: Reductions of which only those without a dimension have another gradient formula for tensor subclasses.
_OF_ALL = frozenset({"aten::max", "aten::min", "aten::median", "aten::nanmedian"})
_ATTENTION = "aten::scaled_dot_product_attention"
fallback_counts: dict[str, int] = {}
_counting = threading.Lock()
os.register_at_fork(before=_counting.acquire, after_in_parent=_counting.release, after_in_child=_counting.release)
_META = torch.device("meta")
_runtime: Any = None  # set by mindtorch.tensors: materialize(tensors, reason, written, generator), device(), rng(index)


def set_runtime(runtime: Any) -> None:
    """Install what materializes values for ops that run eagerly (called once, by mindtorch.tensors)."""
    global _runtime
    _runtime = runtime


_label: Any = None


def set_label(label: Any) -> None:
    """Install what lets sparse tensors know that they are on the device (called once, by mindtorch.sparse)."""
    global _label
    _label = label


def labelled(t: torch.Tensor, place: int) -> Any:
    """``t``, which is on the device ``place`` and torch's own; if it is sparse, it knows."""
    return t if place < 0 else _label(t, place)


# ---- describe --------------------------------------------------------------------------------------------------------
def describe(func: Any, dispatch: bool) -> Any:
    """The OpInfo of a function met for the first time."""
    if isinstance(func, torch._ops.OpOverload):
        return _describe_overload(func)
    name = _name(func)
    if not dispatch and name is not None and _can_record_whole(func, name):
        guard = _default_attention if name == _ATTENTION else None
        row = ops.row(name)
        whole = row is not None and (row.whole or row.values_backward)
        return _intern.OpInfo(func, name, _intern.RECORD, handler=guard, whole=whole, writes=("out",) if whole else (),
                              pointwise=any(torch.Tag.pointwise in o.tags for o in _overloads(name)))
    kind = _intern.EAGER if dispatch else _intern.PASS
    plain_name = str(name or getattr(func, "__name__", "?"))
    in_place = plain_name.endswith("_") and not plain_name.endswith("__") and not plain_name.startswith("aten::_")
    info = _intern.OpInfo(func, plain_name, kind, writes=(0,) if in_place and not dispatch else (),
                          copies=plain_name in _MAY_COPY and not dispatch)
    if plain_name == _ATTENTION and not dispatch:  # never recorded whole, as it may draw; without dropout it does not
        info.copies, info.handler = True, _default_attention
    if kind == _intern.PASS and (row := ops.row(plain_name)) is not None and row.values_backward:
        info.kind, info.handler = _intern.HANDLER, functools.partial(_checked, info)
    return info


def _checked(info: Any, args: tuple, kwargs: dict) -> Any:
    mixed_devices(info, args, kwargs)
    return _with_values_backward(info, args, kwargs)


def _default_attention() -> bool:
    # With other kernels chosen (torch.nn.attention.sdpa_kernel), torch itself must pick when the op is recorded.
    return torch._C._get_flash_sdp_enabled() and torch._C._get_math_sdp_enabled()


def _name(func: Any) -> str | None:
    try:
        return ops.op_name(func)
    except (TypeError, ValueError, LookupError):
        return None


def _can_record_whole(func: Any, name: str) -> bool:
    row = ops.row(name)
    if name in _NEVER_WHOLE:
        return False
    if row is not None and (row.writes or (row.eager and name not in RULES)):
        return False
    if isinstance(func, types.FunctionType):  # Python code of torch's: the op's arguments, or others?
        same = row is not None and (func.__name__ in row.python or (row.whole and f"aten::{func.__name__}" == name))
        if not same or func.__name__.startswith("embedding"):  # embedding's max_norm writes
            return False
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    if packet is None:
        return False
    overloads = _overloads(name)
    pure = [o for o in overloads if not any(a.is_out for a in o._schema.arguments)]
    return bool(pure) and all(_is_pure(o) for o in pure)


def _overloads(name: str) -> list[Any]:
    """Overloads that take tensors. TorchScript has others, for numbers only (``aten::add.int``)."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
    return [o for o in (getattr(packet, o) for o in packet.overloads())
            if any("Tensor" in str(a.type) for a in o._schema.arguments)]


def _is_pure(overload: Any) -> bool:
    """Fresh tensor outputs, no mutation, no random draw, shapes known without data."""
    schema = overload._schema
    if any(a.alias_info is not None for a in (*schema.arguments, *schema.returns)):
        return False
    if not schema.returns or not all("Tensor" in str(r.type) for r in schema.returns):
        return False
    return not (data_dependent(overload) or torch.Tag.nondeterministic_seeded in overload.tags)


def data_dependent(overload: Any) -> bool:
    """Do the sizes of what the op gives, or what it gives, depend on data?"""
    return torch.Tag.dynamic_output_shape in overload.tags or torch.Tag.data_dependent_output in overload.tags


def _describe_overload(func: Any) -> Any:
    name = ops.op_name(func)
    row = ops.row(name)
    schema = func._schema
    if not torch._C._dispatch_has_kernel(func.name()):
        # TorchScript's own (aten::sym_size, aten::len, prim::device …): no kernel, but C++ code that asks the tensor or
        # calls what has one.
        if name == "prim::device":
            return _intern.OpInfo(func, name, _intern.HANDLER, handler=lambda args, kwargs: args[0].device)
        return _intern.OpInfo(func, name, _intern.PASS)
    writes: list[Any] = []
    for position, a in enumerate(schema.arguments):
        if a.alias_info is not None and a.alias_info.is_write:
            writes.append(a.name if a.kwarg_only else position)
    if row is not None:
        writes.extend(w for w in row.writes if w not in writes)
    kind = _intern.RECORD
    mispredicted = row is not None and row.eager and name not in RULES
    depends = data_dependent(func) and name != "aten::index"  # which does so for masks only: its meta kernel says
    no_kernel = not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU")
    if mispredicted or no_kernel or depends or torch.Tag.inplace_view in func.tags:
        kind = _intern.EAGER
    view = not writes and any(r.alias_info is not None for r in schema.returns)
    random = torch.Tag.nondeterministic_seeded in func.tags
    info = _intern.OpInfo(func, name, kind, call=func._op, random=random, writes=tuple(writes),
                          view=view, pointwise=torch.Tag.pointwise in func.tags or name == "aten::copy_",
                          bumps=bool(writes) and name.startswith("aten::_foreach_"))
    if taken_apart(func.name(), row):
        info.at_dispatch = functools.partial(_take_apart, func)
    elif row is not None and row.tag == "rnn":
        info.at_dispatch = functools.partial(_with_parameters, info)
    return info


def _take_apart(func: Any, args: tuple, kwargs: dict) -> Any:
    """Only inference mode hands composite calls down whole. What they come to says which results are views, and of what
    kind; calls without data stay as they are, since a profile sees them like that."""
    if any(_core.device_index(t) < 0 for t in lazy_in([*args, *kwargs.values()])):
        return NotImplemented
    return decompose(func, args, kwargs)


def _with_parameters(info: Any, args: tuple, kwargs: dict) -> Any:
    """Inside, torch multiplies with parameters in another way than with what a record is run on."""
    given = lazy_in([*args, *kwargs.values()])
    if torch.is_grad_enabled() or not any(_core.device_index(t) >= 0 and t.requires_grad for t in given):
        return NotImplemented
    return run_eagerly(info, args, kwargs)


# ---- when it cannot be recorded --------------------------------------------------------------------------------------
def lift(info: Any, args: tuple, kwargs: dict | None) -> Any:
    """Turn plain CPU tensors among the arguments into lazy constants; None if there is nothing to turn.

    At the dispatch level such tensors come from C++ (scalars, indices it made) or were let through by the device
    check at the function level. Tensors the op writes stay as they are: the op must then run eagerly.
    """
    device = common_place(info, args, kwargs or {})
    new_args = tuple(_turned(a, i in info.writes, device) for i, a in enumerate(args))
    new_kwargs = None if kwargs is None else {k: _turned(a, k in info.writes, device) for k, a in kwargs.items()}
    same = all(map(operator.is_, new_args, args)) and (
        new_kwargs is None or all(a is new_kwargs[k] for k, a in kwargs.items()))  # type: ignore[union-attr]
    return None if same else (new_args, new_kwargs)


def _turned(a: Any, write: bool, device: int) -> Any:
    """An argument with lazy constants for its plain CPU tensors; itself when there are none."""
    if isinstance(a, torch.Tensor):
        if device < 0 and not write and not a.is_sparse and (
            _core.get_handle(a) is None or _core.device_index(a) != device
        ):
            return as_meta(a, device)
        if _core.get_handle(a) is not None or write or type(a) not in (torch.Tensor, torch.nn.Parameter):
            return a
        if a.device.type != "cpu" or no_ordinary_cpu_tensor(a):
            return a
        with quiet():
            value = a.detach().clone().to(_runtime.device())
        return _core.hold(value, device, None, not a.requires_grad and torch.is_grad_enabled())
    if isinstance(a, (tuple, list)) and not isinstance(a, torch.Size):
        items = [_turned(item, write, device) for item in a]
        return a if all(map(operator.is_, items, a)) else type(a)(items)
    return a


def note_fallback(name: str) -> None:
    """Count a call that runs now because it cannot be recorded; the first of each op is logged."""
    with _counting:
        calls = fallback_counts.get(name, 0)
        fallback_counts[name] = calls + 1
    if not calls:
        log.info("%s runs eagerly: it cannot be recorded", name)


def run_eagerly(info: Any, args: tuple, kwargs: dict) -> Any:
    """Run an op now, on computed inputs; its results are lazy tensors again (SPEC L8)."""
    if any(torchs_meta(t) or _core.device_index(t) < 0 for t in tensors_in([*args, *kwargs.values()])):
        mixed_devices(info, args, kwargs)
        args, kwargs = lift(info, args, kwargs) or (args, kwargs)
    if meta.knowing is not None:
        inputs = list(lazy_in([*args, *kwargs.values()]))
        if inputs and _core.device_index(inputs[0]) < 0:
            return meta.knowing.run(info, args, kwargs, inputs, _run_eagerly)
    return _run_eagerly(info, args, kwargs)


def _run_eagerly(info: Any, args: tuple, kwargs: dict) -> Any:
    inputs: list[torch.Tensor] = []
    written = bytearray()
    for position, a in enumerate(args):
        collect(a, position in info.writes, inputs, written)
    for key, a in kwargs.items():
        collect(a, key in info.writes, inputs, written)
    for t in tensors_in([*args, *kwargs.values()]):
        if getattr(type(t), "_settle", None) is not None:
            t._settle()  # type: ignore[attr-defined]
    note_fallback(info.name)
    before = [t for t, w in zip(inputs, written, strict=True) if w]
    index = _core.device_index(inputs[0]) if inputs else 0
    device = _META if index < 0 else _runtime.device()
    if index < 0:
        named = {**dict(enumerate(args)), **kwargs}
        if not all(t.is_meta or _core.device_index(t) < 0 for t in tensors_in([named.get(w) for w in info.writes])):
            refuse(info.name)  # what has data cannot be written from here
        values = [meta_tensor(_core.get_handle(t)) for t in inputs]
    else:
        values = _runtime.materialize(inputs, info.name, before, index if info.random else None)
    with quiet(grad=True) as inside:
        if index >= 0 and not before and not torch.is_grad_enabled() and multiplies_inside(info.name):
            values = [v.detach().requires_grad_() if t.requires_grad else v
                      for t, v in zip(inputs, values, strict=True)]
            inside.also(knowing_views())
        if info.random and index >= 0:
            inside.also(_runtime.rng(index))
        if {torch.Tag.inplace_view, torch.Tag.out}.intersection(getattr(info.func, "tags", ())):
            for t in before:  # what else names or views the same value must keep its own sizes and strides
                _core.unshare(_core.get_handle(t))
            if index >= 0:
                values = [_core.value(_core.get_handle(t)) for t in inputs]
        storages = {_storage_key(v): t for t, v in zip(inputs, values, strict=True)}
        holes = iter(values)
        cargs = tuple(concrete(a, holes, device) for a in args)
        ckwargs = {k: concrete(a, holes, device) for k, a in kwargs.items()}
        failure: Exception | None = None
        depends = not isinstance(info.func, torch._ops.OpOverload) or data_dependent(info.func)
        try:
            out = info.call(*cargs, **ckwargs)
        except NotImplementedError as error:
            if index < 0 and not depends:
                text = str(error).splitlines()[0]
                raise UnsupportedOperationError(f"[{info.name}] torch cannot infer what it gives: {text}") from error
            if index < 0:
                refuse(info.name)
            if unsupported() == "zeros":
                return _zeros(info, args, kwargs, error)
            raise UnsupportedOperationError(f"[{info.name}] torch cannot run it on these inputs either: {error}") \
                from error
        except Exception as error:  # noqa: BLE001 - raised below
            if index < 0 and depends and not by_signal_handler(error):
                refuse(info.name)
            failure = error
    if before and not (torch.is_grad_enabled() and all(_core.needs_no_grad(_core.get_handle(t)) for t in inputs)):
        for t in before:
            _core.may_require_grad(_core.get_handle(t))
    # The wrappers are made in the program's own modes: in inference mode they are inference tensors, as in eager.
    wrapper = _Wrapper(inputs, values, index, device, (*args, *kwargs.values()))
    for t in before:
        wrapper.check_storage(t, storages)
        wrapper.check_metadata(info, t)  # a kernel resizes ``out=`` before it refuses the rest
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # it knows this frame, and this frame it: what both hold would wait for the collector
    if info.name == "aten::_pack_padded_sequence":
        return wrapper.wrap(out[0]), out[1]  # torch wants the batch sizes on the CPU
    return wrapper.wrap(out)


def run_whole(info: Any, args: tuple, kwargs: dict) -> Any:
    """Run an op that must not be taken apart, and could not be recorded whole; NotImplemented if torch may do it."""
    row = ops.row(info.name)
    if row is None or not _alone():
        return NotImplemented
    if not row.whole:
        return _with_values_backward(info, args, kwargs)
    if torch.is_grad_enabled() and any(t.requires_grad for t in lazy_in([*args, *kwargs.values()])):
        return NotImplemented  # torch itself takes the other way then, as it does for a tensor subclass
    if row.tag == "matmul" and kwargs.get("out") is None:
        return NotImplemented  # torch knows best how; only into out= it wants more of a wrapper than ours have
    return run_eagerly(info, args, kwargs)


def _alone() -> bool:
    """No mode, transform, tangent or autocast stands between the call and the kernel."""
    return not (torch._C._len_torch_dispatch_stack() or torch._C._is_any_autocast_enabled()
                or torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0)


def _with_values_backward(info: Any, args: tuple, kwargs: dict) -> Any:
    if not _alone() or "out" in kwargs or (info.writes == (0,) and args[0]._is_view()):
        return NotImplemented
    asked: Any = (args, *kwargs.values())
    if info.name.startswith("aten::masked_fill"):
        asked = (args[2:], kwargs.get("value"))  # only the gradient for the value has another formula
    elif info.name in _OF_ALL and len(asked) + len(args) > 2:
        return NotImplemented  # only those over all elements have
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in lazy_in(asked)):
        return NotImplemented

    def call() -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return info.func(*args, **kwargs)

    return on_values(call, _runtime.materialize, info.name)


def _zeros(info: Any, args: tuple, kwargs: dict, error: Exception) -> Any:
    spec = infer(info, args, kwargs, True, check=False)
    if spec is None:
        raise UnsupportedOperationError(f"[{info.name}] {error}; its result's shape is unknown too") from error
    log.warning("[%s] %s; returning zeros (GENIE_UNSUPPORTED=zeros)", info.name, error)
    made = [_core.hold(torch.zeros(o[1], dtype=o[0], device=_runtime.device()), o[4], None, True) for o in spec[0]]
    return made[0] if spec[2] is None else tuple(made)


class _Wrapper:
    """Turns the results of an eager run into lazy tensors that share storage as the results do."""

    def __init__(self, inputs: list[torch.Tensor], values: list[torch.Tensor], place: int, device: torch.device,
                 args: tuple) -> None:
        self.place = place
        self.device = device
        self.values = {id(t): v for t, v in zip(inputs, values, strict=True)}
        self.same: dict[int, Any] = {id(a): a for a in args if isinstance(a, torch.Tensor)}  # plain out=, copy_ target
        self.same.update((id(v), t) for t, v in zip(inputs, values, strict=True))
        self.roots = {_storage_key(v): t for t, v in zip(inputs, values, strict=True)}

    def wrap(self, out: Any) -> Any:
        if isinstance(out, torch.Tensor):
            if id(out) in self.same:
                return self.same[id(out)]
            if out.device != self.device or out.layout is not torch.strided or out.is_nested or out.is_quantized:
                # Meta, another device, nested, quantized: stays torch's own. So does what is sparse, with its place.
                return labelled(out, self.place)
            key = _storage_key(out)
            lazy = _core.hold(out, self.place, self.roots.get(key), False)
            self.roots.setdefault(key, lazy)
            return lazy
        if isinstance(out, (tuple, list)):
            items = [self.wrap(item) for item in out]
            return type(out)(*items) if hasattr(out, "_fields") else type(out)(items)
        return out

    def check_storage(self, t: torch.Tensor, before: dict[int, torch.Tensor]) -> None:
        """``set_`` gave ``t`` another storage: from now on it aliases whatever has that one."""
        handle = _core.get_handle(t)
        value = self.values[id(t)]
        root = before.get(_storage_key(value))
        if root is None or not _core.same_root(handle, _core.get_handle(root)):
            _core.rebind(handle, _core.get_handle(self._replace(t, value, root)))
            handle.no_grad = False  # to autograd it may still be a view of what it was

    def check_metadata(self, info: Any, t: torch.Tensor) -> None:
        handle = _core.get_handle(t)
        value = self.values[id(t)]
        _dtype, size, stride, offset, _device = _core.meta_of(handle)
        same_bits = _core.view_bits(value) == _core.view_bits(handle)
        same_layout = (value.shape, value.storage_offset()) == (size, offset) and (
            _core.canonical(value.shape, value.stride()) == stride
        )
        if same_layout and same_bits:
            return
        _core.set_meta(handle, value)
        if not same_bits:
            torch._C._set_conj(t, value.is_conj())  # lu_solve leaves ``out=`` conjugated
            torch._C._set_neg(t, value.is_neg())
        if same_layout:
            return
        if extent(value.shape, value.stride(), value.storage_offset()) <= extent(size, stride, offset) and (
            torch.Tag.inplace_view in getattr(info.func, "tags", ())
        ):
            with torch._C._DisableTorchDispatch():  # sizes and strides of the C++ side; autograd knows the view op
                torch.ops.aten.as_strided_.default(t, value.shape, value.stride(), value.storage_offset())
        else:
            self._replace(t, value, t)  # not within the storage that C++ believes in: give it another one

    def _replace(self, t: torch.Tensor, value: torch.Tensor, root: Any) -> Any:
        fresh = _core.hold(value, self.place, root, True)
        with torch._C.DisableTorchFunctionSubclass():
            torch._C.TensorBase.data.__set__(t, fresh)  # type: ignore[attr-defined]
        return fresh


def _storage_key(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata if t.layout is torch.strided else id(t)


# ---- small callbacks -------------------------------------------------------------------------------------------------
def show_log() -> None:
    """Make the log visible also in a program that does not set up logging."""
    log.setLevel(logging.INFO)
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())


def on_record(name: str, args: tuple) -> None:
    """GENIE_LOG_INTERCEPTS=1: one line per captured op."""
    log.info("captured %s", name)
