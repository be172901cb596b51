"""L14 on a worker: what was computed there before is not computed again, and stays there."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mindtorch
from mindtorch.base.errors import MaterializationError
from mindtorch.engine.remote.client import RemoteExecutor
from mindtorch.engine.remote.worker import Worker
from tests.caching import LAZY, counts, nothing_counted, up
from tests.executors import using

pytestmark = pytest.mark.usefixtures(nothing_counted.__name__)

GRAIN = 1 << 16  # from so many bytes on, an upload has a digest without a cache


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each segment that a worker of this process has run, the number of its plan."""
    found: list[int] = []
    run = Worker.run

    def noted(self: Worker, plan: int, *given: Any) -> Any:
        found.append(plan)
        return run(self, plan, *given)

    monkeypatch.setattr(Worker, "run", noted)
    return found


@pytest.fixture
def there() -> Iterator[RemoteExecutor]:
    with using(mindtorch.LoopbackExecutor()) as executor:
        yield executor


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    ).eval()


def evaluate(model: torch.nn.Module, device: str) -> list[float]:
    made = torch.Generator().manual_seed(1)
    losses = []
    with torch.no_grad():
        for _ in range(3):
            x, y = torch.randn(2, 3, 8, 8, generator=made), torch.randint(5, (2,), generator=made)
            x = x.to(device).sub_(0.5).div_(2.0)  # preprocessing that writes to what it was given
            losses.append(F.cross_entropy(model(x), y.to(device)).item())
    return losses


def test_L14_a_second_evaluation_on_a_worker_neither_runs_nor_waits(there: RemoteExecutor, runs: list[int]) -> None:
    expected = evaluate(net(), "cpu")
    model = net().to(LAZY)
    with mindtorch.cache() as cache:
        assert evaluate(model, LAZY) == expected and counts() == (0, 3) and len(runs) == 3
        kept, waits = cache.nbytes, there.waits
        statistics = 2 * 4 * 4  # which batch norm may write to, as far as its schema says
        assert kept == 3 * (2 * 3 * 8 * 8 * 4 + statistics + 4) == mindtorch.stats()["cache_bytes"]
        assert evaluate(model, LAZY) == expected and counts() == (3, 3) and len(runs) == 3
        assert there.waits == waits and cache.nbytes == kept
        with torch.no_grad():
            model[4].bias.add_(0.25)  # type: ignore[operator]
        changed = net()
        with torch.no_grad():
            changed[4].bias.add_(0.25)  # type: ignore[index, operator]
        assert evaluate(model, LAZY) == evaluate(changed, "cpu") and counts()[0] == 3
    evaluate(model, LAZY)
    assert counts()[0] == 3, "outside the block nothing is looked up"


def test_L14_through_a_pipe(tmp_path: Path) -> None:
    expected = evaluate(net(), "cpu")
    with using(mindtorch.PipeExecutor()):
        model = net().to(LAZY)
        with mindtorch.cache():
            assert [evaluate(model, LAZY) for _ in range(3)] == [expected] * 3 and counts() == (6, 3)


@pytest.mark.parametrize("count", [1024, 1025, GRAIN // 4 - 1, GRAIN // 4])
def test_L14_the_worker_is_asked_once_for_what_nobody_has_named(count: int, there: RemoteExecutor) -> None:
    x = torch.arange(float(count)).to(LAZY)  # before there is a cache: 4 KiB are known here, 64 KiB have a digest
    assert x[0].item() == 0
    with mindtorch.cache():
        waits = there.waits
        for _ in range(3):
            assert (x * 2)[-1].item() == 2 * (count - 1)
        asked = 1024 < count < GRAIN // 4
        # One for the machine, and one for each value if it is too large to come unasked.
        assert there.waits - waits == 1 + 3 + asked and counts() == (2, 1)
        x += 1
        for found in (2, 2, 3):  # with the addition, by itself, and that again
            assert (x * 2)[-1].item() == 2 * count and counts()[0] == found


def test_L14_a_write_on_the_worker_gives_a_new_name(there: RemoteExecutor) -> None:
    with mindtorch.cache():
        x, y = up(1, 2), torch.ones(2).to(LAZY)
        assert (x + 1).tolist() == [2, 3]
        x.mul_(3)
        assert (x + 1).tolist() == [4, 7] and (x + 1).tolist() == [4, 7]
        x[0] = 10
        assert (x + 1).tolist() == [11, 7]
        assert torch.unique(y).tolist() == [1]
        y.index_fill_(0, torch.tensor([1]).to(LAZY), 5)
        assert (y + 1).tolist() == [2, 6]


def test_L14_what_is_written_to_is_so_where_it_was_found(there: RemoteExecutor, runs: list[int]) -> None:
    with mindtorch.cache():
        results = []
        for _ in range(3):
            x = torch.arange(4.0).to(LAZY)
            half = x[2:]
            half.mul_(2)
            results.append((x.tolist(), (half + 1).tolist(), half.tolist()))
        assert results == [([0, 1, 4, 6], [5, 7], [4, 6])] * 3
        assert counts() == (4, 2) and len(runs) == 2


def test_L14_values_that_are_found_on_a_worker_are_nobody_else_s(there: RemoteExecutor) -> None:
    with mindtorch.cache():
        x = up(1, 2)
        first = x * 2
        assert first.tolist() == [2, 4]
        first.add_(100)
        second = x * 2
        assert second.tolist() == [2, 4] and first.tolist() == [102, 104]
        second.zero_()
        assert second.tolist() == [0, 0] and (x * 2).tolist() == [2, 4] and counts()[0] >= 2


def test_L14_results_of_a_worker_have_names_of_their_own(there: RemoteExecutor, runs: list[int]) -> None:
    with mindtorch.cache():
        for _ in range(2):
            h = torch.full((40000,), 2.0).to(LAZY) * 3
            assert h[0].item() == 6
            waits = there.waits
            assert (h + 1)[1].item() == 7
            assert there.waits - waits <= 1
        assert counts() == (2, 2) and len(runs) == 2


def test_L14_a_failure_on_a_worker_is_not_kept(there: RemoteExecutor) -> None:
    def fails() -> None:
        with pytest.raises((IndexError, MaterializationError)):
            F.embedding(torch.tensor([7]).to(LAZY), torch.ones(2, 2).to(LAZY)).cpu()

    with mindtorch.cache() as cache:
        assert (up(1) + 1).tolist() == [2]
        fails()
        fails()
        assert counts()[0] == 0
        assert (up(1) + 1).tolist() == [2] and (up(1) + 1).tolist() == [2] and counts()[0] == 1
        assert 0 < cache.nbytes <= 8


def test_L14_reasons_are_told_where_a_worker_keeps_nothing(there: RemoteExecutor, tmp_path: Path) -> None:
    executors = [mindtorch.LoopbackExecutor() for _ in range(2)]
    with mindtorch.cache(tmp_path):
        assert (up(1, 2) * 2).tolist() == [2, 4]
        with using(mindtorch.SpreadExecutor(executors)):
            assert (up(1, 2) * 2).tolist() == [2, 4]
    assert mindtorch.stats()["not_cacheable"] == {"its values are on a worker: only a cache in memory keeps those": 2}
    assert counts() == (0, 0) and not list(tmp_path.iterdir())


def test_L14_a_worker_holds_no_more_than_was_allowed_and_nothing_afterwards(there: RemoteExecutor) -> None:
    def held() -> int:
        mindtorch.flush("test")
        there.sync()
        return sum(there._mirrors.alive.values())

    before = held()
    with mindtorch.cache(max_bytes=400) as cache:
        for k in range(10):
            assert (up(*range(40)) + k).sum().item() == 780 + 40 * k  # of 4 bytes, and a view's 160 are not kept
            assert (up(*range(40)) * k).tolist() == [float(k * n) for n in range(40)]  # 160
            assert cache.nbytes <= 400
        assert 160 < cache.nbytes and held() - before == cache.nbytes
        (up(*range(101)) + 1).tolist()
        assert mindtorch.stats()["not_cacheable"] == {"its values are larger than the cache": 1}
    cache.clear()
    assert cache.nbytes == 0 and held() == before


def test_L14_a_lost_session_takes_its_values_with_it() -> None:
    with mindtorch.cache() as cache:
        for _ in range(2):
            with using(mindtorch.LoopbackExecutor()):
                assert [(up(1, 2) * 2).tolist() for _ in range(2)] == [[2, 4]] * 2
        assert counts() == (2, 2)
        assert (up(1, 2) * 2).tolist() == [2, 4] and counts() == (2, 3) and cache.nbytes >= 8


def test_L14_a_cache_keeps_no_worker_alive() -> None:
    def ran() -> weakref.ref[RemoteExecutor]:
        with using(mindtorch.LoopbackExecutor()) as executor:
            assert [(up(1, 2) * 2).tolist() for _ in range(2)] == [[2, 4]] * 2
            return weakref.ref(executor)

    with mindtorch.cache() as cache:
        there = ran()
        assert counts() == (1, 1)
        gc.collect()
        assert there() is None and cache.nbytes == 0
