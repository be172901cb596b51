"""R4: a worker that is lost is rebuilt where that is exact: another one gets the same messages."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.cluster.broker_client import Link
from mindtorch.cluster.ray_executor import RayExecutor
from mindtorch.engine.remote.placing import PlacingExecutor

from ..executors import using

LAZY = "remote_accelerator:0"
pytestmark = pytest.mark.usefixtures("nothing_pending")


@pytest.fixture
def rebuilt(link: Link) -> Iterator[RayExecutor]:
    with using(RayExecutor(link, lineage=64 << 20)) as executor:
        yield executor
    executor.close()


def end(executor: RayExecutor, how: int = signal.SIGKILL) -> None:
    os.kill(executor.stats["process"], how)


def losses_of(
    net: nn.Module, optimizer: torch.optim.Optimizer, given: Callable[[], torch.Tensor], after: dict[int, RayExecutor]
) -> list[float]:
    """Of six steps, after some of which a worker ends."""
    losses = []
    for step in range(6):
        loss = net(given()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step in after:
            end(after[step])
    return losses


def training(device: str, after: dict[int, RayExecutor]) -> tuple[list[float], list[torch.Tensor]]:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(), nn.BatchNorm1d(16), nn.Linear(16, 2)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    torch.manual_seed(4)
    losses = losses_of(net, optimizer, lambda: torch.rand(4, 8, device=device), after)
    return losses, [t.detach().cpu() for t in (*net.parameters(), *net.buffers())]


def test_R4_training_goes_on_bit_for_bit_when_its_worker_is_killed(
    rebuilt: RayExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """Random numbers, batch norm's statistics and the optimizer's state included."""
    expected = training("cpu", {})
    found = training(LAZY, {2: rebuilt, 4: rebuilt})
    assert found[0] == expected[0]
    assert all(torch.equal(a, b) for a, b in zip(found[1], expected[1], strict=True))
    assert rebuilt.stats["rebuilt"] == 2
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == ["the worker"] * 2


@pytest.mark.whole
def test_R4_one_that_is_stopped_is_rebuilt_too(rebuilt: RayExecutor) -> None:
    x = torch.arange(10.0).to(LAZY)
    assert x.sum().item() == 45
    end(rebuilt, signal.SIGSTOP)
    assert (x + 1).sum().item() == 55 and rebuilt.stats["rebuilt"] == 1


def test_R4_what_has_failed_there_has_failed_again(rebuilt: RayExecutor) -> None:
    bad = torch.ones(100, device=LAZY).gather(0, torch.full((100,), 700, device=LAZY))
    good = torch.ones(3, device=LAZY) + 1
    with pytest.raises(mindtorch.MaterializationError, match="aten::gather"):
        bad.sum().item()
    assert good.tolist() == [2, 2, 2]
    end(rebuilt)
    with pytest.raises(mindtorch.MaterializationError, match="aten::gather"):
        bad.sum().item()
    assert (good * 2).tolist() == [4, 4, 4] and rebuilt.stats["rebuilt"] == 1


def test_R4_too_much_to_keep_ends_the_session(link: Link) -> None:
    executor = RayExecutor(link, lineage=1000)
    with using(executor):
        x = torch.ones(1000).to(LAZY)
        assert x.sum().item() == 1000
        end(executor)
        with pytest.raises(mindtorch.MaterializationError, match="session lost"):
            x.sum().item()
    executor.close()


def test_R4_what_took_long_is_not_repeated(rebuilt: RayExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(1000).to(LAZY)
    assert x.sum().item() == 1000 and rebuilt._lineage is not None and rebuilt._lineage.complete
    monkeypatch.setattr("mindtorch.engine.remote.lineage._LONGEST", 0.0)
    assert (x + 1).sum().item() == 2000 and not rebuilt._lineage.complete
    end(rebuilt)
    with pytest.raises(mindtorch.MaterializationError, match="session lost"):
        x.sum().item()


@pytest.mark.whole
def test_R4_a_message_that_ends_every_worker_is_sent_to_two(
    rebuilt: RayExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(3).to(LAZY)
    assert x.sum().item() == 3
    renew = rebuilt._renewed

    def renewed() -> object:
        send = renew()
        end(rebuilt, signal.SIGSTOP)  # the next one is of no more use
        os.kill(rebuilt.stats["process"], signal.SIGKILL)
        return send

    monkeypatch.setattr(rebuilt, "_renewed", renewed)
    end(rebuilt)
    with pytest.raises(mindtorch.MaterializationError, match="session lost"):
        (x + 1).sum().item()
    with pytest.raises(mindtorch.MaterializationError, match="session lost"):
        (x + 1).sum().item()


def test_R4_other_replies_are_not_taken_for_the_same(rebuilt: RayExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(3).to(LAZY)
    assert 0 < x.sum().item() < 3
    assert rebuilt._lineage is not None and rebuilt._lineage._messages
    message, _digest, parcels = rebuilt._lineage._messages[-1]
    rebuilt._lineage._messages[-1] = message, b"another one", parcels
    end(rebuilt)
    with pytest.raises(mindtorch.MaterializationError, match="cannot be rebuilt bit for bit"):
        (x + 1).sum().item()


# ---- copies between workers ------------------------------------------------------------------------------------------
@pytest.fixture
def two(link: Link) -> Iterator[mindtorch.SpreadExecutor]:
    made = mindtorch.SpreadExecutor([RayExecutor(link, lineage=64 << 20) for _ in range(2)])
    with using(made):
        yield made
    for executor in made.executors:
        executor.close()  # type: ignore[attr-defined]


def split_training(
    first: str, second: str, between: Callable[[int, int], None]
) -> tuple[list[float], list[torch.Tensor]]:
    """A model on two workers; `between` is called with the step and how far that is."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(8, 30), nn.ReLU(), nn.Dropout(), nn.Linear(30, 16)).to(first)
    head = nn.Linear(16, 2).to(second)
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    x, y = torch.linspace(-1, 1, 32).view(4, 8).to(first), torch.tensor([0, 1, 1, 0]).to(second)
    torch.manual_seed(1)
    losses = []
    for step in range(6):
        between(step, 0)
        loss = nn.functional.cross_entropy(head(body(x).to(second)), y)
        between(step, 1)
        optimizer.zero_grad()
        loss.backward()
        between(step, 2)
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        between(step, 3)
        losses.append(loss.item())
    return losses, [t.detach().cpu() for t in parameters]


def ends(two: mindtorch.SpreadExecutor, when: dict[tuple[int, int], tuple[int, ...]]) -> Callable[[int, int], None]:
    def between(step: int, part: int) -> None:
        for which in when.get((step, part), ()):
            end(two.executors[which])  # type: ignore[arg-type]

    return between


@pytest.mark.parametrize(
    "when",
    [
        pytest.param({(2, 0): (0,), (4, 0): (1,)}, id="each", marks=pytest.mark.whole),
        pytest.param({(2, 1): (0, 1)}, id="both"),
        pytest.param({(1, 2): (1,), (3, 3): (0,), (4, 2): (1, 0)}, id="again", marks=pytest.mark.whole),
    ],
)
def test_R4_either_of_two_workers_with_copies_between_them_is_rebuilt(
    two: mindtorch.SpreadExecutor, when: dict[tuple[int, int], tuple[int, ...]]
) -> None:
    expected = split_training("cpu", "cpu", lambda *at: None)
    found = split_training(LAZY, "remote_accelerator:1", ends(two, when))
    assert found[0] == expected[0]
    assert all(torch.equal(a, b) for a, b in zip(found[1], expected[1], strict=True))
    assert two.stats["rebuilt"] >= sum(map(len, when.values()))


def test_R4_both_are_rebuilt_where_each_waits_for_what_the_other_is_to_give(two: mindtorch.SpreadExecutor) -> None:
    """There and back in messages that nobody has an answer to yet: each goes before the next that takes from it."""
    x = torch.arange(3.0, device=LAZY)
    assert x.to("remote_accelerator:1").tolist() == [0, 1, 2]
    for executor in two.executors:
        end(executor)  # type: ignore[arg-type]
    for _ in range(4):
        x = ((x + 1).to("remote_accelerator:1") * 2).to(LAZY)
    assert x.tolist() == [30, 46, 62] and two.stats["rebuilt"] == 2


def test_R4_one_that_cannot_be_rebuilt_fails_with_all_that_goes_there_and_back(link: Link) -> None:
    """Each asks the other why that failed."""
    executors = [RayExecutor(link, lineage=lineage) for lineage in (64 << 20, 0)]
    with using(mindtorch.SpreadExecutor(executors)):
        x = torch.arange(3.0, device=LAZY)
        assert x.to("remote_accelerator:1").tolist() == [0, 1, 2]
        end(executors[0])
        for _ in range(3):
            x = ((x + 1).to("remote_accelerator:1") * 2).to(LAZY)
        with pytest.raises(mindtorch.MaterializationError, match=r"did not arrive|session lost: the worker"):
            x.tolist()
    for executor in executors:
        executor.close()


def test_R4_what_a_worker_took_is_kept_though_its_giver_has_gone(two: mindtorch.SpreadExecutor) -> None:
    """In several parts, and nothing of it is kept any more once the worker is not to be rebuilt."""
    x = torch.arange(6_000_000.0, device=LAZY)
    there = (x + 1).to("remote_accelerator:1")
    assert there[-1].item() == 6_000_000
    giver, taker = two.executors
    assert isinstance(giver, RayExecutor) and isinstance(taker, RayExecutor)
    giver._no_lineage()
    end(giver)
    end(taker)
    assert there[[0, 3_000_000]].tolist() == [1, 3_000_001] and taker.stats["rebuilt"] == 1
    with pytest.raises(mindtorch.MaterializationError, match="session lost"):
        (x * 2).sum().item()


@pytest.mark.whole
def test_R4_what_two_workers_gave_counts_among_what_is_kept(link: Link) -> None:
    small = [RayExecutor(link, lineage=100_000) for _ in range(2)]
    with using(mindtorch.SpreadExecutor(small)):
        x = torch.arange(1000.0, device=LAZY)
        giver, taker = (executor._lineage for executor in small)
        assert giver is not None and taker is not None
        for time in range(30):
            there = x.to("remote_accelerator:1")
            assert (there + 1)[-1].item() == 1000
            assert giver.complete and taker.complete is (taker._nbytes <= 100_000)
            assert taker._nbytes > 4000 * (time + 1) or not taker.complete
        assert not taker.complete
    for executor in small:
        executor.close()


def divided_training(device: str, after: dict[int, RayExecutor]) -> list[float]:
    torch.manual_seed(5)
    parts = [nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1)) for _ in range(6)]
    parts[5][0].weight = parts[0][0].weight
    net = nn.Sequential(*parts, nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    x = torch.linspace(-1, 1, 8 * 64).view(8, 64).to(device)
    torch.manual_seed(6)
    losses = losses_of(net, optimizer, lambda: x, after)
    return [*losses, *(float(p.detach().double().sum()) for p in net.parameters())]


def test_R5_a_divided_model_goes_on_bit_for_bit_when_its_workers_are_killed(link: Link) -> None:
    executors = [RayExecutor(link, lineage=64 << 20) for _ in range(2)]
    expected = divided_training("cpu", {})
    with using(PlacingExecutor(executors, 200_000)) as placing:
        placing._workers = {"Sequential": 0, **{f"Sequential.{k}": k // 4 for k in range(7)}}
        placing._workers.update({f"Sequential.{k}.{i}": k // 4 for k in range(6) for i in range(3)})
        copied: list[int] = []
        add = placing._copies.add

        def added(value: torch.Tensor, *where: Any) -> None:
            copied.append(value.untyped_storage().nbytes())
            add(value, *where)

        placing._copies.add = added  # type: ignore[method-assign]
        found = divided_training(LAZY, {1: executors[0], 3: executors[1]})
        assert found == expected and placing.stats["rebuilt"] >= 2
        assert all(executor.stats["bytes_up"] > 40_000 for executor in executors), "its weights are on both"
        assert copied.count(64 * 64 * 4) >= 4, "a weight is read by both, and written in each step"
    for executor in executors:
        executor.close()
