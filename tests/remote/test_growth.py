"""R5: what a plan counts before it has run: gradients and states of optimizers, modules that come later."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.engine.remote import growth, placing
from mindtorch.engine.remote.placing import PlacingExecutor
from mindtorch.engine.remote.pricing import Plan

from ..executors import using
from .test_placing import DEVICE, over, same

pytestmark = pytest.mark.usefixtures("nothing_pending")

WIDTH, LAYERS = 64, 4
WEIGHTS = LAYERS * WIDTH * (WIDTH + 1) * 4  # bytes
PLAY = 60_000  # bytes of what a step makes besides: less than one state of all weights


@pytest.fixture
def told() -> Iterator[list[list[Plan]]]:
    """The plans that are told, as they are."""
    found: list[list[Plan]] = []
    before = placing.tell(found.append)
    yield found
    placing.tell(*before)


def layers() -> nn.Module:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])


def trained(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> Any:
    """Two steps, each of which reads its loss before the backward pass: the losses, and the parameters."""
    out = []
    for _ in range(2):
        loss = model(x).square().mean()
        out.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return out, list(model.parameters())


OPTIMIZERS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], int]] = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.01), 0),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), 1),
    "adagrad": (lambda p: torch.optim.Adagrad(p, lr=0.01), 1),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.9), 3),
    "adam": (lambda p: torch.optim.Adam(p, lr=0.01), 2),
    "amsgrad": (lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True), 3),
    "nadam": (lambda p: torch.optim.NAdam(p, lr=0.01), 2),
    "radam": (lambda p: torch.optim.RAdam(p, lr=0.01), 2),
    "adamax": (lambda p: torch.optim.Adamax(p, lr=0.01), 2),
    "adadelta": (lambda p: torch.optim.Adadelta(p, lr=0.01), 2),
    "rprop": (lambda p: torch.optim.Rprop(p, lr=0.01), 2),
    "asgd": (lambda p: torch.optim.ASGD(p, lr=0.01), 1),
    "muon": (lambda p: torch.optim.Muon(p, lr=0.01), 1),
    "adafactor": (lambda p: torch.optim.Adafactor(p, lr=0.01), 0),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_R5_the_states_that_an_optimizer_will_keep_are_known_before_its_first_step(name: str) -> None:
    """As many of a parameter's size as it has after that."""
    make, states = OPTIMIZERS[name]
    weight = nn.Parameter(torch.ones(WIDTH, WIDTH, device=DEVICE))
    optimizer = make([weight])
    slot = next(iter(growth.states()))
    assert growth.states()[slot] == states <= growth.MOST
    weight.square().sum().backward()
    optimizer.step()
    kept = [t for t in optimizer.state[weight].values() if isinstance(t, torch.Tensor) and t.shape == weight.shape]
    assert len(kept) == states


def test_R5_an_optimizer_that_nobody_knows_counts_as_adam() -> None:
    class Own(torch.optim.SGD):
        pass

    weight = nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = Own([weight], lr=0.1)
    assert growth.states() == {} and growth.of_phases([]) == (1, 2)
    del optimizer


@pytest.mark.parametrize(("name", "times"), [("sgd", 2), ("momentum", 3), ("adam", 4), ("amsgrad", 5)])
@pytest.mark.parametrize("enough", [False, True])
def test_R5_a_model_is_divided_where_its_own_optimizer_needs_that(
    name: str, times: int, enough: bool, told: list[list[Plan]]
) -> None:
    """Its weights, gradients and states fit on one worker, or do not; the first value is read before the backward."""

    def program(device: str) -> Any:
        model, x = layers().to(device), torch.rand(4, WIDTH).to(device)
        return trained(model, x, OPTIMIZERS[name][0](model.parameters()))

    with using(over(4, times * WEIGHTS + (PLAY if enough else -PLAY // 4))) as executor:
        same(program)
        assert (executor._workers is None) is enough
    assert [plans[0].excess for plans in told] == ([] if enough else [0])


@pytest.mark.parametrize("fits", [False, True])
def test_R5_frozen_parameters_come_to_need_nothing(fits: bool, told: list[list[Plan]]) -> None:
    """Adapters train beside weights that do not; a storage that a trained parameter has, too, counts as that."""

    class Adapted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.requires_grad_(False)
            self.adapter = nn.Linear(WIDTH, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.adapter(x)

    def program(device: str) -> Any:
        model = nn.Sequential(*[Adapted() for _ in range(LAYERS)]).to(device)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        return trained(model, torch.rand(4, WIDTH).to(device), optimizer)

    with using(over(4, WEIGHTS + (PLAY if fits else -WEIGHTS // 8))) as executor:
        same(program)
        assert (executor._workers is None) is fits
    assert [plans[0].excess for plans in told] == ([] if fits else [0])


def test_R5_what_is_frozen_is_known_by_its_storage() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(2, 2, device=DEVICE)
            self.two = nn.Linear(2, 2, device=DEVICE).requires_grad_(False)
            self.two.weight = nn.Parameter(self.one.weight.detach(), requires_grad=False)
            self.norm = nn.BatchNorm1d(2, affine=False, device=DEVICE)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.two(self.one(x)))

    model = Tied()
    model(torch.ones(3, 2, device=DEVICE))
    slots = {name: growth.slot_of(t) for name, t in (*model.named_parameters(), *model.named_buffers())}
    frozen = growth.frozen()
    assert slots["one.weight"] == slots["two.weight"]
    assert {name for name, slot in slots.items() if slot in frozen} == {
        "two.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked",
    }  # fmt: skip


@pytest.mark.parametrize("made", [False, True])
def test_R5_integers_come_to_need_no_gradients(made: bool) -> None:
    """made: in the segment that reads them; else they were there before."""
    with using(over(2, 100_000)) as executor:
        ids = torch.arange(4000, device=DEVICE) % 10  # 32,000 bytes, which fit three times, and not four times
        if not made:
            ids.sum().item()
        net = nn.Embedding(10, 4).to(DEVICE)
        net(ids[:5]).sum().item()
        assert executor._workers is None
        del ids, net


# ---- modules that come later -----------------------------------------------------------------------------------------
class Expert(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.down(self.up(x).relu()))


class Routed(nn.Module):
    """Asks for the rows of each expert, in the middle of its forward."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.route = nn.Linear(width, experts)
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, y = self.route(x).argmax(-1), torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows = (best == k).nonzero().flatten()
            if rows.numel():
                y = y.index_add(0, rows, expert(x[rows]))
        return x + y


class Mixture(nn.Module):
    def __init__(self, width: int = 32, layers: int = 4, experts: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Routed(width, experts) for _ in range(layers))
        self.head = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


MIXTURE = sum(p.numel() * 4 for p in Mixture().parameters())


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("made", [False, True])
def test_R5_a_model_that_reads_in_its_forward_is_planned_as_a_whole(
    trains: bool, made: bool, told: list[list[Plan]]
) -> None:
    """Pieces were planned one by one, as far as the program had come: five tables, and as many workers as came to
    mind. made: on the device; else it is uploaded."""

    def program(device: str) -> Any:
        with torch.device(device if made else "cpu"):
            model, x = Mixture(), torch.rand(16, 32)
        model, x = model.to(device), x.to(device)
        torch.manual_seed(7)  # what was drawn until here may have been drawn on the CPU
        optimizer, out = torch.optim.SGD(model.parameters(), lr=0.1), []
        for _ in range(3):
            with torch.set_grad_enabled(trains):
                loss = model(x).square().mean()
            if trains:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            out.append(loss.item())
        return out, list(model.parameters())

    limit = int(MIXTURE / 1.2 if trains else MIXTURE / 2.5)
    with using(over(4, limit)) as executor:
        same(program)
        assert [executor._held(each) <= limit for each in executor.executors] == [True] * 4
        modules = [name for name, part in Mixture().named_modules() if not isinstance(part, nn.ModuleList)]
        assert executor._workers is not None
        assert {path.removeprefix("Mixture").lstrip(".") for path in executor._workers} == set(modules)
    (plans,) = told
    assert plans[0].excess == 0 and plans[0].used > 1
    gc.collect()
    mindtorch.flush("test")


def test_R5_what_was_planned_ahead_comes_to_its_module_once() -> None:
    """The weights were on the first worker, from before; evaluations that follow move only what layers give others."""
    with using(over(4, int(MIXTURE * 1.5))) as executor, torch.no_grad():
        model, x = Mixture().to(DEVICE), torch.rand(16, 32).to(DEVICE)
        model(x).sum().item()
        sum(p.sum() for p in model.parameters()).item()  # of experts that have not run, too
        assert executor._workers is None and executor._held(executor.executors[0]) >= MIXTURE
        other = torch.ones(MIXTURE // 4, device=DEVICE)  # what is left of the room is not enough for both
        assert other.sum().item() == MIXTURE // 4
        model(x).sum().item()
        assert executor._workers is not None
        before = sum(executor.moves.values())
        model(x).sum().item()
        assert sum(executor.moves.values()) - before < MIXTURE // 8
        del model, x, other


def test_R5_a_program_that_is_over_with_a_model_plans_nothing_ahead() -> None:
    """Modules that it holds and did not call are no part of the plan."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = layers(), nn.Linear(WIDTH, 40 * WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    with using(over(2, WEIGHTS)) as executor, torch.no_grad():
        model, x = Two().to(DEVICE), torch.rand(4, WIDTH).to(DEVICE)
        model(x).sum().item()
        assert isinstance(executor, PlacingExecutor) and executor._workers is not None
        assert not any("unused" in path for path in executor._workers)
        del model, x
