"""Attributes that are others for a while: of torch's modules, where a program looks for answers."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

__all__ = ["generators_made_by", "of_cuda", "replaced"]


@contextmanager
def replaced(replacements: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """(owner, name, value): the attribute has this value for the length of the block."""
    with ExitStack() as stack:
        for owner, name, value in replacements:
            own = name in vars(owner)
            before = vars(owner).get(name)
            setattr(owner, name, value)
            if own:
                stack.callback(setattr, owner, name, before)
            else:
                stack.callback(delattr, owner, name)
        yield


def of_cuda(said: dict[str, Any]) -> Iterator[tuple[Any, str, Any]]:
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

    return Generator
