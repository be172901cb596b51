"""R5: a program gets the same plan in each run, and when it is only asked for its plan; plans count what is there."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.engine.execute import machine, values
from mindtorch.engine.execute.pace import Pace
from mindtorch.engine.remote import placing
from mindtorch.engine.remote.cuts import plans
from mindtorch.engine.remote.pricing import Plan
from mindtorch.engine.remote.run_time import Computing, Costs, usual

from ..executors import using
from .test_cuts import work
from .test_placing import DEVICE, Language, mlp, over

pytestmark = pytest.mark.usefixtures("nothing_pending")

#: What a machine measures at one time, and at another: of what moves, and of what it computes.
MEASURED = [(Costs(3e-4, 1.0e-9), 1.0), (Costs(1.2e-3, 3e-9), 0.4), (Costs(1.7e-4, 4e-10), 2.5)]


def tied(device: str) -> None:
    model, ids = Language(words=400).to(device), torch.randint(0, 400, (2, 8)).to(device)
    step = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        loss = model(ids).float().square().mean()
        step.zero_grad()
        loss.backward()
        step.step()
        loss.item()


def read_first(device: str) -> None:
    model, x = mlp().to(device), torch.randn(4, 64).to(device)
    torch.stack([p.abs().sum() for p in model.parameters()]).sum().item()
    with torch.no_grad():
        model(x).sum().item()


def made_there(device: str) -> None:
    with torch.device(device), torch.no_grad():
        model = mlp()
        model(torch.randn(4, 64)).sum().item()


def fits(device: str) -> None:
    model, x = nn.Linear(8, 8).to(device), torch.randn(4, 8).to(device)
    with torch.no_grad():
        model(x).sum().item()


PROGRAMS: dict[str, tuple[Callable[[str], None], int]] = {
    "tied": (tied, 700_000),
    "read first": (read_first, 68_000),
    "made there": (made_there, 68_000),
}


def told(program: Callable[[str], None], limit: int, costs: Costs, speed: float, only: bool) -> list[Plan]:
    """The plans of a run on three workers, the first ones that it makes. speed: times what is measured here."""
    found: list[list[Plan]] = []
    timing = machine.timing
    values._pace = Pace()  # which has seen when earlier programs read their values
    before = placing.tell(found.append, only)

    def timed(*given: Any) -> Computing | None:
        made = timing(*given) if timing is not None else None
        if made is None:
            return None
        seconds = [[each * speed for each in worker] for worker in made.seconds]
        return Computing(seconds, made.shares, made.recorded, made.divided, made.part, made.usual)

    try:
        machine.timing = timed
        with using(over(3, limit)) as executor:
            executor._costs = costs
            torch.manual_seed(5)
            with suppress(SystemExit):
                program(DEVICE)
            placing.tell(None)
            mindtorch.flush("told")
            gc.collect()
    finally:
        machine.timing = timing
        placing.tell(*before)
    return found[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_R5_a_plan_that_is_asked_for_is_the_one_that_a_run_uses(name: str) -> None:
    """Whatever was measured: what differs is how many seconds each plan takes."""
    program, limit = PROGRAMS[name]
    first, *others = (told(program, limit, costs, speed, only) for costs, speed in MEASURED for only in (True, False))
    assert first[0].used > 1
    for other in others:
        assert [(plan.name, plan.workers, plan.memory) for plan in other] == [
            (plan.name, plan.workers, plan.memory) for plan in first
        ]
    assert len({plans[0].seconds for plans in (first, *others)}) == len(MEASURED)


def test_R5_what_stays_on_the_first_worker_is_planned_to_stay_there() -> None:
    """Also if another plan takes fewer seconds: a run makes no plan for it."""
    found = told(fits, 1 << 20, *MEASURED[0], only=True)
    assert (found[0].name, found[0].used, found[0].excess) == ("all on one", 1, 0)
    with pytest.raises(IndexError):
        told(fits, 1 << 20, *MEASURED[0], only=False)


def test_R5_plans_are_compared_by_usual_costs_and_show_measured_ones() -> None:
    costs, other = Costs(1 / 2, 1 / 64), Costs(1 / 4, 1 / 64)
    for plan, same in zip(plans(work(100, None), costs, {}, other), plans(work(100, None), other, {}), strict=True):
        assert plan.workers == same.workers and plan.rank() == same.rank()
        assert plan.seconds == plan.messages * costs.message + plan.moved * costs.byte


@pytest.mark.parametrize("direct", [False, True])
def test_R5_usual_costs_are_those_of_a_network_ten_times_as_slow_where_that_is_nearer(direct: bool) -> None:
    once = usual(Costs(1e-3, 1e-9, direct))
    assert once.direct == direct
    for times in (1 / 3, 1 / 2, 1, 2, 3):
        assert usual(Costs(once.message * times, once.byte * times, direct)) == once
    slow = usual(Costs(once.message * 4, once.byte * 9, direct))
    assert slow == Costs(pytest.approx(once.message * 10), pytest.approx(once.byte * 10), direct)
    none = usual(Costs(0.0, 0.0, direct))
    assert 0 < none.message < once.message / 100 and 0 < none.byte < once.byte / 100


@pytest.mark.parametrize("upload", [False, True])
def test_R5_what_has_failed_takes_no_memory_in_plans(upload: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while something here holds what stood for it, such as the traceback of the error."""
    held: list[torch.Tensor] = []
    with using(over(2, 1 << 30)) as executor:
        first = executor.executors[0]
        x, at = torch.ones(10, 50).to(DEVICE), torch.full((1000,), 5).to(DEVICE)
        assert x[at].sum().item() == 50_000

        def number(mirror: torch.Tensor, number: int, of: Callable[..., Any] = first._mirrors.number) -> torch.Tensor:
            held.append(mirror)
            return of(mirror, number)

        monkeypatch.setattr(first._mirrors, "number", number)
        monkeypatch.setattr("mindtorch.engine.remote.results.available_memory", lambda: 99)
        if upload:
            with pytest.raises(torch.OutOfMemoryError):
                torch.ones(20 << 20).to(DEVICE).sum().item()
        else:
            y = x[at + 5]
            with pytest.raises(mindtorch.MaterializationError, match="out of bounds"):
                (y + y.sum().item()).sum().item()
        assert max(mirror.untyped_storage().nbytes() for mirror in held) >= 200_000
        assert executor._held(first) < 20_000, first._mirrors.alive
