"""What the compiled interception asks Python: what an op is, what it gives, how to run it when it cannot wait.

The answers are asked for once per function (`describe`) or once per distinct call (`infer`); both are memoized by
the extension, so this file is off the hot path except for ops that run eagerly.
"""

from __future__ import annotations

import functools
import logging
import types
from typing import Any

import torch

from ... import ops
from ..._ext import intern as _intern
from ..._ext import lazy as _core
from ..._ext import view_chains as _view_chains
from ...devices import mode
from ...ops import schema
from . import lists
from .arguments import tensors_in
from .eager import lift, run_eagerly, run_whole, with_values_backward
from .mixing import joined, mixed_devices
from .placed import on_named_device
from .predict import RULES, decompose, infer, lazy_in, multiplies_inside, taken_apart

log = logging.getLogger("mindtorch.intercept")
# What the extension is handed (`_ext.intercept.init`), and the rest of the package uses.
__all__ = [
    "describe",
    "give_nodes",
    "infer",
    "joined",
    "lift",
    "mixed_devices",
    "on_record",
    "run_eagerly",
    "run_whole",
    "show_log",
    "without_nodes",
]


# ---- describe --------------------------------------------------------------------------------------------------------
def describe(func: Any, dispatch: bool) -> Any:
    """The OpInfo of a function met for the first time."""
    if isinstance(func, torch._ops.OpOverload):
        return _describe_overload(func)
    name = _name(func)
    if not dispatch and name is not None and _can_record_whole(func, name):
        whole = (row := ops.about(name)).whole or row.values_backward
        return _intern.OpInfo(
            func,
            name,
            _intern.RECORD,
            handler=lists.guard(name),
            whole=whole,
            writes=("out",) if whole else (),
            pointwise=_is_pointwise(name),
        )
    kind = _intern.EAGER if dispatch else _intern.PASS
    plain_name = str(name or getattr(func, "__name__", "?"))
    in_place = plain_name.endswith("_") and not plain_name.endswith("__") and not plain_name.startswith("aten::_")
    writes = in_place and not dispatch
    view = not dispatch and (func is torch.Tensor.__getitem__ or ops.about(plain_name).tag == "view")
    repeats = kind == _intern.PASS and isinstance(func, _COMPILED) and plain_name.startswith("aten::")
    repeats = repeats and plain_name != "aten::numpy_T"  # which warns, of tensors that are no matrices
    info = _intern.OpInfo(
        func,
        plain_name,
        kind,
        writes=(0,) if writes else (),
        copies=ops.about(plain_name).may_copy and not dispatch,
        pointwise=repeats and writes and _is_pointwise(plain_name),
        view=view and not in_place,
    )
    info.of_dtype = _OF_DTYPE.get(func)
    info.short = repeats and (info.view or info.copies or writes or plain_name in _AUGMENTED)
    if kind == _intern.PASS and ops.about(plain_name).values_backward:
        info.kind, info.handler = _intern.HANDLER, functools.partial(_checked, info)
    return info


#: Functions that optimizers ask of each parameter, by the attribute of the dtype that answers them.
_OF_DTYPE = {getattr(torch._C._VariableFunctions, name): name for name in ("is_complex", "is_floating_point")}
#: ``+=`` and its like.
_AUGMENTED = frozenset(f"aten::__i{name}__" for name in "add sub mul truediv and or xor lshift rshift".split())
#: Functions of torch's in C++: without Python code that could do something else the next time.
_COMPILED = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
)


def _is_pointwise(name: str) -> bool:
    return any(torch.Tag.pointwise in o.tags for o in schema.overloads(name))


def _checked(info: Any, args: tuple, kwargs: dict) -> Any:
    mixed_devices(info, args, kwargs)
    return with_values_backward(info, args, kwargs)


def _name(func: Any) -> str | None:
    try:
        return ops.op_name(func)
    except (TypeError, ValueError, LookupError):
        return None


def _can_record_whole(func: Any, name: str) -> bool:
    row = ops.about(name)
    if row.never_whole or row.writes or (row.eager and name not in RULES):
        return False
    if isinstance(func, types.FunctionType):  # Python code of torch's: the op's arguments, or others?
        same = func.__name__ in row.python or (row.whole and f"aten::{func.__name__}" == name)
        if not same or func.__name__.startswith("embedding"):  # embedding's max_norm writes
            return False
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    if packet is None:
        return False
    pure = [o for o in schema.overloads(name) if not schema.has_out(o)]
    return bool(pure) and all(schema.is_pure(o) for o in pure)


def _describe_overload(func: Any) -> Any:
    name = ops.op_name(func)
    row = ops.about(name)
    if not torch._C._dispatch_has_kernel(func.name()):
        # TorchScript's own (aten::sym_size, aten::len, prim::device …): no kernel, but C++ code that asks the tensor or
        # calls what has one.
        if name == "prim::device":
            return _intern.OpInfo(func, name, _intern.HANDLER, handler=lambda args, kwargs: args[0].device)
        info = _intern.OpInfo(func, name, _intern.PASS)
        info.at_function = on_named_device(func)
        return info
    writes = schema.writes(func)
    kind = _intern.RECORD
    mispredicted = row.eager and not row.as_seen and name not in RULES
    # aten::index does so for masks only: its meta kernel says.
    depends = schema.data_dependent(func) and name != "aten::index"
    no_kernel = not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU")
    if mispredicted or no_kernel or depends or torch.Tag.inplace_view in func.tags:
        kind = _intern.EAGER
    view = not writes and schema.gives_aliases(func)
    random = schema.draws(func)
    info = _intern.OpInfo(
        func,
        name,
        kind,
        call=func._op,
        random=random,
        writes=writes,
        view=view,
        pointwise=torch.Tag.pointwise in func.tags or name == "aten::copy_",
        bumps=bool(writes) and name.startswith("aten::_foreach_"),
    )
    info.at_function = on_named_device(func)
    if func.namespace in _COLLECTIVES:
        info.at_dispatch = functools.partial(_collective, func)
    elif taken_apart(func.name(), row):
        info.at_dispatch = functools.partial(_take_apart, func)
    elif row.as_seen:
        info.at_dispatch = functools.partial(_as_seen, info, _intern.OpInfo(func, name, kind, call=func._op))
    elif multiplies_inside(name):
        info.at_dispatch = functools.partial(_with_parameters, info)
    elif (each := lists.one_by_one(func)) is not None:
        info.at_dispatch = each
    elif name == "aten::masked_scatter":
        info.at_dispatch = _scattered_gradient
    elif name == "aten::_new_zeros_with_same_feature_meta":
        info.at_dispatch = _zeros_for_a_tangent
    elif func is torch.ops.aten.as_strided.default:
        info.at_dispatch = _view_chains.take
    elif name in ("aten::_make_dual", "aten::_fw_primal"):  # come here in inference mode only: torch knows no tangents
        info.at_dispatch = lambda args, kwargs: torch.ops.aten.alias(args[0])
    return info


_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd")


def _collective(func: Any, args: tuple, kwargs: dict) -> Any:
    """What ranks do together, in an estimate of one of them."""
    return NotImplemented if mode.now.ranks is None else mode.now.ranks.functional(func, args, kwargs)


def _zeros_for_a_tangent(args: tuple, kwargs: dict) -> Any:
    """Autograd conjugates or negates these as the primal is, by a mark in C++ of which nothing is heard here."""
    tangent, primal, *rest = args
    if not (primal.is_conj() or primal.is_neg()):
        return NotImplemented
    plain = primal.conj() if primal.is_conj() else primal
    plain = plain._neg_view() if plain.is_neg() else plain
    zeros = torch.ops.aten._new_zeros_with_same_feature_meta(tangent, plain, *rest, **kwargs)
    zeros = zeros.conj() if primal.is_conj() else zeros
    return zeros._neg_view() if primal.is_neg() else zeros


def _take_apart(func: Any, args: tuple, kwargs: dict) -> Any:
    """Inference mode hands composite calls down whole. What they come to says which results are views, and of what
    kind; calls without data stay as they are, since a profile sees them like that. So do those with nested tensors,
    which autograd hands down whole: they have kernels of their own."""
    given = [*args, *kwargs.values()]
    if any(_core.device_index(t) < 0 for t in lazy_in(given)) or any(t.is_nested for t in tensors_in(given)):
        return NotImplemented
    return decompose(func, args, kwargs)


def _with_parameters(info: Any, args: tuple, kwargs: dict) -> Any:
    """Inside, torch multiplies with parameters in another way than with what a record is run on."""
    given = lazy_in([*args, *kwargs.values()])
    if torch.is_grad_enabled() or not any(_core.device_index(t) >= 0 and t.requires_grad for t in given):
        return NotImplemented
    return run_eagerly(info, args, kwargs)


def _as_seen(info: Any, without: Any, args: tuple, kwargs: dict) -> Any:
    """Such kernels ask for themselves whether there will be a backward pass: without, it is another kind of call."""
    if any(_core.device_index(t) < 0 for t in lazy_in(args)):
        return run_eagerly(info, args, kwargs)
    return NotImplemented if torch.is_grad_enabled() else without


def _scattered_gradient(args: tuple, kwargs: dict) -> Any:
    """Only into the gradients of tensor subclasses does the formula of ``masked_select`` scatter out of place, which
    makes them contiguous; it begins with zeros laid out like the input."""
    zeros = args[0]
    if torch.is_grad_enabled() or torch._C._current_graph_task_id() < 0 or _core.get_handle(zeros) is None:
        return NotImplemented
    return torch.ops.aten.masked_scatter_(zeros.clone(), *args[1:], **kwargs)


# ---- small callbacks -------------------------------------------------------------------------------------------------
def show_log() -> None:
    """Make the log visible also in a program that does not set up logging."""
    log.setLevel(logging.INFO)
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())


def on_record(name: str, args: tuple) -> None:
    """GENIE_LOG_INTERCEPTS=1: one line per captured op."""
    log.info("captured %s", name)


def without_nodes(func: Any, before: int, again: bool, args: tuple, kwargs: dict) -> tuple | None:
    """See `integer_views.without_nodes`; few programs need it."""
    from .integer_views import without_nodes

    return without_nodes(func, before, again, args, kwargs)


def give_nodes(tensors: Any) -> bool:
    """See `integer_views.give_nodes`."""
    from .integer_views import give_nodes

    return give_nodes(tensors)
