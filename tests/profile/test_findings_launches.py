"""C2: torch.compile is what to try where it has most of what the device waits for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.profile.test_findings import estimated, the


class Deep(nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.inner = nn.Sequential(*(nn.Linear(8, 8, device=device) for _ in range(12)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def calls(device: str) -> None:
    model, x = Deep(device), torch.ones(8, 8, device=device)
    for _ in range(3):
        model(x).sum().backward()


def without(device: str) -> None:
    x = torch.ones(8, 8, device=device)
    for _ in range(60):
        x = x.sin()


def twice(device: str) -> None:
    model, x = Deep(device), torch.ones(8, 8, device=device, requires_grad=True)
    for _ in range(3):
        (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        first.sum().backward()


def encodes(device: str) -> None:
    model, x = Deep(device), torch.ones(8, 8, device=device)
    for _ in range(3):
        model.encode(x).sum().backward()


def around(device: str) -> None:
    model, x = Deep(device), torch.ones(8, 8, device=device)
    with torch.no_grad():
        for _ in range(3):
            y = model(x)
            for _ in range(60):
                y = y.sin()


class Marked(torch.Tensor):
    """As MONAI's: of a model that gets such tensors, Dynamo compiles next to nothing."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return super().__torch_function__(func, types, args, kwargs or {})


def marked(device: str) -> None:
    model, x = Deep(device), torch.ones(8, 8, device=device).as_subclass(Marked)
    for _ in range(3):
        model(x).sum().backward()


@pytest.mark.parametrize(("program", "wanted"), [(calls, "torch.compile(model, "), (without, "torch.compile(step, "),
                                                 (twice, ""), (encodes, ""), (around, ""), (marked, "")])  # fmt: skip
def test_C2_finding_host_bound_says_torch_compile_where_it_helps(program: Callable[[str], None], wanted: str) -> None:
    """AOTAutograd refuses what is differentiated twice, and compiles only the forward pass of the model."""
    wanted += "mode='reduce-overhead'), " if wanted else ""
    assert the(estimated(program), "host-bound")["try"] == f"{wanted}larger batches, or fewer small operations"
