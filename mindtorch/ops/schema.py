"""What torch's own schema says of an op. Nothing else of mindtorch reads schemas."""

from __future__ import annotations

import functools
from typing import Any

import torch


def overloads(name: str) -> list[Any]:
    """Overloads that take tensors. TorchScript has others, for numbers only (``aten::add.int``)."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
    return [
        o
        for o in (getattr(packet, o) for o in packet.overloads())
        if any("Tensor" in str(a.type) for a in o._schema.arguments)
    ]


def tag(name: str) -> str:
    """That of an op which torch's own tags and schemas tell all about; empty for others."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None) if name.startswith("aten::") else None
    found = overloads(name) if isinstance(packet, torch._ops.OpOverloadPacket) else []
    tags = {tag for overload in found for tag in overload.tags}
    if torch.Tag.view_copy in tags:
        return "data movement"
    if torch.Tag.pointwise in tags:
        return "elementwise"
    makes = [o for o in found if not has_out(o) and torch._C._dispatch_has_kernel(o.name())]  # others are TorchScript's
    return "view" if makes and all(map(is_view, makes)) else ""


@functools.cache
def numbers(name: str) -> frozenset[int | str]:
    """Positions and names of the arguments of an op that are numbers and never sizes, in any of its overloads."""
    found: dict[bool, set[int | str]] = {True: set(), False: set()}
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    for overload in () if packet is None else (getattr(packet, o) for o in packet.overloads()):
        schema = overload._schema
        if not any("Tensor" in str(a.type) for a in (*schema.arguments, *schema.returns)):
            continue
        for position, a in enumerate(schema.arguments):
            kind = str(a.type)
            if "number" in kind or "float" in kind or "int" in kind.lower():
                found["int" in kind.lower()].update((a.name,) if a.kwarg_only else (a.name, position))
    return frozenset(found[False] - found[True])


def is_pure(overload: Any) -> bool:
    """Fresh tensor outputs, no mutation, no random draw, shapes known without data."""
    schema = overload._schema
    if any(a.alias_info is not None for a in (*schema.arguments, *schema.returns)):
        return False
    if not schema.returns or not all("Tensor" in str(r.type) for r in schema.returns):
        return False
    return not (data_dependent(overload) or draws(overload))


#: Torch says that they draw, but what they would draw for, a dropout, they refuse.
_REFUSING_DROPOUT = frozenset({"aten::_scaled_dot_product_flash_attention_for_cpu"})


def draws(overload: Any) -> bool:
    """Does the op draw random numbers?"""
    return torch.Tag.nondeterministic_seeded in overload.tags and overload.name() not in _REFUSING_DROPOUT


def has_out(overload: Any) -> bool:
    """Is it the overload that writes into ``out=``?"""
    return any(a.is_out for a in overload._schema.arguments)


def data_dependent(overload: Any) -> bool:
    """Do the sizes of what the op gives, or what it gives, depend on data?"""
    return torch.Tag.dynamic_output_shape in overload.tags or torch.Tag.data_dependent_output in overload.tags


def argument_names(overload: Any) -> list[str]:
    """Of its arguments, in order."""
    return [a.name for a in overload._schema.arguments]


def defaults(overload: Any) -> dict[str, Any]:
    """What its arguments are where they are not given, in order; None of those that must be."""
    return {a.name: a.default_value for a in overload._schema.arguments}


def in_order(overload: Any, named: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Arguments by name as it is called with them."""
    keywords = {a.name for a in overload._schema.arguments if a.kwarg_only}
    args = tuple(value for name, value in named.items() if name not in keywords)
    return args, {name: value for name, value in named.items() if name in keywords}


def writes_told(overload: Any) -> list[int | str]:
    """The arguments that the op writes, as far as its schema tells: positions, or names of keyword-only ones."""
    return [
        a.name if a.kwarg_only else position
        for position, a in enumerate(overload._schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    ]


def writes(overload: Any) -> tuple[int | str, ...]:
    """The same, with what the schema does not tell of: running statistics and the like."""
    from .table import about  # which asks for tags

    found = writes_told(overload)
    return (*found, *(w for w in about(overload._schema.name).writes if w not in found))


def gives_aliases(overload: Any) -> bool:
    """Does any of what it gives share memory with an argument, or is one?"""
    return any(r.alias_info is not None for r in overload._schema.returns)


def takes_views(overload: Any) -> bool:
    """May what it gives share the memory of an argument that it does not write?"""
    return any(a.alias_info is not None and not a.alias_info.is_write for a in overload._schema.arguments)


def is_view(overload: Any) -> bool:
    """Is all that it gives a view of an argument, and nothing written?"""
    returns = [r.alias_info for r in overload._schema.returns]
    return bool(returns) and all(info is not None and not info.is_write for info in returns)


def may_copy(overload: Any) -> bool:
    """May what it gives have memory of its own although the schema says that it is a view: ``to``, ``reshape``? Torch
    takes such ops apart, but in inference mode."""
    if not is_view(overload):  # others may be known to TorchScript alone (prim::device), of which the dispatcher raises
        return False
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd"))


def allocates(overload: Any) -> bool:
    """Does it give a tensor with memory of its own?"""
    from .table import about

    return about(overload._schema.name).adopts or any(r.alias_info is None for r in overload._schema.returns)
