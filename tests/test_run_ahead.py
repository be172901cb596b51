"""Calls that another thread makes while the program records: what it sees is the same (SPEC L16)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import mindtorch
from mindtorch import MaterializationError
from mindtorch._ext import ahead
from mindtorch._ext.ahead import hand_over_after
from mindtorch.engine.execute import ahead as running_ahead
from mindtorch.engine.execute import local
from tests.native import CAN, not_yet_ahead, soon

D = "remote_accelerator:0"

pytestmark = [
    CAN,
    pytest.mark.only_on("local"),
    pytest.mark.usefixtures(soon.__name__, not_yet_ahead.__name__, "nothing_pending"),
]


def chain(x: torch.Tensor, n: int = 40) -> torch.Tensor:
    for _ in range(n):
        x = (x + 1.5).sin()
    return x


def made_early(record: Callable[[], object], least: int) -> object:
    """What `record` gives; so many of its calls are made by the other thread before anything is read."""
    before = ahead.counts()[0]
    given = record()
    until = time.monotonic() + 60
    while ahead.counts()[0] < before + least:
        assert time.monotonic() < until, "the other thread makes no calls"
        time.sleep(0.001)
    return given


def learnt(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):  # until calls are made without Python
        chain(x).cpu()
    return x


def test_L16_calls_are_made_before_anything_is_read() -> None:
    x = torch.rand(7)
    there = learnt(x.to(D))
    hand_over_after(8)
    y = made_early(lambda: chain(there), 60)
    assert isinstance(y, torch.Tensor)
    assert torch.equal(y.cpu(), chain(x))


def trained(device: str, steps: int) -> tuple[list[float], list[torch.Tensor]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 4))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = torch.randn(5, 8).to(device), torch.randint(0, 4, (5,)).to(device)
    torch.manual_seed(1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 3:
            losses.append(loss.item())
    return losses, [each.detach().cpu() for each in model.parameters()]


@pytest.mark.parametrize("after", [1, 16])
def test_L16_training_with_dropout_gives_the_same_bits(after: int) -> None:
    expected, weights = trained(D, 12)
    hand_over_after(after)
    before = ahead.counts()
    losses, found = trained(D, 12)
    assert losses == expected
    assert all(map(torch.equal, found, weights))
    assert ahead.counts()[0] > before[0] + 300
    assert ahead.counts()[2] == before[2]  # none of them failed


def failing(d: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    table, total = torch.ones(4, 3, device=d), torch.ones(3, device=d)
    good = table + 1
    bad = table.gather(0, torch.full((1, 3), 9, device=d))
    total.add_(bad[0])
    return good, bad * 2, total


def messages(d: str) -> list[str]:
    good, bad, total = failing(d)
    found = [str(good.sum().item())]
    for each in (bad, bad, total, total):
        try:
            found.append(str(each.tolist()))
        except Exception as error:
            found.append(f"{[base.__name__ for base in type(error).__mro__]} {error}")
    return found


def test_L16_a_call_that_fails_fails_where_its_value_is_read() -> None:
    def fitting() -> None:
        table, total = torch.ones(4, 3, device=D), torch.ones(3, device=D)
        total.add_(table.gather(0, torch.full((1, 3), 1, device=D))[0])
        total.tolist()

    for _ in range(3):
        fitting()
    expected = messages(D)
    assert "out of bounds" in expected[1]
    hand_over_after(1)
    before = ahead.counts()
    assert messages(D) == expected
    assert ahead.counts()[2] > before[2]
    with pytest.raises(MaterializationError):
        failing(D)[1].cpu()


def test_L16_what_is_written_ahead_is_what_every_read_sees() -> None:
    def program(x: torch.Tensor) -> list[float]:
        seen = []
        for k in range(30):
            x.mul_(1.01)
            view = x[1:3]
            view.add_(k)
            if k % 7 == 0:
                seen += [x.sum().item(), *x.tolist()]
        return [*seen, *x.tolist()]

    start = torch.rand(6)
    expected = program(start.clone())
    program(start.to(D))
    hand_over_after(2)
    assert program(start.clone().to(D)) == expected


def test_L16_two_threads_record_and_read() -> None:
    x = torch.rand(7)
    learnt(x.to(D))
    expected = chain(x)
    hand_over_after(2)
    failures: list[object] = []

    def reads() -> None:
        mine = x.to(D)
        failures.extend(k for k in range(40) if not torch.equal(chain(mine).cpu(), expected))

    threads = [threading.Thread(target=reads) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(100)
        assert not each.is_alive()
    assert not failures


def test_L16_a_fork_has_the_values_and_goes_on() -> None:
    x = torch.rand(7)
    there = learnt(x.to(D))
    hand_over_after(2)
    for _ in range(5):
        y = chain(there)
        child = os.fork()
        if not child:
            right = torch.equal(y.cpu(), chain(x)) and torch.equal(chain(there).cpu(), chain(x))
            os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert torch.equal(y.cpu(), chain(x))


def test_L16_signal_handlers_that_raise_lose_nothing() -> None:
    x = torch.rand(7)
    there = learnt(x.to(D))
    hand_over_after(1)

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for k in range(60):
            kept = there * 2
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0003 + k * 0.00002)
                for _ in range(2000):
                    chain(there)
            except KeyboardInterrupt:
                interrupted += 1
            assert torch.equal(kept.cpu(), x * 2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted == 60
    assert torch.equal(chain(there).cpu(), chain(x))


def test_L16_the_other_thread_has_the_programs_settings() -> None:
    tiny = torch.full((8,), 2.0**-126)
    there = learnt(tiny.to(D))

    def halves(x: torch.Tensor) -> list[float]:
        for _ in range(20):
            x = x * 0.5 + x * 0.25
        return x.tolist()

    for _ in range(3):
        halves(there)
    threads = torch.get_num_threads()
    hand_over_after(4)
    try:
        for flush, n in ((False, 1), (True, 2), (False, 1)):
            torch.set_num_threads(n)
            if not torch.set_flush_denormal(flush):
                pytest.skip("this processor cannot flush denormal numbers")
            before = ahead.counts()[0]
            assert halves(there) == halves(tiny)
            assert ahead.counts()[0] > before
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def test_L16_who_looks_on_sees_each_operation() -> None:
    there = learnt(torch.rand(7).to(D))
    hand_over_after(1)
    made = ahead.counts()[0]
    seen: list[str] = []

    def note(name: str, *_rest: int) -> None:
        seen.append(name)

    local.add_op_observer(note)
    try:
        chain(there).cpu()
    finally:
        local.remove_op_observer(note)
    assert (seen.count("aten::add"), seen.count("aten::sin")) == (40, 40)
    with mindtorch.cache():
        chain(there).cpu()
    assert ahead.counts()[0] == made


def test_L16_another_executor_gets_what_was_recorded() -> None:
    x = torch.rand(7)
    there = learnt(x.to(D))
    hand_over_after(2)
    y = chain(there)
    before = mindtorch.set_executor(mindtorch.LoopbackExecutor("cpu"))
    try:
        made = ahead.counts()[0]
        assert torch.equal(chain(there).cpu(), chain(x))
        assert torch.equal(y.cpu(), chain(x))
        assert ahead.counts()[0] == made
    finally:
        mindtorch.set_executor(before)


def test_L16_pending_tensors_know_their_operation() -> None:
    there = learnt(torch.rand(7).to(D))
    hand_over_after(1)
    y = made_early(lambda: chain(there), 60)
    assert isinstance(y, mindtorch.LazyTensor)
    assert y.operation == "aten::sin"
    graph = mindtorch.ComputationGraph.pending()
    assert len(graph.nodes) <= 1  # what has run is not in it
    assert y.shape == (7,)


def test_L16_results_on_the_way_are_bounded() -> None:
    x = torch.rand(1 << 18)  # a MiB
    there = learnt(x.to(D))
    hand_over_after(1)
    y = made_early(lambda: chain(there, 200), 60)
    assert isinstance(y, torch.Tensor)
    assert torch.equal(y.cpu(), chain(x, 200))


def test_L16_one_processor_runs_nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0})
    assert running_ahead.prepare.__wrapped__() is False


def test_L16_a_program_ends_with_calls_under_way(after_a_step: Callable[..., object]) -> None:
    done = after_a_step(
        """
        import torch, mindtorch
        from mindtorch._ext import ahead, replay
        replay.native_after(1)
        x = torch.rand(1 << 16, device="remote_accelerator:0")
        for k in range(4):
            y = x
            for _ in range(300):
                y = (y + 1).sin()
            print(y.shape[0])
            if k < 3:
                y.cpu()
        print(ahead.counts()[0] > 0)
        """,
        GENIE_RUN_AHEAD="1",
    )
    assert done.stdout.split() == [str(1 << 16)] * 4 + ["True"]  # type: ignore[attr-defined]
