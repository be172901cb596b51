"""What torch's own schema says of an op: its overloads, whether it is pure, whether its sizes depend on data."""

from __future__ import annotations

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


def is_pure(overload: Any) -> bool:
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
