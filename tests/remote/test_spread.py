"""R2: several accelerators, each with a worker of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.engine.remote.placing import PlacingExecutor
from mindtorch.engine.remote.spread import SpreadExecutor
from mindtorch.engine.remote.worker import Worker

from ..executors import using

FIRST, SECOND = "remote_accelerator:0", "remote_accelerator:1"
KINDS = {"loopback": mindtorch.LoopbackExecutor, "pipe": mindtorch.PipeExecutor}
pytestmark = pytest.mark.usefixtures("nothing_pending")


@pytest.fixture(
    params=[
        (SpreadExecutor, "loopback"),
        pytest.param((SpreadExecutor, "pipe"), marks=pytest.mark.whole),
        (PlacingExecutor, "loopback"),
    ]
)
def spread(request: pytest.FixtureRequest) -> Iterator[SpreadExecutor]:
    kind, each = request.param
    with using(kind([KINDS[each]() for _ in range(2)])) as executor:
        yield executor


Program = Callable[[str, str], object]


def same(program: Program) -> object:
    """The program on two devices gives what it gives on the CPU, bit for bit."""
    torch.manual_seed(5)
    expected = program("cpu", "cpu")
    torch.manual_seed(5)
    found = program(FIRST, SECOND)
    torch.testing.assert_close(_home(found), _home(expected), rtol=0, atol=0, equal_nan=True)
    return found


def _home(a: object) -> object:
    if isinstance(a, torch.Tensor):
        return a.detach().cpu()
    return [_home(item) for item in a] if isinstance(a, (list, tuple)) else a


@pytest.mark.sample(2)
@pytest.mark.parametrize("foreach", [False, True])
def test_R2_a_model_on_two_workers_trains_as_on_the_cpu(foreach: bool, spread: SpreadExecutor) -> None:
    def program(first: str, second: str) -> object:
        body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.BatchNorm1d(16))
        head = nn.Linear(16, 2)
        body.to(first), head.to(second)
        parameters = [*body.parameters(), *head.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=0.1, foreach=foreach)
        losses = []
        for step in range(5):
            x = torch.linspace(-1, 1 + step, 32).view(4, 8).to(first)
            loss = nn.functional.cross_entropy(head(body(x).to(second)), torch.tensor([0, 1, 1, 0]).to(second))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
            losses.append(loss.item())
        assert first == "cpu" or {str(p.grad.device) for p in parameters if p.grad is not None} == {first, second}
        return losses, parameters, list(body.buffers())

    same(program)
    assert all(executor.stats["messages"] > 0 for executor in spread.executors)


def test_R2_what_is_on_a_device_is_run_by_its_worker_alone(spread: SpreadExecutor) -> None:
    one = torch.ones(1000, device=FIRST) * 2
    before = [dict(executor.stats) for executor in spread.executors]
    assert one.sum().item() == 2000
    messages = [e.stats["messages"] - b["messages"] for e, b in zip(spread.executors, before, strict=True)]
    assert messages == [1, 0]
    two = torch.ones(1000, device=SECOND)
    both = [one.sum(), two.sum()]
    assert torch.stack([t.cpu() for t in both]).tolist() == [2000, 1000]
    assert spread.stats["messages"] == sum(e.stats["messages"] for e in spread.executors)
    spread.executors[1].stats["rebuilt"] = 2  # as of a worker that can be rebuilt, beside one that cannot
    assert spread.stats["rebuilt"] == 2
    del spread.executors[1].stats["rebuilt"]


def test_R2_views_and_copies_share_what_they_share(spread: SpreadExecutor) -> None:
    def program(first: str, second: str) -> object:
        a = torch.arange(12.0).view(3, 4).to(first)
        part = a[1:, ::2]
        there = part.t().to(second, copy=True)
        back = there.to(first, copy=True)
        a.add_(1)
        there[0].mul_(3)
        b, c = copy.deepcopy([there, there[1:]])
        c.fill_(9)
        x = torch.zeros(2, 2).to(second)
        x.copy_(part)
        part.copy_(x * 2)
        x[0] = back[1].to(second)
        return a, part, there, there.stride(), back, b, c, x

    same(program)


def test_R2_a_move_of_a_part_takes_that_part_alone(spread: SpreadExecutor) -> None:
    large = torch.ones(1000, 1000, device=FIRST)
    before = spread.executors[1].stats["bytes_up"]
    moved = large[3].to(SECOND, torch.float64)
    assert moved.dtype is torch.float64 and moved.sum().item() == 1000
    assert spread.executors[1].stats["bytes_up"] - before < 20_000


def test_R2_addresses_of_two_workers_are_apart(spread: SpreadExecutor) -> None:
    held = [torch.arange(4.0).to(device) + 1 for device in (FIRST, SECOND, FIRST)]
    places = [t.data_ptr() for t in held]
    assert len(set(places)) == 3 and all(places)
    assert [place >> 44 == places[1] >> 44 for place in places] == [False, True, False]
    assert [t[1:].data_ptr() - place for t, place in zip(held, places, strict=True)] == [4, 4, 4]
    assert [torch.empty(0, device=device).data_ptr() for device in (FIRST, SECOND)] == [0, 0]


def test_R2_gradients_go_back_where_they_belong(spread: SpreadExecutor) -> None:
    def program(first: str, second: str) -> object:
        w = torch.linspace(0, 1, 6).to(first).requires_grad_()
        seen: list[str] = []
        y = (w * 2).to(second)
        y.register_hook(lambda g: seen.append(str(g.device)))
        z = (y * y).sum()
        (first_order,) = torch.autograd.grad(z, w, create_graph=True)
        first_order.square().sum().backward()
        assert first == "cpu" or (str(w.grad.device), set(seen)) == (first, {second})
        return z, first_order, w.grad

    same(program)


def test_R2_generators_are_of_their_devices(spread: SpreadExecutor) -> None:
    torch.manual_seed(3)
    drawn = [torch.rand(4, device=device) for device in (FIRST, SECOND, FIRST)]
    assert drawn[0].tolist() == drawn[1].tolist() != drawn[2].tolist()
    with using(mindtorch.LocalExecutor()):
        here = [torch.rand(4, device=device).tolist() for device in (FIRST, SECOND)]
    torch.manual_seed(3)
    there = [torch.rand(4, device=device).tolist() for device in (FIRST, FIRST, FIRST, SECOND, SECOND)]
    assert here == [there[2], there[4]]


def test_R2_values_go_along_when_the_executor_changes(spread: SpreadExecutor) -> None:
    a, b = torch.ones(3, device=FIRST), torch.ones(3, device=SECOND)
    view = b[1:]
    a.add_(1), b.add_(2)
    assert b.tolist() == [3, 3, 3]
    with using(mindtorch.LocalExecutor()):
        view.mul_(2)
        assert (a.tolist(), b.tolist()) == ([2, 2, 2], [3, 6, 6])
    view.add_(1)
    b.add_(1)
    assert (a.tolist(), b.tolist(), view.tolist()) == ([2, 2, 2], [4, 8, 8], [8, 8])


def test_R2_a_failure_is_the_worker_s_that_has_it(spread: SpreadExecutor) -> None:
    good = torch.ones(3, device=SECOND)
    bad = torch.ones(100, device=FIRST).gather(0, torch.full((100,), 700, device=FIRST))
    with pytest.raises(mindtorch.MaterializationError, match=r"aten::gather.*test_spread\.py"):
        bad.to(SECOND).sum().item()
    assert (good + 1).tolist() == [2, 2, 2]
    with pytest.raises(mindtorch.MaterializationError, match=r"aten::gather.*test_spread\.py"):
        bad.sum().item()


def test_D4_a_device_without_a_worker_is_told_with_the_line(spread: SpreadExecutor) -> None:
    beyond = torch.ones(3, device="remote_accelerator:2")
    with pytest.raises(
        mindtorch.MaterializationError, match=r"test_spread\.py:\d+.*expected a remote_accelerator in 0\.\.1.* got 2"
    ):
        beyond.sum().item()
    with pytest.raises(mindtorch.UsageError, match=r"in 0\.\.1, one for each worker, got 7"):
        torch.ones(3).to("remote_accelerator:7")
    del beyond
    assert torch.ones(3, device=FIRST).sum().item() == 3


@pytest.mark.parametrize("wrong", [[], [None], [mindtorch.LocalExecutor()], [mindtorch.LoopbackExecutor()] * 2])
def test_R2_what_cannot_be_spread_is_refused(wrong: list) -> None:
    with pytest.raises(mindtorch.UsageError, match="SpreadExecutor"):
        SpreadExecutor(wrong)


def test_R5_all_workers_begin_before_the_first_is_waited_for() -> None:
    seen: list[tuple[str, int]] = []

    def worker(k: int) -> mindtorch.RemoteExecutor:
        answers, replies = Worker("cpu").handle, {}

        def post(message: bytearray) -> None:
            seen.append(("begins", k))
            replies[id(message)] = answers(message)

        def send(message: bytearray) -> bytearray:
            seen.append(("is waited for", k))
            return replies.pop(id(message)) if id(message) in replies else answers(message)

        return mindtorch.RemoteExecutor(send, post)

    with using(SpreadExecutor([worker(0), worker(1)])):
        a, b = torch.ones(3, device=FIRST), torch.ones(3, device=SECOND)
        mindtorch.flush("their first messages")
        seen.clear()
        a.add_(1)
        b.add_(1)
        mindtorch.flush("test")
        assert seen == [("begins", 0), ("begins", 1), ("is waited for", 0), ("is waited for", 1)]
        assert (a.tolist(), b.tolist()) == ([2.0] * 3, [2.0] * 3)
