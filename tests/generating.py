"""Models that generate, and the phases that their calls are in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mindtorch._ext import context
from mindtorch.engine import semantics
from mindtorch.engine.semantics import generation

WIDTH, WORDS = 8, 20
Cached = tuple[Tensor, Tensor]


class Cache:
    """As transformers has it: filled by the model."""

    def __init__(self) -> None:
        self.layers: list[Any] = []

    def update(self, x: Tensor) -> Tensor:
        self.layers = [x if not self.layers else torch.cat((self.layers[0], x), 1)]
        return self.layers[0]


class Model(nn.Module):
    """Reads ids, and all that it was given before; `kind`: where that is kept."""

    def __init__(self, kind: str = "object") -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.kind = kind
        if kind == "buffer":
            self.register_buffer("kept", torch.zeros(2, 32, WIDTH))

    def forward(self, ids: Tensor, past: Any = None, at: int = 0) -> Any:
        x = self.embed(ids)
        if self.kind == "buffer":
            self.kept[:, at : at + x.shape[1]] = x
            x = self.kept[:, : at + x.shape[1]].cumsum(1)[:, at:]
        elif self.kind == "object":
            x = past.update(x)[:, -ids.shape[1] :]
        elif self.kind == "returned":
            past = (x if past is None else torch.cat((past[0], x), 1), x.mean())
            x = past[0][:, -ids.shape[1] :]
        return self.head(x), past


def prompt(device: str, length: int = 6) -> Tensor:
    return torch.arange(2 * length).reshape(2, length).remainder(WORDS).to(device)


def generate(model: Model, device: str, steps: int = 3, chunks: tuple[int, ...] = (6,)) -> None:
    ids = prompt(device, sum(chunks))
    past, at = (Cache() if model.kind == "object" else None), 0
    for length in chunks:
        logits, past = model(ids[:, at : at + length], past, at)
        at += length
    for _ in range(steps):
        logits, past = model(logits[:, -1:].argmax(-1), past, at)
        at += 1


def score(model: Model, device: str, length: int = 6) -> None:
    for _ in range(3):
        model(prompt(device, length), Cache() if model.kind == "object" else None)


class Seen:
    """The phases that calls were in, as a run sees them."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    @contextlib.contextmanager
    def listening(self) -> Any:
        def settled(phase: int, was: int) -> None:
            self.calls = [phase if call == was else call for call in self.calls]

        def hook(module: nn.Module, args: Any) -> None:
            if isinstance(module, Model):
                self.calls.append(context.get_phase())

        generation.listeners.append(settled)
        handle = nn.modules.module.register_module_forward_pre_hook(hook)
        semantics.install()
        try:
            with torch.no_grad():
                yield self
        finally:
            generation.over()
            semantics.uninstall()
            handle.remove()
            generation.listeners.remove(settled)

    @property
    def names(self) -> str:
        """A letter for each call."""
        return "".join(context.phase_name(call)[0] for call in self.calls)


DEVICES = ["cpu", "meta", "remote_accelerator"]


def phases(program: Callable[[], object]) -> str:
    with Seen().listening() as seen:
        program()
    return seen.names


class Takes(Model):
    """Reads nothing but ids."""

    def forward(self, ids: Tensor, past: Any = None, at: int = 0) -> Any:
        return self.head(self.embed(ids))
