"""R5: plans for a model on several workers: they fit, move little, and are made without running anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mindtorch.engine.execute.machine import Machine
from mindtorch.engine.remote import placing
from mindtorch.engine.remote.cuts import plans
from mindtorch.engine.remote.pricing import Plan, Work, on_one
from mindtorch.engine.remote.run_time import Computing, Costs

from ..executors import using
from .test_placing import DEVICE, Language, mlp, over

pytestmark = pytest.mark.usefixtures("nothing_pending")


class Encoded(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(60, width), nn.Linear(width, 60)
        self.both = nn.Transformer(width, 2, 3, 3, 64, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        return self.out(self.both(x, x[:, :4]))


class Experts(nn.Module):
    def __init__(self, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.routes = nn.ModuleList(nn.Linear(width, 4) for _ in range(layers))
        self.experts = nn.ModuleList(
            nn.ModuleList(nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(4))
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for route, experts in zip(self.routes, self.experts, strict=True):
            gates = route(x).softmax(-1)
            x = x + sum(gates[:, k : k + 1] * expert(x) for k, expert in enumerate(experts))
        return x


class Down(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:  # type: ignore[override]
        x = super().forward(x)
        return x, x.repeat(1024, 1)


class Up(nn.Linear):
    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x) + kept.sum(0)


class Folded(nn.Module):
    """Each level of the way up takes what its level of the way down made, which is large."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(Down(64, 64) for _ in range(4))
        self.up = nn.ModuleList(Up(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for down in self.down:
            x, more = down(x)
            kept.append(more)
        for up in self.up:
            x = up(x, kept.pop())
        return x


def planned(make: Callable[[], nn.Module], data: Callable[[], torch.Tensor], part: float, train: bool) -> list[Plan]:
    """The plans where each of four workers has so large a part of the memory that one would need. Nothing runs."""
    found: list[list[Plan]] = []
    before = placing.tell(found.append, only=True)
    limit = 1 << 30
    try:
        for _ in range(2):
            with using(over(4, limit)) as executor:
                executor._costs = Costs(1e-3, 1e-8)
                executor._machines = [Machine("cpu", "elsewhere", "cpu", 1, 1, 2)] * 4
                model, x = make().to(DEVICE), data().to(DEVICE)
                with torch.set_grad_enabled(train), pytest.raises(SystemExit):
                    model(x).sum().item()
                assert all(each.stats["messages"] == 0 for each in executor.executors)
                placing.tell(None)  # what is pending may run now
                del model, x
            placing.tell(found.append, only=True)
            limit = int(part * found[-1][0].memory[0])
    finally:
        placing.tell(*before)
    return found[-1]


PLANNED = {
    "mlp": (mlp, lambda: torch.randn(4, 64), 0.4),
    "tied": (lambda: Language(words=1000), lambda: torch.randint(0, 50, (2, 8)), 0.6),
    "encoder and decoder": (Encoded, lambda: torch.randint(0, 60, (2, 8)), 0.5),
    "experts": (Experts, lambda: torch.randn(6, 32), 0.4),
    "skips": (Folded, lambda: torch.randn(1, 64), 0.5),
}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", PLANNED)
def test_R5_a_plan_fits_and_is_no_worse_than_equal_layers(name: str, train: bool) -> None:
    found = planned(*PLANNED[name], train)
    best = found[0]
    one, equal = (next(plan for plan in found if plan.name == name) for name in ("all on one", "equal layers"))
    assert one.excess > 0 == one.messages and best.excess == 0 and best.used > 1
    assert best.seconds <= equal.seconds or equal.excess > 0
    assert all(plan.moves_only for plan in found)  # nobody knows how fast workers elsewhere compute
    assert best.seconds == best.messages * 1e-3 + best.moved * 1e-8
    assert best.moved < 1000 * 32 * 4 or name != "tied"  # the weights that are shared stay where they are


def test_R5_where_levels_take_what_levels_made_they_are_together() -> None:
    best = planned(*PLANNED["skips"], train=False)[0]
    together = [best.workers[f"Folded.down.{k}"] == best.workers[f"Folded.up.{3 - k}"] for k in range(4)]
    assert all(together), best.workers


def test_R5_a_model_that_fits_is_planned_to_stay_on_one_worker() -> None:
    best = planned(*PLANNED["mlp"][:2], 1.1, train=True)[0]
    assert (best.name, best.used, best.messages, best.excess) == ("all on one", 1, 0, 0)


# ---- seconds ---------------------------------------------------------------------------------------------------------
def work(limit: int, computing: Computing | None) -> Work:
    """Two modules, each with a parameter of 64 bytes; the second takes the 16 bytes that the first made, and reads a
    storage of 8 bytes that is on the first worker."""
    records = [
        (1, 1, -1, 0, False, [1], [], [(11, 16)]),
        (2, 1, -1, 0, False, [2, 11], [], [(12, 16)]),
        (2, 1, -1, 0, False, [12, 3], [], [(13, 4)]),
    ]
    nbytes = {1: 64, 2: 64, 3: 8}
    return Work(records, {1: "Net.a", 2: "Net.b"}, {3: 0}, nbytes, {}, {13}, 0, [limit] * 2, [0, 0], computing)


COSTS = Costs(message=1 / 2, byte=1 / 64)
SECONDS = Computing([[1.0, 2.0, 4.0], [1.0, 2.0, 8.0]], [("here", 2.0)] * 2, recorded=1 / 4, divided=1 / 8)


def test_R5_seconds_of_a_plan_are_those_of_its_computing_and_its_moves() -> None:
    one = on_one(work(1 << 20, SECONDS))
    assert (one.seconds, one.moved, one.messages, one.moves_only) == (3 / 4 + 7, 0, 0, False)
    found = {plan.name: plan for plan in plans(work(100, SECONDS), COSTS, {})}
    two = found["equal layers"]
    assert two.workers == {"Net.a": 0, "Net.b": 1} and two.excess == 0
    # 16 bytes and those of the storage in one message. The first worker keeps the storage, the second has a copy.
    assert (two.moved, two.messages, two.replicas) == (16 + 8, 1, {1: 8})
    assert two.seconds == 3 * 3 / 8 + 1 + (1 / 2 + 24 / 64) + (2 + 8)
    assert found["all on one"].seconds == one.seconds


def test_R5_seconds_are_for_moves_only_where_nobody_knows_how_fast_a_worker_computes() -> None:
    assert (on_one(work(100, None)).seconds, on_one(work(100, None)).moves_only) == (0.0, True)
    two = next(plan for plan in plans(work(100, None), COSTS, {}) if plan.name == "equal layers")
    assert (two.seconds, two.moves_only) == (1 / 2 + 24 / 64, True)


@pytest.mark.parametrize(("last", "best"), [(3.0, "equal layers"), (3.25, "all on one")])
def test_R5_of_plans_that_fit_the_one_of_the_fewest_seconds_is_the_best(last: float, best: str) -> None:
    """A worker pays that computes the second module faster by more than the seconds that moves take."""
    assert COSTS.message + (16 + 8) * COSTS.byte == 0.875
    seconds = Computing([[1.0, 2.0, 4.0], [4.0, 2.0, last]], [("a", 1.0), ("b", 1.0)])
    found = plans(work(1 << 20, seconds), COSTS, {})
    assert (found[0].name, found[0].seconds) == (best, min(7.0, 1 + 2 + last + 0.875))
