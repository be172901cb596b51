"""R1: operators of the program's own, which a worker in another process does not have, run in the program's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import mindtorch
from mindtorch.engine.remote.client import RemoteExecutor

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


@torch.library.custom_op("genie_test_remote::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@scaled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("genie_test_remote::raise_", mutates_args=("x",))
def raise_(x: torch.Tensor, by: float) -> None:
    x.add_(by)


def test_R1_operators_of_the_programs_own(elsewhere: RemoteExecutor, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        torch.manual_seed(1)
        x = torch.arange(100.0).to(device)
        part = x.view(10, 10)[2:5]
        raise_(part, 0.5)
        y = scaled(x)[10:40] + torch.rand(30, device=device)
        first = y.sum()
        kept = (first.item(), part, y, y.view(5, 6).t())
        raise_(y, 1.0)
        x.mul_(2)
        return kept, scaled(x).view(4, 25)[1:], torch.rand(3, device=device), part + 1

    for _ in range(2):
        same_as_eager(program)


def test_R1_what_such_an_operator_raises_is_told_with_its_line(elsewhere: RemoteExecutor) -> None:
    @torch.library.custom_op("genie_test_remote::refuses", mutates_args=())
    def refuses(x: torch.Tensor) -> torch.Tensor:
        if x.numel() > 100_000:  # small copies, on which calls are tried, pass
            raise LookupError("not this one")
        return x.clone()

    refuses.register_fake(torch.empty_like)
    x = torch.ones(1 << 19, device=LAZY)
    good, bad = x + 1, refuses(x)
    after = bad + good
    for _ in range(2):
        with pytest.raises(mindtorch.MaterializationError, match=r"refuses.*test_operators\.py:\d+.*not this one"):
            after.sum().item()
    assert good.sum().item() == 2 << 19
