"""Functions by name: what a message may call, and under which name it goes (SPEC R3).

Names are looked up in tables, made once from torch, of what has an operator of aten's on tensors behind it; no
attribute is asked for by a name that came in. All else (what opens files, what TorchScript adds, communication,
quantization, other libraries, operators of the program's own, and internals that believe what they are given) runs
where the program is.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ... import ops
from ..._ext.intern import RECORD, OpInfo
from ...base.patching import for_builtins
from ...ops.bounds import REFUSED, looking, looking_inside
from .. import passes
from ..record.handlers import made_like
from .wire import WireError

__all__ = ["called", "may_alias", "name_of", "names", "ways"]
SEED = "genie::manual_seed"  # recorded while the device's generator stands for torch's default one

_OWNERS: tuple[tuple[str, Any], ...] = (
    ("torch", torch),
    ("torch", torch._C._VariableFunctions),
    ("Tensor", torch.Tensor),
    ("Tensor", torch._C.TensorBase),
    ("nn", torch._C._nn),
    ("functional", torch.nn.functional),
    ("fft", torch._C._fft),
    ("linalg", torch._C._linalg),
    ("special", torch._C._special),
    ("sparse", torch._C._sparse),
    ("nested", torch._C._nested),
)


@functools.cache
def _table() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for prefix, owner in _OWNERS:
        for name in sorted(vars(owner)) if isinstance(owner, type) else sorted(dir(owner)):
            function = getattr(owner, name)
            if isinstance(function, types.FunctionType):  # in an estimate, one may stand in the place of torch's
                function = for_builtins.get(function, function)
            if callable(function) and not isinstance(function, type) and _is_operation(function):
                found.setdefault(f"{prefix}.{name}", function)
    return found


def names() -> Iterable[str]:
    """The names that are in the table."""
    return _table()


#: What an operator takes and gives that a message may name: it is on tensors and numbers, and nothing else.
_KINDS = frozenset({"Tensor", "int", "bool", "number", "float", "str", "Device", "Generator"})


def _is_dispatched(schema: Any) -> bool:
    """Does torch dispatch it by its tensors? Others are TorchScript's, and do what Python can."""
    return torch._C._dispatch_has_kernel(_full_name(schema))


def _is_on_tensors(schema: Any) -> bool:
    if not _is_dispatched(schema):
        return False
    kinds = {re.sub(r"(Optional|List)\[|\]", "", str(a.type)) for a in (*schema.arguments, *schema.returns)}
    return "Tensor" in kinds and kinds <= _KINDS


def _is_for_messages(name: str) -> bool:
    return name.startswith("aten::") and not REFUSED.fullmatch(name)


@functools.lru_cache(maxsize=4096)
def _overloads(name: str) -> frozenset[str]:
    """Of an operator, those of its overloads that may be called, as schemas name them; none of others."""
    if not _is_for_messages(name):
        return frozenset()
    return frozenset(s.overload_name for s in torch._C._jit_get_schemas_for_operator(name) if _is_on_tensors(s))


def _is_operation(function: Any) -> bool:
    try:
        name = ops.op_name(function)
    except (TypeError, ValueError, LookupError):
        return False
    return _is_for_messages(name) and any(map(_is_dispatched, torch._C._jit_get_schemas_for_operator(name)))


@functools.cache
def _names() -> dict[Any, str]:
    return {_identity(function): name for name, function in _table().items()}


def _identity(function: Any) -> Any:
    """The same for a function of torch's C++ and for what stands behind it where the program has it hooked."""
    if isinstance(function, types.BuiltinFunctionType):
        return id(function.__self__), function.__name__
    return id(function)


def _qualified(overload: Any) -> str:
    return f"{overload._schema.name}.{overload._overloadname}"


def name_of(info: Any) -> str:
    """The name under which an OpInfo's function goes; WireError where it cannot."""
    call = info.call
    if isinstance(call, functools.partial) and call.func is made_like:
        name = _qualified(call.args[0])
        _overload(name)
        return f"like {name}"
    if isinstance(info.func, torch._ops.OpOverload) and call in (info.func, info.func._op):
        name = _qualified(info.func)
        _overload(name)
        return f"op {name}"
    found = SEED if info.name == SEED else _names().get(_identity(call))
    if found is None:
        raise WireError(f"[{info.name}] expected a function of torch's, got {call!r}")
    return found


@functools.lru_cache(maxsize=4096)
def called(name: str) -> Callable[..., Any]:
    """The function that goes under a name, which looks first where its kernel does not. WireError: there is none."""
    kind, _, rest = name.partition(" ")
    if kind in ("op", "like") and rest:
        overload = _overload(rest)
        return functools.partial(made_like, overload) if kind == "like" else looking(overload)
    found = torch.default_generator.manual_seed if name == SEED else _table().get(name)
    if found is None:
        raise WireError(f"expected the name of an operation, got {name[:80]!r}")
    return looking_inside(found, ops.op_name(found))


@functools.lru_cache(maxsize=4096)
def ways(name: str) -> OpInfo:
    """The same function as passes see it, who may know a shorter way to call it, and one in place. None of them goes
    around what looks first.
    """
    function = called(name)
    kind, _, rest = name.partition(" ")
    if kind == "op" and function is (overload := _overload(rest))._op:
        info = OpInfo(overload, overload._schema.name, RECORD, call=function)
    elif function is _table().get(name):
        info = OpInfo(function, ops.op_name(function), RECORD)
    else:
        return OpInfo(function, name, RECORD)
    passes.ask(info)
    return info


@functools.lru_cache(maxsize=4096)
def may_alias(name: str) -> bool:
    """May the function of this name give tensors on memory that a kernel has not just made?"""
    kind, _, rest = name.partition(" ")
    if kind == "like" or name == SEED:
        return False
    operator, _, overload = rest.rpartition(".") if kind == "op" else (ops.op_name(_table()[name]), "", None)
    return any(
        any(r.alias_info is not None and not r.alias_info.is_write for r in s.returns)
        or torch._C._dispatch_has_kernel_for_dispatch_key(_full_name(s), "CompositeImplicitAutograd")
        for s in torch._C._jit_get_schemas_for_operator(operator)
        if _is_dispatched(s) and overload in (None, s.overload_name or "default")
    )


def _full_name(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}".rstrip(".")


def _overload(name: str) -> Any:
    """An overload that may be called; WireError where the name is not one's."""
    operator, _, overload = name.rpartition(".")
    if ("" if overload == "default" else overload) not in _overloads(operator):
        raise WireError(f"expected an ATen operator on tensors that checks its arguments, got {name[:80]!r}")
    return getattr(getattr(torch.ops.aten, operator.partition("::")[2]), overload)
