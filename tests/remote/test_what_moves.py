"""R2, R5: what moves from one worker to another costs what moves, whatever else lives."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.engine.execute import values
from mindtorch.engine.remote.placing import PlacingExecutor
from mindtorch.engine.remote.spread import SpreadExecutor
from mindtorch.engine.remote.wire import dumps

from ..executors import greeted, using

FIRST, SECOND = "remote_accelerator:0", "remote_accelerator:1"
pytestmark = pytest.mark.usefixtures("nothing_pending")


def events(run: Any) -> int:
    """How many functions run, Python's and C's."""
    count = 0

    def look(_frame: Any, event: str, _given: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def alive(count: int) -> list[torch.Tensor]:
    """So many values on the first worker, and memory of the program that was uploaded there."""
    plain = [torch.zeros(1) + k for k in range(count)]
    found = [t.to(FIRST) for t in plain]
    made = [t + 1 for t in found]
    values.flush("test")
    return [*plain, *found, *made]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, there: str) -> torch.Tensor:
        return self.second(self.first(x).to(there))


@pytest.mark.parametrize("kind", [SpreadExecutor, PlacingExecutor])
def test_R5_a_move_looks_at_what_moves_and_at_nothing_else(kind: type[SpreadExecutor]) -> None:
    """20,000 values that live once made a read of a divided model 70 times as slow: each was looked at."""
    net = Two()

    def counted(live: int) -> tuple[int, torch.Tensor]:
        found: list[torch.Tensor] = []
        with using(kind([mindtorch.LoopbackExecutor() for _ in range(2)])) as executor:
            there = FIRST if isinstance(executor, PlacingExecutor) else SECOND
            if isinstance(executor, PlacingExecutor):
                executor._workers = {"Two": 0, "Two.first": 0, "Two.second": 1}
            net.first.to(FIRST), net.second.to(there)
            held = alive(live)
            x = torch.ones(2, 8).to(FIRST)

            def run() -> None:
                with torch.no_grad():
                    found.append(net(x, there).sum().cpu())

            run(), run()
            before = executor.executors[1].stats["messages"]
            count = events(run)
            assert executor.executors[1].stats["messages"] > before, "the second worker takes part"
            del held
            net.to("cpu")
        return count, found[-1]

    few, expected = counted(3)
    many, found = counted(1000)
    assert torch.equal(found, expected) and many - few < 300  # larger numbers take a few more


KINDS = {"loopback": mindtorch.LoopbackExecutor, "pipe": mindtorch.PipeExecutor}


@pytest.fixture(params=["loopback", pytest.param("pipe", marks=pytest.mark.whole)])
def two(request: pytest.FixtureRequest) -> Iterator[SpreadExecutor]:
    with using(SpreadExecutor([KINDS[request.param]() for _ in range(2)])) as executor:
        yield executor


def asked(executor: SpreadExecutor, run: Callable[[], Any]) -> list[tuple[int, int]]:
    """Messages, and those that the program waited for, of each worker."""
    before = [dict(each.stats) for each in executor.executors]
    run()
    return [
        (each.stats["messages"] - was["messages"], each.stats["waits"] - was["waits"])
        for each, was in zip(executor.executors, before, strict=True)
    ]


@pytest.mark.parametrize("foreach", [None, False])
def test_R2_clipping_over_two_workers_takes_as_many_messages_for_many_tensors_as_for_few(
    foreach: bool | None, two: SpreadExecutor
) -> None:
    """Of 16 tensors, each norm was a message and a wait: nine of the second worker."""

    def clipped(n: int, devices: tuple[str, str]) -> tuple[list[torch.nn.Parameter], Callable[[], list[torch.Tensor]]]:
        ps = [nn.Parameter((torch.arange(5.0) + k).to(devices[2 * k // n])) for k in range(n)]

        def run() -> list[torch.Tensor]:
            for p in ps:
                p.grad = torch.ones_like(p) * p.detach()
            norm = nn.utils.clip_grad_norm_(ps, 0.5, foreach=foreach)
            return [norm.detach().cpu(), *[p.grad.cpu() for p in ps if p.grad is not None]]

        return ps, run

    found = {}
    for n in (4, 16, 64):
        held, run = clipped(n, (FIRST, SECOND))
        _held, expected = clipped(n, ("cpu", "cpu"))
        wanted = expected()
        for _ in range(2):
            got = run()
            torch.testing.assert_close(got, wanted)  # two groups of norms: the last bit may differ

        def clip(ps: list[torch.nn.Parameter] = held) -> None:
            nn.utils.clip_grad_norm_(ps, 0.5, foreach=foreach).item()
            for p in (ps[0], ps[-1]):
                assert p.grad is not None
                p.grad.sum().item()

        found[n] = asked(two, clip)
    assert found[4] == found[16] == found[64] and found[4][1] == (3, 2)


def test_R2_small_values_that_move_are_where_they_belong_when_they_are_needed(two: SpreadExecutor) -> None:
    def program(first: str, second: str) -> object:
        x = torch.arange(6.0).to(first)
        small = [(x + k).to(second) for k in range(5)]
        x.add_(100)  # they are copies
        part = small[0][2:]
        part.mul_(2)
        small[1].add_(1)
        twin = copy.deepcopy(small[2])
        twin.add_(7)
        dead = (x * 3).to(second)
        del dead
        again = small[3].to(first, copy=True)
        again.sub_(1)
        return small, part, twin, again, x, [t.unique() for t in small[:2]], small[4].nonzero()

    def home(a: Any) -> Any:
        return a.cpu() if isinstance(a, torch.Tensor) else [home(item) for item in a]

    torch.testing.assert_close(home(program(FIRST, SECOND)), home(program("cpu", "cpu")), rtol=0, atol=0)


def test_R2_a_value_that_moves_keeps_its_address_and_comes_with_others(two: SpreadExecutor) -> None:
    x = torch.arange(6.0).to(FIRST) + 1
    values.flush("test")
    moved = [(x * k).to(SECOND) for k in range(4)]
    assert asked(two, lambda: (moved[0] + moved[1]).sum().item())[0] == (1, 1)
    assert asked(two, lambda: [(t * 2).sum().item() for t in moved[2:]])[0] == (0, 0), "they have come with the others"
    late = (x * 9).to(SECOND)
    place = late.data_ptr()
    (late + 1).sum().item()
    assert late.data_ptr() == place and place >> 44 == moved[0].data_ptr() >> 44 == 1
    large = torch.ones(100_000, device=FIRST).to(SECOND)
    assert two.owner(values.materialize([large], "test")[0]) is two.executors[1], "it has moved at once"
    many = [(x * k).to(SECOND) for k in range(300)]
    owners = [two.owner(each) for each in values.materialize(many, "test")]
    assert owners.count(two.executors[1]) >= 256, "so many do not wait"
    assert torch.stack(many).sum().item() == 21 * sum(range(300))


def test_R2_a_value_that_failed_does_not_keep_others_from_coming(two: SpreadExecutor) -> None:
    x = torch.arange(4.0).to(FIRST)
    good = [(x + k).to(SECOND) for k in range(2)]
    bad = x.gather(0, torch.full((4,), 700, device=FIRST)).to(SECOND)
    assert (good[0] + good[1]).tolist() == [1, 3, 5, 7]
    for _ in range(2):
        with pytest.raises(mindtorch.MaterializationError, match=r"aten::gather.*test_what_moves\.py"):
            (bad + good[0]).sum().item()
    assert (good[0] * 2).tolist() == [0, 2, 4, 6]


def test_R2_what_goes_together_from_one_worker_to_another_is_checked() -> None:
    """A failure has its place in the parcel. Another worker's parcel that is none is as if nothing had come."""
    parcels: dict[int, Any] = {}
    giver, taker = (greeted(parcels=parcels) for _ in range(2))
    giver.answers(dumps([("upload", 1, b"ab"), ("take", 2, 3, 77), ("upload", 3, b"")]))
    assert giver.answers(dumps([("pack", [1, 2, 3], 5)])) == [None]
    found = taker.answers(dumps([("unpack", [7, 8, 9], [2, 3, 0], 5), ("storage", 7), ("storage", 8), ("storage", 9)]))
    assert found == [[None, (1, 1), None], ("bytes", b"ab"), ("failed", 1), ("bytes", b"")]
    for number, bad in enumerate([b"", b"nothing", dumps([b"ab"]), dumps({}), dumps([b"a", "b"]), dumps([-1, b"abc"])]):
        parcels[5] = bytes(bad)
        first = 10 + 2 * number
        answers = taker.answers(dumps([("unpack", [first, first + 1], [2, 2], 5), ("storage", first)]))
        assert [failed[1] for failed in answers[0]] == [0, 0] and answers[1][0] == "failed"
    assert 5 not in parcels
    assert [failed[1] for failed in taker.answers(dumps([("unpack", [98, 99], [2, 2], 6)]))[0]] == [0, 0]
    parcels[7] = 4
    assert [failed[1] for failed in taker.answers(dumps([("unpack", [98, 99], [2, 2], 7)]))[0]] == [4, 4]
