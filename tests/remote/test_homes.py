"""R5: a program that reads all of its parameters together does not put them on one worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from mindtorch.engine.remote import placing
from mindtorch.engine.remote.placing import PlacingExecutor
from mindtorch.engine.remote.pricing import roomiest
from mindtorch.engine.remote.storage_homes import placed

from ..executors import using
from .test_placing import mlp, over, same

pytestmark = pytest.mark.usefixtures("nothing_pending")


# ---- records that are written down here ------------------------------------------------------------------------------
def record(takes: Sequence[int], makes: Sequence[tuple[int, int]], writes: Sequence[int] = (), module: int = 0) -> Any:
    return module, 1, -1, 0, False, takes, writes, makes


def places(records: Sequence[Any], nbytes: dict[int, int], rooms: Sequence[int], **given: Any) -> list[int]:
    sizes = {**{slot: n for made in records for slot, n in made[7] if n}, **nbytes}
    left = list(rooms)
    workers, homes = given.pop("workers", {}), given.pop("homes", {})
    return placed(records, homes, workers, roomiest(left), True, sizes=sizes, rooms=left, **given)[0]


WEIGHTS = dict.fromkeys(range(8), 100)


def summed(kind: str) -> list[Any]:
    """Of each weight k, 20 + k of as many bytes, and of that 30 + k, which is small; they are joined."""
    found = []
    for k in WEIGHTS:
        found += [record([k], [(20 + k, 100)]), record([20 + k], [(30 + k, 4)])]
    if kind == "stack":
        return [*found, record([30 + k for k in WEIGHTS], [(40, 32)])]
    return [*found, *[record([40 + k - 1 if k else 30, 30 + k], [(40 + k, 4)]) for k in WEIGHTS]]  # one after the other


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> float:
    """The loss of a training step."""
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("kind", ["stack", "sum"])
@pytest.mark.parametrize("rooms", [(400, 400, 400), (1000, 300, 300), (299, 299, 299, 299)])
def test_R5_small_functions_of_large_storages_join_none_of_those(kind: str, rooms: tuple[int, ...]) -> None:
    found = places(summed(kind), WEIGHTS, rooms)
    assert found[0:16:2] == found[1:16:2], "what is made of one weight is where that is"
    weights = [found[0:16:2].count(worker) * 100 for worker in range(len(rooms))]
    assert all(there <= room for there, room in zip(weights, rooms, strict=True)), weights
    assert sum(a != b for a, b in zip(found[0:14:2], found[2:16:2], strict=True)) <= len(rooms), "one after the other"


def test_R5_what_a_module_takes_first_is_there_from_the_start() -> None:
    """Also where something small is made of all before, or where it is made itself."""
    calls = [record([k, 50 + k], [(51 + k, 8)], module=k + 1) for k in WEIGHTS]
    workers = {k + 1: k // 3 for k in WEIGHTS}
    found = places([*summed("stack"), *calls], {**WEIGHTS, 50: 8}, [1000] * 3, workers=workers)
    assert found[0:16:2] == found[17:] == [workers[k + 1] for k in WEIGHTS]
    made = [each for k in WEIGHTS for each in (record([], [(k, 100)]), record([k], [], [k]))]
    found = places([*made, *summed("stack"), *calls], {50: 8}, [1000] * 3, workers=workers, kept=set(WEIGHTS))
    assert found[0:16:2] == found[1:16:2] == found[16:32:2] == [workers[k + 1] for k in WEIGHTS]


@pytest.mark.parametrize(("scale", "spread"), [(12, True), (13, False)])
def test_R5_a_small_value_with_a_home_draws_nothing_large_to_it(scale: int, spread: bool) -> None:
    """It is small if the other is more than eight times as large."""
    found = places([record([9, k], [(20 + k, 100)]) for k in WEIGHTS], {**WEIGHTS, 9: scale}, [500] * 2, homes={9: 0})
    assert (set(found) == {0, 1}) == spread


def test_R5_a_group_grows_up_to_a_quarter_of_the_room() -> None:
    """A chain of products of weights, in no module, with as much between them."""
    chain = [record([50 + k, k], [(51 + k, 100)]) for k in WEIGHTS]
    assert set(places(chain, {**WEIGHTS, 50: 100}, [3600] * 2)) == {0}
    found = places(chain, {**WEIGHTS, 50: 100}, [800] * 3)  # two weights are a group, and the first one with its input
    assert found == sorted(found) and [found.count(worker) for worker in range(3)] == [3, 4, 1]


@pytest.mark.parametrize("room", [100, 0, -100])
def test_R5_what_lasts_nowhere_is_made_where_it_is_read_whatever_room_there_is(room: int) -> None:
    """A loss's first gradient was made on the worker with the most room, and moved to the loss."""
    loss = [record([1], [(2, 4)], module=7), record([], [(3, 4)]), record([3], [(4, 400)]), record([4, 1], [(5, 400)])]
    assert places(loss, {1: 400}, [room + 1000, room], homes={1: 1}, workers={7: 1}) == [1, 1, 1, 1]


def test_R5_a_view_of_what_was_just_made_is_made_where_that_is() -> None:
    """A model's own views of what its layers give each other moved all of it to the model's worker, and back."""
    layers = [record([1], [(2, 400)], module=1), record([2], [(2, 0)], module=9), record([2], [(3, 400)], module=1)]
    workers = {1: 1, 9: 0}
    assert places(layers, {1: 4}, [1000] * 2, homes={1: 1}, workers=workers) == [1, 1, 1]
    weight = [record([1], [(1, 0)], module=9)]
    assert places(weight, {1: 4}, [1000] * 2, homes={1: 1}, workers=workers) == [0]  # which has a copy of what lasts
    written = [record([1], [(2, 400)], module=1), record([2, 3], [(2, 0)], [3], module=9)]
    assert places(written, {1: 4, 3: 4}, [1000] * 2, homes={1: 1, 3: 0}, workers=workers) == [1, 0]


# ---- programs --------------------------------------------------------------------------------------------------------
def _stacked(parameters: list[nn.Parameter]) -> torch.Tensor:
    return torch.stack([p.abs().sum() for p in parameters]).sum()


def _norms(parameters: list[nn.Parameter]) -> torch.Tensor:
    return torch.stack([torch.linalg.vector_norm(p) for p in parameters]).norm()


def _lists(parameters: list[nn.Parameter]) -> torch.Tensor:
    return torch.stack(torch._foreach_norm(parameters)).norm()


def _summed(parameters: list[nn.Parameter]) -> torch.Tensor:
    return torch.as_tensor(sum(p.detach().sum() for p in parameters))


def _joined(parameters: list[nn.Parameter]) -> torch.Tensor:
    return torch.cat([p.detach().square().sum(0).flatten()[:4] for p in parameters]).sum()


def _scaled(parameters: list[nn.Parameter]) -> torch.Tensor:
    scale = torch.full((1,), 0.5, device=parameters[0].device)
    scale.item()  # it has a home then
    with torch.no_grad():
        for p in parameters:
            p.mul_(scale)
    return parameters[0].sum()


READ = {"stack": _stacked, "norms": _norms, "lists": _lists, "sum": _summed, "cat": _joined, "scale": _scaled}


def most_held(executor: PlacingExecutor) -> list[int]:
    """The most bytes that each worker has after any part, as it comes to be."""
    most = [0] * len(executor.executors)
    for there in executor.executors:

        def submit(part: Any, of: Callable[[Any], None] = there.submit) -> None:
            of(part)
            for k, each in enumerate(executor.executors):
                most[k] = max(most[k], executor._held(each))

        there.submit = submit  # type: ignore[method-assign]
    return most


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("name", READ)
def test_R5_a_program_that_reads_all_parameters_together_fits_divided(name: str, made: bool) -> None:
    """Before its first call, in a run of its own. made: on the device, and not uploaded."""

    def program(device: str) -> Any:
        if made:
            with torch.device(device):
                model, x = mlp(), torch.rand(4, 64)
        else:
            model, x = mlp().to(device), torch.rand(4, 64).to(device)
        parameters = list(model.parameters())
        with torch.no_grad():
            return READ[name](parameters).item(), [model(x).sum().item() for _ in range(2)], parameters

    limit = 68_000  # half of the weights, with what is made of one
    found: list[Any] = []
    before = placing.tell(found.append)
    try:
        with using(over(3, limit)) as executor:
            most = most_held(executor)
            same(program)
            assert max(most) <= limit, most
    finally:
        placing.tell(*before)
    assert [plans[0].excess for plans in found if plans[0].workers] == [0]
    # Before that, one of what runs outside of modules, which needs more than one worker, too.
    (values,) = [plans for plans in found if not plans[0].workers]
    assert values is found[0] and values[0].used > 1
    assert [(plan.name, plan.excess > 0) for plan in values] == [("by values", False), ("all on one", True)]


class Pictures(nn.Module):
    """Its own views are between its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.layers = nn.Conv2d(3, 64, 4, 4), mlp()
        self.head = nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


def test_R5_a_model_s_own_views_move_nothing() -> None:
    """The model's other operations are on a worker of their own: a step moves what those read, and its gradient."""

    def program(device: str) -> Any:
        model, x = Pictures().to(device), torch.rand(2, 3, 16, 16).to(device)
        step, out = torch.optim.SGD(model.parameters(), lr=0.01), []
        for k in range(3):
            if k == 2 and device != "cpu":
                executor.moves.clear()
                executor.joined = 0
            out.append(step_of(model, step, x))
        return out, list(model.parameters())

    with using(over(3, 1 << 20)) as executor:
        layers = {f"Pictures.layers.{k}": 1 for k in range(16)}
        executor._workers = {"Pictures": 0, "Pictures.patch": 1, "Pictures.layers": 1, **layers, "Pictures.head": 2}
        same(program)
        features, means = 2 * 16 * 64 * 4, 2 * 64 * 4
        assert executor.moves == {(1, 0): features, (0, 2): means, (2, 0): means, (0, 1): features}
        assert executor.joined == 4


@pytest.mark.parametrize("name", READ)
def test_R5_what_was_read_before_the_first_call_comes_to_its_modules_and_stays_there(name: str) -> None:
    """Its optimizer writes it there: a training step moves activations and their gradients, and no weights."""

    def program(device: str) -> Any:
        model, x = mlp().to(device), torch.rand(4, 64).to(device)
        out = [READ[name](list(model.parameters())).item()]
        step = torch.optim.SGD(model.parameters(), lr=0.01)
        for k in range(3):
            if k == 2 and device != "cpu":
                executor.moves.clear()
            out.append(step_of(model, step, x))
        return out, list(model.parameters())

    with using(over(3, 180_000)) as executor:  # it is read on one worker, and trained on several
        same(program)
        crossed = executor.moves.values()
        assert 0 < sum(crossed) <= 3 * 2 * 2 * 4 * 64 * 4, executor.moves
