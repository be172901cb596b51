"""L14 on a worker: segments that draw random numbers are kept, too, and its generator goes on as if they had run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

LARGE = 5000  # floats, which do not come unasked


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what workers of this process were asked for, but to free storages."""
    found: list[str] = []

    def noted(name: str) -> None:
        method = getattr(Worker, name)

        def note(self: Worker, *given: Any) -> Any:
            found.append(name)
            return method(self, *given)

        monkeypatch.setattr(Worker, name, note)

    for name in ("run", "call", "get_state", "set_state", "seed", "digest", "upload", "copy"):
        noted(name)
    return found


@pytest.fixture
def there() -> Iterator[RemoteExecutor]:
    with using(mindtorch.LoopbackExecutor()) as executor:
        yield executor


def draw(device: str) -> list[Any]:
    torch.manual_seed(3)
    first = torch.rand(3, device=device)
    found = [first.tolist(), F.dropout(first, 0.5).tolist(), torch.randn(2, device=device).tolist()]
    torch.manual_seed(4)
    return [*found, torch.randint(9, (5,), device=device).tolist(), torch.rand(2, device=device).tolist()]


def test_L14_draws_on_a_worker_are_found_with_eager_s_bits_and_so_are_those_that_follow(
    there: RemoteExecutor, asked: list[str]
) -> None:
    expected = draw("cpu")
    following = [torch.rand(4).tolist() for _ in range(2)]
    with mindtorch.cache() as cache:
        assert draw(LAZY) == expected and counts() == (0, 5) and asked.count("run") == 5
        kept = cache.nbytes
        waits = there.waits
        for again in (1, 2):
            assert draw(LAZY) == expected and counts() == (5 * again, 5) and asked.count("run") == 5
        assert there.waits == waits and cache.nbytes == kept
        assert torch.rand(4, device=LAZY).tolist() == following[0] and asked.count("run") == 6, "the worker draws"
    assert torch.rand(4, device=LAZY).tolist() == following[1]


def test_L14_through_a_pipe_a_dropout_s_masks_are_found() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.3), torch.nn.Linear(64, 2))
    x = torch.randn(5, 8)

    def evaluate(model: torch.nn.Module, x: torch.Tensor) -> list[Any]:
        torch.manual_seed(7)
        with torch.no_grad():
            return [model(x).tolist() for _ in range(3)]

    expected = evaluate(model, x)
    with using(mindtorch.PipeExecutor()), mindtorch.cache():
        model, x = model.to(LAZY), x.to(LAZY)
        assert [evaluate(model, x) for _ in range(3)] == [expected] * 3
        assert counts() == (6, 3)


def test_L14_the_state_is_asked_for_once_where_no_seed_says_it(there: RemoteExecutor, asked: list[str]) -> None:
    torch.manual_seed(5)
    before = torch.rand(2, device=LAZY).tolist()
    assert before == torch.rand(2).tolist()
    with mindtorch.cache():
        asked.clear()
        assert torch.rand(2, device=LAZY).tolist() == torch.rand(2).tolist()
        # Before the segment, to name it, and with the reply to it, to keep it.
        assert asked.count("get_state") == 2 and counts() == (0, 1)
        for _ in range(3):
            assert torch.rand(2, device=LAZY).tolist() == torch.rand(2).tolist()
        assert asked.count("get_state") == 5 and counts() == (0, 4), "of each, to keep it"
        asked.clear()
        torch.manual_seed(5)
        first = torch.rand(2, device=LAZY).tolist()
        assert first == before and asked.count("get_state") == 1 and counts() == (0, 5)


def test_L14_states_that_the_program_reads_and_sets_are_those_of_eager(there: RemoteExecutor, asked: list[str]) -> None:
    def program(device: str, get: Callable[[], torch.Tensor], put: Callable[[torch.Tensor], None]) -> list[Any]:
        torch.manual_seed(11)
        found = [torch.rand(3, device=device).tolist()]
        state = get()
        found += [state.tolist(), torch.randn(3, device=device).tolist()]
        put(state)
        return [*found, torch.randn(3, device=device).tolist(), torch.rand(1, device=device).tolist(), get().tolist()]

    expected = program("cpu", torch.get_rng_state, torch.set_rng_state)
    assert expected[2] == expected[3]
    device = torch.remote_accelerator  # type: ignore[attr-defined]
    with mindtorch.cache():
        got = [program(LAZY, device.get_rng_state, device.set_rng_state) for _ in range(3)]
        assert got == [expected] * 3
        before = counts()[0]
        asked.clear()
        assert program(LAZY, device.get_rng_state, device.set_rng_state) == expected and counts()[0] == before + 4
        assert "run" not in asked and "get_state" not in asked, "what was found says the state"


def test_L14_a_generator_object_on_a_worker_draws_as_in_eager(there: RemoteExecutor) -> None:
    def program(device: str) -> list[Any]:
        made = torch.Generator(device).manual_seed(2)
        found = [torch.rand(3, device=device, generator=made).tolist() for _ in range(2)]
        torch.manual_seed(2)
        found.append(torch.rand(3, device=device).tolist())
        x = torch.zeros(4, device=device)
        return [*found, x.normal_(generator=made).tolist(), torch.rand(2, device=device, generator=made).tolist()]

    expected = program("cpu")
    with mindtorch.cache():
        assert [program(LAZY) for _ in range(3)] == [expected] * 3


def test_L14_another_state_is_another_segment(there: RemoteExecutor) -> None:
    with mindtorch.cache():
        found = []
        for seed in (1, 2, 1):
            torch.manual_seed(seed)
            found.append(torch.rand(3, device=LAZY).tolist())
        assert found[0] == found[2] != found[1] and counts() == (1, 2)
        assert torch.rand(3, device=LAZY).tolist() != found[0] and counts() == (1, 3)


@pytest.mark.parametrize("index", [0, 1])
def test_L14_each_device_s_generator_has_its_own_state(index: int, there: RemoteExecutor) -> None:
    device, other = f"remote_accelerator:{index}", f"remote_accelerator:{1 - index}"
    with mindtorch.cache():
        found = []
        for drawn in (1, 2, 1):
            torch.manual_seed(9)
            torch.rand(drawn, device=other).tolist()
            found.append((torch.rand(3, device=device).tolist(), torch.rand(2, device=other).tolist()))
        torch.manual_seed(9)
        expected = torch.rand(3).tolist()
        assert [first for first, _ in found] == [expected] * 3
        torch.manual_seed(9)
        torch.rand(1)
        assert found[0][1] == found[2][1] == torch.rand(2).tolist() != found[1][1]
        assert counts()[0] >= 4


def test_L14_draws_of_calls_that_cannot_be_recorded_count(there: RemoteExecutor) -> None:
    def program(device: str) -> list[Any]:
        torch.manual_seed(6)
        found: list[Any] = [torch.rand(2, device=device).tolist()]
        weights = torch.ones(50, device=device)
        found.append(torch.multinomial(weights, 3).tolist())
        found.append(torch.unique(torch.randint(5, (8,), device=device)).tolist())
        return [*found, torch.rand(2, device=device).tolist()]

    expected = program("cpu")
    with mindtorch.cache():
        assert [program(LAZY) for _ in range(3)] == [expected] * 3


def test_L14_a_failure_before_a_draw_leaves_no_wrong_state(there: RemoteExecutor) -> None:
    table = torch.ones(2, 2).to(LAZY)
    with mindtorch.cache():
        for _ in range(2):
            torch.manual_seed(1)
            first = torch.rand(3, device=LAZY)
            failing = F.embedding((first * 0 + 7).long(), table)
            second = torch.rand(3, device=LAZY)
            with pytest.raises((IndexError, MaterializationError)):
                torch.cat([failing.flatten(), second]).cpu()
            rest = torch.rand(2, device=LAZY).tolist()
            torch.manual_seed(1)
            torch.rand(3)
            assert rest in (torch.rand(2).tolist(), (torch.rand(1), torch.rand(2))[1].tolist())
            torch.manual_seed(1)
            torch.rand(3)
            assert second.tolist() == torch.rand(3).tolist()


def test_L14_large_draws_that_are_found_stay_on_the_worker(there: RemoteExecutor, asked: list[str]) -> None:
    with mindtorch.cache():
        sums = []
        for _ in range(3):
            torch.manual_seed(2)
            noise = torch.randn(LARGE, device=LAZY)
            mindtorch.flush("test")
            sums.append((noise + up(1)).sum().item())
        assert sums[0] == sums[1] == sums[2] and counts() == (4, 2) and asked.count("run") == 2
        assert there.stats["bytes_down"] < 3 * LARGE * 4


@pytest.mark.parametrize("where", [mindtorch.LocalExecutor, mindtorch.LoopbackExecutor])
def test_L14_a_segment_that_seeds_is_kept_and_found_whatever_was_drawn_before(
    where: Callable[[], mindtorch.Executor],
) -> None:
    def program(device: str, drawn: int) -> list[Any]:
        torch.manual_seed(1)
        torch.rand(drawn, device=device).tolist()
        first = torch.rand(2, device=device)
        torch.manual_seed(5)  # while that is pending: it becomes a part of the segment
        second = torch.rand(2, device=device)
        return [(first * 0 + second).tolist(), torch.rand(1, device=device).tolist()]

    expected = program("cpu", 1)
    with using(where()), mindtorch.cache():
        assert [program(LAZY, drawn) for drawn in (1, 1, 2, 1)] == [expected] * 4
        assert mindtorch.stats()["not_cacheable"] == {} and counts()[0] >= 6
        x = up(1)
        missed = []
        for drawn in (11, 12, 13):
            torch.rand(drawn, device=LAZY).tolist()
            pending = x + 1
            torch.manual_seed(8)
            (pending + torch.rand(1, device=LAZY)).tolist()
            missed.append(counts()[1])
        assert missed == [missed[0], missed[0] + 1, missed[0] + 2], "only what draws from the state before is run"
