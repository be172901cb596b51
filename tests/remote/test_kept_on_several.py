"""L14 on several workers: values are kept where they are, and what is found runs nowhere and moves nowhere."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.base.errors import MaterializationError, SessionLost
from mindtorch.engine.remote.client import RemoteExecutor
from mindtorch.engine.remote.placing import PlacingExecutor
from mindtorch.engine.remote.worker import Worker
from tests.caching import LAZY, counts, nothing_counted, up
from tests.executors import Anywhere, using

pytestmark = pytest.mark.usefixtures(nothing_counted.__name__)

WIDTH = 64
LIMIT = 3 * WIDTH * WIDTH * 4  # bytes of a worker: a model has six such weights


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often workers of this process were asked for what, by name."""
    found: Counter[str] = Counter()
    answers = Worker.answers

    def noted(self: Worker, message: Any) -> list[Any]:
        checked = self._checks.message

        def note(requests: Any) -> list[tuple]:
            found.update(name for name, *_ in requests)
            return checked(requests)

        self._checks.message = note  # type: ignore[method-assign]
        try:
            return answers(self, message)
        finally:
            del self._checks.message

    monkeypatch.setattr(Worker, "answers", noted)
    return found


@pytest.fixture
def placed() -> Iterator[PlacingExecutor]:
    with using(PlacingExecutor([mindtorch.LoopbackExecutor() for _ in range(3)], limit=LIMIT)) as executor:
        yield executor


def net(dropout: float = 0.0) -> torch.nn.Module:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(6):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Dropout(dropout)]
    return torch.nn.Sequential(*layers)


def evaluate(model: torch.nn.Module, device: str, seed: int = 1) -> list[Any]:
    made = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    found = []
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(4, WIDTH, generator=made).to(device).mul_(0.5)
            y = model(x)
            found.append((y.sum().item(), y[:, ::7].tolist()))
    return found


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_L14_a_second_evaluation_on_several_workers_runs_and_moves_nothing(
    dropout: float, placed: PlacingExecutor, asked: Counter[str]
) -> None:
    expected = evaluate(net(dropout), "cpu")
    model = net(dropout).to(LAZY)
    with mindtorch.cache() as cache:
        assert evaluate(model, LAZY) == expected
        used = [executor for executor in placed.executors if executor._mirrors.alive]
        assert len(used) == 3 and asked["run"] >= 6, "the model is on all of them"
        hits, misses = counts()
        assert hits == 0 and misses == asked["run"]
        kept, moved, waits = cache.nbytes, sum(placed.moves.values()), placed.waits
        for again in (1, 2, 3):
            asked.clear()
            assert evaluate(model, LAZY) == expected
            assert counts() == (again * misses, misses) and cache.nbytes == kept
            assert not {"run", "call", "take", "give", "digest", "storage", "get_state"} & asked.keys(), asked
            assert sum(placed.moves.values()) == moved
        assert placed.waits - waits == 3 * 2, "one for each large value that is read"
        assert mindtorch.stats()["not_cacheable"] == {}
        assert evaluate(model, LAZY, 2) == evaluate(net(dropout), "cpu", 2)
    assert evaluate(model, LAZY) == expected


def test_L14_draws_go_on_on_several_workers_as_if_all_had_run(placed: PlacingExecutor) -> None:
    def program(model: torch.nn.Module, device: str, times: int) -> list[Any]:
        found = [evaluate(model, device) for _ in range(times)]
        x = torch.ones(2, WIDTH, device=device)
        with torch.no_grad():
            rest = [model(x).tolist(), torch.rand(3, device=device).tolist(), model(x).tolist()]
        return [found[-1], rest]

    expected = program(net(0.25), "cpu", 1)
    model = net(0.25).to(LAZY)
    with mindtorch.cache():
        assert program(model, LAZY, 3) == expected
        assert program(model, LAZY, 1) == expected
    assert program(model, LAZY, 1) == expected


def test_L14_a_changed_weight_on_one_worker_runs_what_follows_from_it(
    placed: PlacingExecutor, asked: Counter[str]
) -> None:
    model, plain = net().to(LAZY), net()
    with mindtorch.cache():
        for _ in range(2):
            assert evaluate(model, LAZY) == evaluate(plain, "cpu")
        before = counts()
        with torch.no_grad():
            for each in (model, plain):
                each[15].bias.add_(1)  # type: ignore[operator,union-attr]
        asked.clear()
        assert evaluate(model, LAZY) == evaluate(plain, "cpu")
        hits, misses = counts()
        assert hits - before[0] == 4 and 0 < asked["run"] == misses - before[1], "two parts of each batch were found"


def test_L14_each_of_several_devices_keeps_its_own(asked: Counter[str]) -> None:
    with using(mindtorch.SpreadExecutor([mindtorch.LoopbackExecutor() for _ in range(2)])):
        with mindtorch.cache():
            weight = torch.arange(4.0).to("remote_accelerator:1")

            def program() -> list[Any]:
                torch.manual_seed(3)
                x = up(1, 2, 3, 4) * 2
                there = x.to("remote_accelerator:1") * weight
                noise = torch.rand(4, device="remote_accelerator:1") + there
                return [x.tolist(), there.tolist(), noise.tolist(), torch.rand(2, device=LAZY).tolist()]

            torch.manual_seed(3)
            noise = torch.rand(4)
            torch.manual_seed(3)
            x = torch.tensor([1.0, 2, 3, 4]) * 2
            there = x * torch.arange(4.0)
            expected = [x.tolist(), there.tolist(), (noise + there).tolist(), torch.rand(2).tolist()]
            assert [program() for _ in range(2)] == [expected] * 2  # in the first run, more is pending at once
            hits, misses = counts()
            asked.clear()
            assert [program() for _ in range(2)] == [expected] * 2
            assert misses > 3 and counts() == (hits + 2 * 4, misses) and "run" not in asked


def test_L14_what_a_lost_worker_has_kept_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    executors = [mindtorch.LoopbackExecutor() for _ in range(2)]
    with using(mindtorch.SpreadExecutor(executors)), mindtorch.cache() as cache:
        first, second = up(1, 2), torch.ones(2).to("remote_accelerator:1")
        for _ in range(2):
            assert (first * 2).tolist() == [2, 4] and (second + 1).tolist() == [2, 2]
        assert counts() == (2, 2) and cache.nbytes == 16

        def lost(message: Any) -> Any:
            raise ConnectionError("the worker was killed")

        monkeypatch.setattr(executors[1], "_send", lost)
        with pytest.raises(SessionLost):
            executors[1].sync()
        with pytest.raises(MaterializationError):
            (second + 1).tolist()
        assert (first * 2).tolist() == [2, 4] and counts() == (3, 2) and cache.nbytes == 8


def test_L14_a_failure_on_one_of_several_workers_is_not_kept() -> None:
    with using(Anywhere([mindtorch.LoopbackExecutor() for _ in range(3)])), mindtorch.cache():
        table, wrong, right = torch.ones(2, 2).to(LAZY), torch.tensor([7]).to(LAZY), torch.tensor([1]).to(LAZY)
        for _ in range(8):
            with pytest.raises((IndexError, MaterializationError)):
                (torch.nn.functional.embedding(wrong, table) + up(1, 2)).cpu()
            assert (torch.nn.functional.embedding(right, table) + up(1, 2)).tolist() == [[2, 3]]


def test_L14_several_workers_hold_nothing_when_a_cache_is_cleared(placed: PlacingExecutor) -> None:
    def held() -> int:
        gc.collect()
        mindtorch.flush("test")
        placed.sync()
        return sum(sum(executor._mirrors.alive.values()) for executor in placed.executors)

    model = net(0.25).to(LAZY)
    expected = evaluate(model, LAZY)
    before = held()
    states = 0
    with mindtorch.cache(max_bytes=1 << 20) as cache:
        assert evaluate(model, LAZY) == expected
        states = sum(
            5056 * len(entry.states)
            for place in cache._workers.values()
            for entry in place.shelf._entries.values()  # type: ignore[attr-defined]
        )
        assert states > 0 and held() - before == cache.nbytes - states, "states are in this process"
    cache.clear()
    assert cache.nbytes == 0 and held() == before


def test_L14_workers_of_a_cache_end_with_their_executor() -> None:
    def ran() -> None:
        with using(PlacingExecutor([mindtorch.LoopbackExecutor() for _ in range(2)])):
            assert [(up(1, 2) * 2).tolist() for _ in range(2)] == [[2, 4]] * 2

    with mindtorch.cache() as cache:
        ran()
        assert counts() == (1, 1)
        gc.collect()
        assert cache.nbytes == 0 and not any(isinstance(each, RemoteExecutor) for each in cache._workers)
