"""What a program finds in torch where ``cuda`` is no CUDA device, whatever it is instead."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..base.patching import Patch

__all__ = ["generators_made_by", "of_cuda"]


def of_cuda(said: dict[str, Any]) -> Iterator[Patch]:
    """What ``torch.cuda`` says, with the modules that it has these names from, and nvtx, which marks nothing."""
    nothing = dict.fromkeys(
        ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA", "deviceRangeStart", "deviceRangeEnd"),
        lambda *args: 0,
    )
    yield torch.cuda.nvtx, "_nvtx", types.SimpleNamespace(**nothing)
    for name in ("start", "stop"):
        yield torch.cuda.profiler, name, lambda: None
    for module in (torch.cuda, torch.cuda.random, torch.cuda.memory, torch.cuda.graphs):
        for name, value in said.items():
            if module is torch.cuda or (name in vars(module) and vars(module)[name] is getattr(torch.cuda, name, None)):
                yield module, name, value


_torch_generator = torch.Generator


def generators_made_by(make: Callable[[Any], torch.Generator]) -> type:
    """A class to stand for ``torch.Generator``: what it gives for a device, ``make(device)`` gives."""

    class AnyGenerator(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, _torch_generator)

    class Generator(metaclass=AnyGenerator):
        def __new__(cls, device: Any = "cpu") -> Any:
            return make(device)

    Generator.__module__, Generator.__qualname__ = "torch", "Generator"  # where pickle finds it
    return Generator
