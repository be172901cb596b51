"""What a module holds, in the order of torch's methods, but whatever its class makes of them.

A class may call something else ``parameters``, ``modules`` or ``children``: a list, an attribute.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch

__all__ = ["first_parameter", "held", "modules", "named_modules", "named_tensors"]


def named_modules(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The module itself, its name empty, and all under it, each once, parents first."""
    todo: list[tuple[str, torch.nn.Module | None]] = [("", root)]
    seen: set[int] = set()
    while todo:
        name, module = todo.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        yield name, module
        children = [(f"{name}.{child}" if name else child, found) for child, found in module._modules.items()]
        todo.extend(reversed(children))


def modules(root: torch.nn.Module) -> Iterator[torch.nn.Module]:
    return (module for _, module in named_modules(root))


def first_parameter(root: torch.nn.Module) -> torch.nn.Parameter | None:
    every = chain.from_iterable(module._parameters.values() for module in modules(root))
    return next((parameter for parameter in every if parameter is not None), None)


def named_tensors(root: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, then buffers, each once."""
    seen: set[int] = set()
    for kind in ("_parameters", "_buffers"):
        for prefix, module in named_modules(root):
            for name, tensor in getattr(module, kind).items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{prefix}.{name}" if prefix else name, tensor


def held(module: torch.nn.Module) -> tuple[list[torch.nn.Parameter], list[torch.Tensor]]:
    """(parameters, buffers) of `module` and of all that is under it, each once.

    In the order of ``parameters()`` and ``buffers()``, which name each one, and take many times as long.
    """
    parameters: dict[int, torch.nn.Parameter] = {}
    buffers: dict[int, torch.Tensor] = {}
    todo: list[torch.nn.Module | None] = [module]
    seen: set[int] = set()
    while todo:
        holder = todo.pop()
        if holder is None or id(holder) in seen:
            continue
        seen.add(id(holder))
        for parameter in holder._parameters.values():
            if parameter is not None:
                parameters[id(parameter)] = parameter
        for buffer in holder._buffers.values():
            if buffer is not None:
                buffers[id(buffer)] = buffer
        todo.extend(reversed(holder._modules.values()))
    return list(parameters.values()), list(buffers.values())
