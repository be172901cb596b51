"""R2, R5: what moves from one worker to another costs what moves, whatever else lives."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.engine.execute import values
from mindtorch.engine.remote.placing import PlacingExecutor
from mindtorch.engine.remote.spread import SpreadExecutor

from ..executors import using

FIRST, SECOND = "remote_accelerator:0", "remote_accelerator:1"
pytestmark = pytest.mark.usefixtures("nothing_pending")


def events(run: Any) -> int:
    """How many functions run, Python's and C's."""
    count = 0

    def look(_frame: Any, event: str, _given: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def alive(count: int) -> list[torch.Tensor]:
    """So many values on the first worker, and memory of the program that was uploaded there."""
    plain = [torch.zeros(1) + k for k in range(count)]
    found = [t.to(FIRST) for t in plain]
    made = [t + 1 for t in found]
    values.flush("test")
    return [*plain, *found, *made]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, there: str) -> torch.Tensor:
        return self.second(self.first(x).to(there))


@pytest.mark.parametrize("kind", [SpreadExecutor, PlacingExecutor])
def test_R5_a_move_looks_at_what_moves_and_at_nothing_else(kind: type[SpreadExecutor]) -> None:
    """20,000 values that live once made a read of a divided model 70 times as slow: each was looked at."""
    net = Two()

    def counted(live: int) -> tuple[int, torch.Tensor]:
        found: list[torch.Tensor] = []
        with using(kind([mindtorch.LoopbackExecutor() for _ in range(2)])) as executor:
            there = FIRST if isinstance(executor, PlacingExecutor) else SECOND
            if isinstance(executor, PlacingExecutor):
                executor._workers = {"Two": 0, "Two.first": 0, "Two.second": 1}
            net.first.to(FIRST), net.second.to(there)
            held = alive(live)
            x = torch.ones(2, 8).to(FIRST)

            def run() -> None:
                with torch.no_grad():
                    found.append(net(x, there).sum().cpu())

            run(), run()
            before = executor.executors[1].stats["messages"]
            count = events(run)
            assert executor.executors[1].stats["messages"] > before, "the second worker takes part"
            del held
            net.to("cpu")
        return count, found[-1]

    few, expected = counted(3)
    many, found = counted(1000)
    assert torch.equal(found, expected) and many - few < 100  # larger numbers take a few more
