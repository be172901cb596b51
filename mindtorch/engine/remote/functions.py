"""Functions by name: what a message may call, and under which name it goes (SPEC R3).

Names are looked up in tables, made once from torch, of what has an ATen operation behind it; no attribute is asked for
by a name that came in. Operators of other libraries go where they are registered, too.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ... import ops
from ..record.arguments import extent
from ..record.handlers import made_like
from .wire import WireError

__all__ = ["called", "comes_with_torch", "name_of", "names"]
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
            if callable(function) and not isinstance(function, type) and _is_operation(function):
                found.setdefault(f"{prefix}.{name}", function)
    return found


def comes_with_torch(name: str) -> bool:
    """Has every torch of the same version this function?"""
    _kind, _, rest = name.partition(" ")
    return not rest or rest.startswith(("aten::", "prim::", "prims::"))


def names() -> Iterable[str]:
    """The names that are in the table."""
    return _table()


#: They open files, or trust what they are told of other tensors' contents.
_UNSAFE = re.compile(r"aten::(from_file|_sparse_\w+_unsafe|_unsafe_(masked_)?index\w*|_test_\w+)")


def _is_operation(function: Any) -> bool:
    try:
        name = ops.op_name(function)
    except (TypeError, ValueError, LookupError):
        return False
    return not _UNSAFE.fullmatch(name) and bool(torch._C._jit_get_schemas_for_operator(name))


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
        return f"like {_qualified(call.args[0])}"
    if _UNSAFE.fullmatch(info.name):
        raise WireError(f"[{info.name}] expected an operator that checks what it is given")
    if isinstance(info.func, torch._ops.OpOverload) and call in (info.func, info.func._op):
        return f"op {_qualified(info.func)}"
    name = SEED if info.name == SEED else _names().get(_identity(call))
    if name is None:
        raise WireError(f"[{info.name}] expected a function of torch's, got {call!r}")
    return name


@functools.lru_cache(maxsize=4096)
def called(name: str) -> Callable[..., Any]:
    """The function that goes under a name; WireError where there is none."""
    kind, _, rest = name.partition(" ")
    if kind in ("op", "like") and rest:
        overload = _overload(rest)
        return functools.partial(made_like, overload) if kind == "like" else _checking(overload)
    found = torch.default_generator.manual_seed if name == SEED else _table().get(name)
    if found is None:
        raise WireError(f"expected the name of an operation, got {name[:80]!r}")
    return _safe_segments if name == "torch.segment_reduce" else found


def knows(name: str) -> bool:
    """Is there a function of this name?"""
    try:
        called(name)
    except WireError:
        return False
    return True


def _checking(overload: Any) -> Callable[..., Any]:
    """What an overload runs; where its kernel does not look whether it stays within memory, something that does."""
    if overload is torch.ops.aten._reshape_alias.default:
        return _alias_within
    if overload._schema.name == "aten::segment_reduce" and overload is not torch.ops.aten.segment_reduce.out:
        return _safe_segments
    return overload._op


def _alias_within(t: torch.Tensor, size: Any, stride: Any) -> torch.Tensor:
    there, wanted = t.untyped_storage().nbytes(), extent(size, stride, t.storage_offset()) * t.dtype.itemsize
    if wanted > there:
        raise RuntimeError(f"[aten::_reshape_alias] expected a view within {there} bytes, got one of {wanted}")
    return torch.ops.aten._reshape_alias(t, size, stride)


def _safe_segments(*args: Any, **kwargs: Any) -> torch.Tensor:
    kwargs.pop("unsafe", None)  # with it, the kernel believes lengths and offsets
    return torch.segment_reduce(*args, **kwargs)


def _overload(name: str) -> Any:
    qualified, _, overload = name.rpartition(".")
    namespace, _, base = qualified.partition("::")
    if _UNSAFE.fullmatch(qualified):
        raise WireError(f"expected an operator that checks what it is given, got {qualified}")
    if not (namespace.isidentifier() and base.isidentifier() and torch._C._jit_get_schemas_for_operator(qualified)):
        raise WireError(f"expected the name of an operator, got {name[:80]!r}")
    packet = getattr(getattr(torch.ops, namespace), base)
    if overload not in packet.overloads():
        raise WireError(f"expected an overload of {qualified}, got {overload[:80]!r}")
    return getattr(packet, overload)
