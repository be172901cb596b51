"""R1: what live tensors can see is sent after a read, and runs while the program goes on."""

from __future__ import annotations

import runpy
import select
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

import pytest
import torch

import mindtorch
from mindtorch.engine.execute import LocalExecutor
from mindtorch.engine.remote import speculation
from mindtorch.engine.remote.client import RemoteExecutor
from mindtorch.engine.remote.loopback import LoopbackExecutor
from mindtorch.engine.remote.pipe import PipeExecutor
from mindtorch.engine.remote.wire import Reference, dumps, loads

from ..executors import greeted, using

ROOT = Path(__file__).resolve().parents[2]

LAZY = "remote_accelerator:0"
pytestmark = pytest.mark.usefixtures("nothing_pending")


def test_R1_what_can_be_seen_is_sent_after_a_read_and_what_cannot_is_not(loopback: LoopbackExecutor) -> None:
    x = torch.rand(100, device=LAZY)
    total, after, gone = x.sum(), x * 2, x * 3
    del gone
    assert not after.materialized
    ops, before = mindtorch.stats()["ops_executed"], dict(loopback.stats)

    def count() -> tuple[int, int]:
        return loopback.stats["messages"] - before["messages"], loopback.stats["waits"] - before["waits"]

    half = total.item()
    assert count() == (1, 1), "nobody asks for the reply to what was sent on"
    assert mindtorch.stats()["ops_executed"] - ops == 3  # rand, sum, * 2
    assert after.sum().item() == pytest.approx(2 * half)
    assert count() == (3, 2)


def test_R1_a_worker_runs_what_was_sent_on_without_being_asked(pipe: PipeExecutor) -> None:
    x = torch.rand(100, 100, device=LAZY)
    after = x @ x
    assert x.sum().item() > 0
    arrived, _, _ = select.select([pipe._child._socket], [], [], 60)
    assert arrived, "the reply is there before anybody waits for it"
    assert after.shape == (100, 100) and after.sum().item() > 0


def test_R1_a_large_message_is_sent_on_while_a_large_reply_comes(pipe: PipeExecutor) -> None:
    """Neither side may wait for the other one to read: both are larger than what a socket holds."""
    small = torch.ones(3).to(LAZY)
    weights = [torch.full((200_000,), float(i)) for i in range(6)]
    for _ in range(3):
        there = [w.to(LAZY) for w in weights]
        doubled = [w * 2 for w in there]
        assert small.add_(1).sum().item() > 3
        tripled = [w * 3 for w in there]
        assert [w.sum().item() for w in doubled] == [2e5 * 2 * i for i in range(6)]
        assert [w.sum().item() for w in tripled] == [2e5 * 3 * i for i in range(6)]


def test_R1_training_that_overlaps_gives_what_eager_gives(
    elsewhere: RemoteExecutor, same_as_eager: Callable[..., None]
) -> None:
    def program(device: str) -> object:
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        seen = []
        for step in range(6):
            loss = net(torch.linspace(-1, 1, 32).view(4, 8).to(device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            seen.append(loss.item())  # before the step: the backward pass is what runs meanwhile
            optimizer.step()
            seen.append(sum(p.sum() for p in net.parameters()).item() * step)
        return seen, list(net.parameters())

    same_as_eager(program)


@pytest.mark.parametrize(
    "read, messages, waits", [("before", 2, 1), ("after", 2, 1), ("never", 1, 0), ("every third", 2 / 3, 1 / 3)]
)
def test_R1_a_step_is_sent_at_its_end_unless_its_loss_is_read_then(
    read: str, messages: float, waits: float, loopback: LoopbackExecutor, same_as_eager: Callable[..., None]
) -> None:
    """Where it is read then, what the loss does not need is sent afterwards."""
    counts: list[tuple[int, int]] = []
    under_way: list[int] = []

    def program(device: str) -> object:
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        seen = []
        for step in range(36):
            if step == 6:
                before = dict(loopback.stats)
            loss = net(torch.linspace(-1, 1, 32).view(4, 8).to(device).mul_(step % 5)).square().mean().sqrt()
            if read == "before":
                seen.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if read == "after" or (read == "every third" and step % 3 == 2):
                seen.append(loss.item())
            under_way.append(len(loopback._line))
        counts.append((loopback.stats["messages"] - before["messages"], loopback.stats["waits"] - before["waits"]))
        return seen, list(net.parameters())

    same_as_eager(program)
    (found,) = [count for count in counts if count != (0, 0)]
    assert found[1] == 30 * waits and abs(found[0] - 30 * messages) <= 6, (found, read)
    assert max(under_way) <= 5, "what is sent and not waited for is bounded"


def test_R1_what_is_on_its_way_is_not_asked_for_again(
    loopback: LoopbackExecutor, same_as_eager: Callable[..., None]
) -> None:
    """The norm is computed by what is sent after the loss has been read, and comes unasked."""
    counts: list[tuple[int, int]] = []

    def program(device: str) -> object:
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        seen = []
        for step in range(12):
            before = dict(loopback.stats)
            loss = net(torch.linspace(-1, 1, 32).view(4, 8).to(device).mul_(step)).square().mean()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            seen += [loss.item(), norm.item()]
            counts.append((loopback.stats["messages"] - before["messages"], loopback.stats["waits"] - before["waits"]))
        return seen

    same_as_eager(program)
    found = [count for count in counts if count != (0, 0)]
    assert len(found) == 12 and set(found[2:]) == {(2, 2)}, found


def test_R1_tokens_that_two_tests_look_at_are_waited_for_once(
    loopback: LoopbackExecutor, same_as_eager: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is the program's own; the other's answer follows from tokens that came with the first one's."""
    monkeypatch.setattr(speculation, "_ROOM", 0)  # nothing runs ahead
    waits: list[int] = []

    def program(device: str) -> object:
        torch.manual_seed(0)
        table, ends = torch.rand(11, 11).to(device), torch.tensor([12]).to(device)
        tokens, unfinished = torch.tensor([[1, 2]]).to(device), torch.ones(1, dtype=torch.long).to(device)
        for _ in range(20):
            before = loopback.stats["waits"]
            scores = table[tokens[:, -1]] + tokens.sum().sin()
            tokens = torch.cat([tokens, scores.argmax(-1)[:, None]], -1)
            done = torch.isin(tokens[:, -1], ends)
            if (tokens[:, -1] == 13).all():
                break
            unfinished = unfinished & ~done
            if unfinished.max() == 0:
                break
            if device == LAZY:
                waits.append(loopback.stats["waits"] - before)
        return tokens

    same_as_eager(program)
    assert waits[2:] == [1] * 18, waits


def test_R1_a_small_value_that_comes_late_is_not_what_was_written_since(
    elsewhere: RemoteExecutor, same_as_eager: Callable[..., None]
) -> None:
    """Its contents come with the reply to what was sent on, when the program has written to it."""

    def program(device: str) -> object:
        large = torch.ones(1000).to(device)
        seen = []
        for step in range(4):
            count = large[:3] * 2.0  # small, and runs after the read
            seen.append(large.sum().item())
            count.add_(step + 1)
            seen += [count.sum().item(), count.tolist()]
            large.add_(1)
        return seen

    same_as_eager(program)


def failing(index: int) -> torch.Tensor:
    """An operation that fails when it runs."""
    return torch.ones(100, device=LAZY).gather(0, torch.full((100,), index, device=LAZY))


def test_R1_what_fails_ahead_fails_where_it_is_read(elsewhere: RemoteExecutor) -> None:
    x = torch.rand(100, device=LAZY)
    bad = failing(700)
    for _ in range(3):
        assert x.sum().item() > 0  # which has nothing to do with it
        x.add_(1)
    with pytest.raises(mindtorch.MaterializationError, match=r"aten::gather.*test_overlap\.py:\d+"):
        bad.sum().item()
    assert x.sum().item() > 0


def test_R1_a_write_that_fails_ahead_is_told_as_locally(elsewhere: RemoteExecutor) -> None:
    def program() -> list[object]:
        x, y = torch.zeros(100, device=LAZY), torch.ones(100, device=LAZY)
        x.index_fill_(0, torch.full((1,), 900, device=LAZY), 1.0)
        found: list[object] = [y.sum().item()]
        z = x + 1
        for read in (z.sum, x.sum, y.sum):
            try:
                found.append(read().item())
            except mindtorch.MaterializationError as error:
                found.append(str(error).partition("]")[0])
        return [*found, x.add_(1).sum().item()]

    got = program()
    with using(LocalExecutor("cpu")):
        expected = program()
    assert got == expected


def test_R1_a_failure_is_remembered_until_the_program_has_been_told() -> None:
    """What was on its way when something failed to be written must not use what is there instead."""
    worker = greeted()
    fill = (
        "op aten::index_fill_.int_Scalar",
        (Reference(0), 0, Reference(1), 1.0),
        {},
        -1,
        False,
        (0,),
        True,
        (-1,),
        (),
    )
    relu = ("op aten::relu.default", (Reference(0),), {}, -1, False, (), True, (0,), ((torch.float32, 1, False),))
    kinds = [(torch.float32, 1, False, 0), (torch.int64, 1, False, 0)]
    given = [("upload", 1, bytes(16)), ("upload", 2, (99).to_bytes(8, "little"))]
    (*_, failed) = loads(
        worker.handle(
            dumps(
                [
                    *given,
                    ("define", [fill, relu]),
                    ("plan", [(0, True, 0, 2)], kinds, []),
                    ("plan", [(1, True, 0)], kinds[:1], [0]),
                    ("run", 0, 10, *numbers(1, 2, 4, 0, 1, 0), False),
                ]
            )
        )
    )
    ((_k, number, kind, _text),) = failed[0]
    assert kind in ("IndexError", "RuntimeError")
    run = ("run", 1, 20, *numbers(1, 4, 0, 4, 0), False)
    (meanwhile,) = loads(worker.handle(dumps([run])))
    assert meanwhile[3] == [(0, number)], "the relu of what was not written has failed with it"
    _, afterwards = loads(worker.handle(dumps([("seen", number), run])))
    assert afterwards[3] == []


def numbers(*values: int) -> tuple[bytes, bytes]:
    """All numbers of a plan, as a run tells them."""
    return struct.pack(f"{len(values)}I", *range(len(values))), struct.pack(f"{len(values)}q", *values)


@pytest.mark.usefixtures("nothing_pending")
@pytest.mark.parametrize("read", ["before", "after"])
def test_R1_the_benchmarks_worker_answers_and_counts_its_time(read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an executor whose messages take time: its methods must not have names of an executor's."""
    monkeypatch.syspath_prepend(ROOT / "asv_bench")
    benchmark = runpy.run_module("benchmarks.bench_overlap")
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    simulated = benchmark["Simulated"]()
    with using(simulated):
        benchmark["steps"](read, 2)
        times = simulated.times()
    assert simulated.stats["waits"] >= 2 and 0 < simulated.execution <= times.together
    own = {name for name, value in vars(benchmark["Simulated"]).items() if isinstance(value, FunctionType)}
    assert {name for name in own if hasattr(LoopbackExecutor, name)} == {"__init__"}
