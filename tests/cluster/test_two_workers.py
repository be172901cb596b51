"""R2: two actors, one model; what goes from one to the other does not pass through the program."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.cluster.broker_client import Link
from mindtorch.cluster.ray_child import RayChild
from mindtorch.cluster.ray_executor import RayExecutor

from ..executors import using
from ..remote import test_repeated as repeated
from ..remote import test_slices as slices
from ..remote.test_placing import same

FIRST, SECOND = "remote_accelerator:0", "remote_accelerator:1"
pytestmark = pytest.mark.usefixtures("nothing_pending")


@pytest.fixture(scope="module")
def actors(link: Link, shared_actor: RayExecutor) -> Iterator[tuple[RayExecutor, RayExecutor]]:
    second = RayExecutor(link)
    yield shared_actor, second
    second.close()


@pytest.fixture
def two(actors: tuple[RayExecutor, RayExecutor]) -> Iterator[mindtorch.SpreadExecutor]:
    with using(mindtorch.SpreadExecutor(actors)) as executor:
        yield executor


def training(first: str, second: str) -> tuple[list[float], list[torch.Tensor]]:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(8, 300), nn.ReLU(), nn.Linear(300, 16)).to(first)
    head = nn.Linear(16, 2).to(second)
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    x, y = torch.linspace(-1, 1, 32).view(4, 8).to(first), torch.tensor([0, 1, 1, 0]).to(second)
    losses = []
    for _ in range(6):
        loss = nn.functional.cross_entropy(head(body(x).to(second)), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in parameters]


def test_R2_one_model_on_two_actors_trains_bit_for_bit_as_on_the_cpu(two: mindtorch.SpreadExecutor) -> None:
    before = [dict(executor.stats) for executor in two.executors]
    expected, found = training("cpu", "cpu"), training(FIRST, SECOND)
    assert found[0] == expected[0]
    assert all(torch.equal(a, b) for a, b in zip(found[1], expected[1], strict=True))
    assert len(set(two.stats["process"])) == 2
    assert all(e.stats["messages"] > b["messages"] for e, b in zip(two.executors, before, strict=True))


def test_R2_a_large_tensor_goes_from_one_actor_to_the_other_without_us(two: mindtorch.SpreadExecutor) -> None:
    """In several parts, and there and back again."""
    x = torch.arange(6_000_000.0, device=FIRST)
    assert x[-1].item() == 5_999_999
    before = two.stats
    there = (x + 1).to(SECOND)
    doubled = there * 2
    back = doubled.to(FIRST)
    assert (back - 2 * x).sum().item() == 12_000_000
    assert there[[0, 2_500_000, -1]].tolist() == [1, 2_500_001, 6_000_000]
    crossed = [two.stats[name] - before[name] for name in ("bytes_up", "bytes_down")]
    assert max(crossed) < 10_000, crossed


def test_R2_small_values_go_from_one_actor_to_the_other_in_one_parcel(
    two: mindtorch.SpreadExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clipping: however many tensors there are, one each way. Large ones have parcels of their own."""
    brought: list[int] = []
    bring = RayChild.bring

    def counting(self: RayChild, ticket: int, nbytes: int, *args: Any, **kwargs: Any) -> None:
        brought.append(nbytes)
        bring(self, ticket, nbytes, *args, **kwargs)

    monkeypatch.setattr(RayChild, "bring", counting)
    counts = []
    for n in (4, 16, 64):
        ps = [nn.Parameter((torch.arange(5.0) + k).to((FIRST, SECOND)[2 * k // n])) for k in range(n)]
        for p in ps:
            p.grad = torch.ones_like(p) * 2
        assert ps[0].grad is not None and ps[-1].grad is not None
        ps[0].grad.sum().item(), ps[-1].grad.sum().item()
        before = [(each.stats["messages"], each.stats["waits"]) for each in two.executors]
        brought.clear()
        norm = nn.utils.clip_grad_norm_(ps, 0.5)
        assert norm.item() == pytest.approx((20 * n) ** 0.5)
        assert ps[-1].grad.sum().item() == pytest.approx(2.5 / (5 * n) ** 0.5)
        now = [(each.stats["messages"], each.stats["waits"]) for each in two.executors]
        counts.append([tuple(a - b for a, b in zip(*pair, strict=True)) for pair in zip(now, before, strict=True)])
        assert brought == [4 * n // 2, 4], "the norms there, the factor back"
    assert counts[0] == counts[1] == counts[2]
    brought.clear()
    large, small = torch.ones(40_000, device=FIRST), [torch.ones(k, device=FIRST) for k in range(3)]
    moved = [t.to(SECOND) for t in (*small, large)]
    assert sum(t.sum() for t in moved).item() == 40_003 and sorted(brought) == [12, 160_000]


def test_R4_a_parcel_of_several_has_each_failure_in_its_place(two: mindtorch.SpreadExecutor) -> None:
    good = [torch.arange(3.0, device=FIRST) + k for k in range(2)]
    bad = torch.ones(3, device=FIRST).gather(0, torch.full((3,), 700, device=FIRST))
    a, b, c = (t.to(SECOND) for t in (good[0], bad, good[1]))
    assert (a + c).tolist() == [1, 3, 5]
    with pytest.raises(mindtorch.MaterializationError, match=r"aten::gather.*test_two_workers\.py"):
        (a + b).sum().item()
    assert (c * 2).tolist() == [2, 4, 6]


def test_R4_what_has_failed_on_one_actor_has_failed_on_the_other(two: mindtorch.SpreadExecutor) -> None:
    bad = torch.ones(100, device=FIRST).gather(0, torch.full((100,), 700, device=FIRST))
    there = bad.to(SECOND) + 1
    fine = torch.ones(3, device=SECOND) + 1
    assert fine.tolist() == [2, 2, 2]
    with pytest.raises(mindtorch.MaterializationError, match=r"aten::gather.*test_two_workers\.py"):
        there.sum().item()
    with pytest.raises(mindtorch.MaterializationError, match=r"aten::gather.*test_two_workers\.py"):
        bad.sum().item()
    assert (fine + 1).tolist() == [3, 3, 3]


def test_R2_empty_and_small_tensors_go_the_same_way(two: mindtorch.SpreadExecutor) -> None:
    for made in (
        torch.empty(0, 3),
        torch.tensor(5),
        torch.arange(4, dtype=torch.int8).view(2, 2).t(),
        torch.ones(2) > 0,
    ):
        there = made.to(FIRST).to(SECOND)
        assert torch.equal(there.cpu(), made) and there.stride() == made.stride()


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_R4_an_actor_that_is_gone_takes_with_it_what_it_had_given(
    how: signal.Signals, link: Link, shared_actor: RayExecutor
) -> None:
    second = RayExecutor(link)
    with using(mindtorch.SpreadExecutor([second, shared_actor])):
        x = torch.ones(1000, device=FIRST) + 1
        kept = torch.ones(3, device=SECOND) * 3
        assert x.sum().item() == 2000 and kept.sum().item() == 9
        os.kill(second.process or 0, how)
        with pytest.raises(mindtorch.MaterializationError, match="session lost"):
            for _ in range(100):
                x = x + 1
                x.to(SECOND).sum().item()
        assert (kept + 1).tolist() == [4, 4, 4], "what the other one has is there"
    second.close()
    with using(shared_actor):
        assert torch.ones(3, device=FIRST).sum().item() == 3


def test_R5_a_mask_is_computed_on_both_actors_and_of_a_value_the_part_that_is_read_crosses(
    actors: tuple[RayExecutor, RayExecutor],
) -> None:
    """As between other workers."""
    activations = repeated.BATCH * repeated.TOKENS * repeated.WIDTH * 4
    with using(repeated.placed_on(iter(actors).__next__)) as executor:
        same(lambda device: repeated.run(device, True)[0])
        for moves, _joined in repeated.run(FIRST, True, executor)[1][1:]:
            assert moves == {(0, 1): activations + 16, (1, 0): activations}
        assert sum(executor.spared.values()) >= 6 * repeated.MASK

    def reads(device: str) -> torch.Tensor:
        torch.manual_seed(3)
        model = slices.Reader(lambda y: [y[3], y[5]]).to(device)
        with torch.no_grad():
            return model(torch.rand(64, 64).to(device)).cpu()

    with using(slices.two(iter(actors).__next__)) as executor:
        same(reads)
        assert executor.moves[1, 0] == 3 * 64 * 4  # from the first of its numbers to the last
