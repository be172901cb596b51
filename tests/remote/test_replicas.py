"""R5: what several workers read has copies there, each good until it is written."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mindtorch
from mindtorch.base.errors import SessionLost
from mindtorch.engine.remote import placing
from mindtorch.engine.remote.placing import PlacingExecutor

from ..executors import mortal, using
from .test_placing import DEVICE, over, same

pytestmark = pytest.mark.usefixtures("nothing_pending")

WIDTH, WORDS = 16, 100
WEIGHT = 4 * WIDTH * WORDS  # bytes
ROWS = 3


class Embedding(nn.Embedding):
    """What a head may share its weight with."""


class Head(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding(WORDS, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.head = Head(self.embedding.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.embedding(ids)))


def apart(workers: int = 2, limit: int = 1 << 30) -> PlacingExecutor:
    """With a plan that has a model's first module on one worker, and all others on the last."""
    executor = over(workers, limit)
    executor._workers = {"Tied.embedding": 0, "Tied.middle": workers - 1, "Tied.head": workers - 1, "Tied": 0}
    return executor


def crossed(executor: PlacingExecutor, run: Callable[[], object]) -> tuple[int, int]:
    """Bytes and messages."""
    before = sum(executor.moves.values()), executor.joined
    run()
    mindtorch.flush("test")
    return sum(executor.moves.values()) - before[0], executor.joined - before[1]


def held(executor: PlacingExecutor) -> list[int]:
    return [executor._held(each) for each in executor.executors]


def test_R5_a_weight_that_two_workers_read_crosses_once_in_many_evaluations() -> None:
    with using(apart()) as executor, torch.no_grad():
        model, ids = Tied().to(DEVICE), torch.arange(ROWS).to(DEVICE)
        found = [crossed(executor, lambda: model(ids).sum().item()) for _ in range(4)]
        between = ROWS * WIDTH * 4
        assert found == [(between + WEIGHT, 1), *[(between, 1)] * 3]
        assert executor._copies.nbytes() == [0, WEIGHT]


def test_R5_a_weight_that_two_workers_read_crosses_once_in_each_training_step() -> None:
    steps: list[tuple[int, int]] = []
    before: dict[tuple[int, int], int] = {}

    def program(device: str) -> Any:
        torch.manual_seed(1)
        model, ids = Tied().to(device), torch.arange(ROWS).to(device)
        step = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses = []
        for _ in range(4):
            loss = model(ids).square().mean()
            step.zero_grad()
            loss.backward()
            step.step()
            losses.append(loss.item())
            if device == DEVICE:
                mindtorch.flush("test")
                steps.append(
                    (executor.moves[0, 1] - before.get((0, 1), 0), executor.moves[1, 0] - before.get((1, 0), 0))
                )
                before.update(executor.moves)
        return losses, list(model.parameters())

    with using(apart()) as executor:
        same(program)
    # The embedding takes the weight from where the step has written it, and gives its gradient, which is as large.
    between = ROWS * WIDTH * 4
    assert len(steps) == 4 and steps[1:] == [(between + WEIGHT, between + WEIGHT)] * 3


WRITES: dict[str, Callable[[nn.Parameter, torch.Tensor], object]] = {
    "in place": lambda weight, other: weight.add_(other),
    "through a view": lambda weight, other: weight.t()[1:].mul_(2),
    "a row": lambda weight, other: weight.__setitem__(0, 7.0),
    "copy_": lambda weight, other: weight.copy_(other),
    "through .data": lambda weight, other: weight.data.zero_(),
    "another storage by .data": lambda weight, other: setattr(weight, "data", other),
    "another storage by set_": lambda weight, other: weight.data.set_(other),
    "by a call that cannot wait": lambda weight, other: torch.add(weight, other, out=weight.data),
    "uniform_": lambda weight, other: weight.uniform_(-1, 1),
    "by an optimizer": lambda weight, other: _stepped(weight, other),
}


def _stepped(weight: nn.Parameter, other: torch.Tensor) -> None:
    weight.grad = other
    torch.optim.SGD([weight], lr=0.5).step()
    weight.grad = None


@pytest.mark.parametrize("how", WRITES)
def test_R5_a_write_ends_all_copies(how: str) -> None:
    def program(device: str) -> Any:
        torch.manual_seed(2)
        model, ids = Tied().to(device), torch.arange(ROWS).to(device)
        other = torch.linspace(-1, 1, WORDS * WIDTH).view(WORDS, WIDTH).to(device)
        out = []
        for k in range(3):
            out.append(model(ids).clone())
            out[-1].sum().item()
            if k == 1:
                torch.manual_seed(3)
                WRITES[how](model.embedding.weight, other)
                if device == DEVICE:
                    mindtorch.flush("test")
                    assert executor._copies.nbytes() == [0, 0]
        return out, model.embedding.weight

    with using(apart()) as executor, torch.no_grad():
        same(program)
        assert executor.moves[0, 1] + executor.moves[1, 0] >= 2 * WEIGHT


def test_R5_views_made_of_a_copy_are_of_the_value() -> None:
    """What another worker makes of a copy stands for the value: it sees later writes, and they see it."""

    def program(device: str) -> Any:
        with torch.no_grad():
            model, ids = Tied().to(device), torch.arange(ROWS).to(device)
            model(ids).sum().item()
            model.head.forward = lambda x: (
                F.linear(x, model.head.weight),
                model.head.weight.t()[2:],
                model.head.weight,
            )
            _out, view, same_one = model(ids)
            view.sum().item()
            model.embedding.weight.mul_(3)
            found = [view.clone(), same_one.clone()]
            view.add_(1)
            return found, view, view.stride(), model.embedding.weight, model(ids)[0]

    with using(apart()) as executor:
        same(program)
        assert executor.moves


def test_R5_copies_are_freed_with_what_they_are_copies_of() -> None:
    with using(apart(3)) as executor, torch.no_grad():
        model, ids = Tied().to(DEVICE), torch.arange(ROWS).to(DEVICE)
        model(ids).sum().item()
        mindtorch.flush("test")
        assert executor._copies.nbytes() == [0, 0, WEIGHT] and held(executor)[2] >= WEIGHT
        del model, ids
        gc.collect()
        mindtorch.flush("test")
        assert executor._copies.nbytes() == [0, 0, 0] and held(executor) == [0, 0, 0]


def test_R5_copies_are_let_go_first_where_memory_is_short() -> None:
    """They count against the limit of their worker."""
    with using(apart(limit=4 * WEIGHT)) as executor, torch.no_grad():
        model, ids = Tied().to(DEVICE), torch.arange(ROWS).to(DEVICE)
        model(ids).sum().item()
        assert executor._copies.nbytes() == [0, WEIGHT]
        model.head.forward = lambda x: x  # type: ignore[method-assign]
        model.middle.forward = lambda x: x + torch.ones(WEIGHT // 2, device=DEVICE).sum()  # type: ignore[method-assign]
        model(ids).sum().item()
        mindtorch.flush("test")
        assert executor._copies.nbytes() == [0, WEIGHT]
        model.middle.forward = lambda x: x + torch.ones(WEIGHT, device=DEVICE).sum()  # type: ignore[method-assign]
        model(ids).sum().item()
        mindtorch.flush("test")
        assert executor._copies.nbytes() == [0, 0]


@pytest.mark.parametrize("times", [1.5, 4])
def test_R5_what_is_read_elsewhere_moves_where_there_is_no_memory_for_copies(times: float) -> None:
    """Three weights, each read on the first worker, on the last, and on the first again."""

    class Reads(Tied):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            total = self.embedding(ids).sum()
            for weight in self.weights:
                self.embedding.weight.data, self.head.weight.data = weight, weight
                total = total + self.embedding(ids).sum() + self.head(self.row).sum() + self.embedding(ids).sum()
            return total

    Reads.__name__ = Reads.__qualname__ = "Tied"

    def program(device: str) -> Any:
        torch.manual_seed(4)
        model, ids = Reads().to(device), torch.arange(ROWS).to(device)
        model.row = torch.rand(1, WIDTH).to(device)
        model.weights = [torch.rand(WORDS, WIDTH).to(device) for _ in range(3)]
        return [model(ids).item() for _ in range(2)]

    with using(apart()) as executor, torch.no_grad():
        executor._limits = [100 * WEIGHT, int(times * WEIGHT)]
        same(program)
        weights = sum(executor.moves.values()) // WEIGHT
        assert weights == (3 if times == 4 else 2 * 3 * 2)


def test_R5_a_copy_of_what_has_failed_fails_no_longer_than_that() -> None:
    def program(device: str) -> Any:
        with torch.no_grad():
            model, ids = Tied().to(device), torch.arange(ROWS).to(device)
            model(ids).sum().item()
            with pytest.raises((IndexError, RuntimeError)):
                F.embedding(torch.tensor([WORDS + 5]).to(device), model.embedding.weight).sum().item()
            return model(ids)

    with using(apart()) as executor:
        same(program)
        assert executor.moves


def test_R5_what_has_a_copy_is_there_when_its_worker_with_the_copy_is_lost() -> None:
    gone: set[int] = set()
    executor = PlacingExecutor([mortal(k, gone) for k in range(2)], 1 << 30)
    executor._workers = dict(apart()._workers or {})
    with using(executor), torch.no_grad():
        model, ids = Tied().to(DEVICE), torch.arange(ROWS).to(DEVICE)
        weight = model.embedding.weight.cpu().clone()
        model(ids).sum().item()
        gone.add(1)
        with pytest.raises(SessionLost, match="worker 1 was ended"):
            model(ids).sum().item()
        assert torch.equal(model.embedding.weight.cpu(), weight)
        assert torch.equal(model.embedding(ids).cpu(), weight[:ROWS])
        del model, ids


def test_R5_values_go_along_without_their_copies_when_the_executor_changes() -> None:
    with using(apart()) as executor, torch.no_grad():
        model, ids = Tied().to(DEVICE), torch.arange(ROWS).to(DEVICE)
        first = model(ids).tolist()
        with using(mindtorch.LocalExecutor()):
            assert model(ids).tolist() == first
        del model, ids
        gc.collect()
        assert held(executor) == [0, 0]


@pytest.mark.parametrize("made", [False, True])
def test_R5_a_plan_tells_the_copies_of_a_shared_weight(made: bool) -> None:
    """made: on the device, in the segment that calls the model for the first time."""
    found: list[Any] = []
    before = placing.tell(found.append)
    try:
        with using(over(2, WEIGHT + 4000)) as executor, torch.no_grad():
            executor._workers = {"Tied.embedding": 0, "Tied.head": 1, "Tied": 0}
            with torch.device(DEVICE if made else "cpu"):
                model, ids = Tied(), torch.arange(3)
            model, ids = model.to(DEVICE), ids.to(DEVICE)
            model(ids).sum().item()
            assert sum(executor._copies.nbytes()) == WEIGHT
    finally:
        placing.tell(*before)
    ((best, *_),) = found
    assert best.replicas == {1: WEIGHT}
