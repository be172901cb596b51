"""C4: the ledger by itself: each call, each storage from its birth to its death, and what lives at a place."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mindtorch._ext import context, intercept, lazy, ledger
from mindtorch.devices.lazy_device import place_of
from mindtorch.engine.execute.values import tape
from mindtorch.profile.estimate.estimating import estimating

ALIVE = 0xFFFFFFFF
CPU = place_of("cpu", anywhere=True)
HELD, ENTERED = 0x200, ledger.ENTERED


#: What the marks of the test that runs are about: a module's path, an optimizer's number.
WHICH: list[tuple[str, int]] = []


@pytest.fixture
def told() -> Iterator[list[tuple[str, int]]]:
    """An open ledger; what it told of modules and phases, and when."""
    found: list[tuple[str, int]] = []
    WHICH.clear()
    gc.collect()
    gc.disable()  # what goes with a cycle goes whenever it likes
    with estimating():
        ledger.open(tape, lambda kind, at, which: (found.append((kind, at)), WHICH.append((kind, which))))
        try:
            yield found
        finally:
            ledger.close()
            gc.enable()


def calls() -> list[Any]:
    return np.frombuffer(ledger.logs()[0], ledger.CALL).tolist()


def blocks(begun: int = 0) -> list[tuple[int, int, int]]:
    """(bytes, when it was born, when it died) of each storage."""
    found = np.frombuffer(ledger.logs()[1], ledger.BLOCK)[begun:]
    return found[["nbytes", "born", "died"]].tolist()


def test_C4_storages_live_from_the_call_that_made_them_to_the_one_after_which_nobody_named_them(told) -> None:
    a = torch.ones(1000)
    b = a + 1
    view = a[10:]
    del a
    c = b.add_(1) * 2
    del b
    assert ledger.position() == len(calls()) == 5
    assert blocks() == [(4000, 1, ALIVE), (4000, 2, 5), (4000, 5, ALIVE)]
    del view
    c.sum()
    assert blocks() == [(4000, 1, 5), (4000, 2, 5), (4000, 5, ALIVE), (4, 6, 6)]
    assert [phase for *_, phase in calls()] == [context.get_phase()] * 6 and all(sig for sig, *_ in calls())
    assert ledger.live_bytes() == (4000, 12_000) == ledger.live_bytes(CPU) == ledger.live_bytes(0)
    ledger.reset_peak(CPU)
    assert ledger.live_bytes(CPU) == (4000, 4000) and ledger.live_bytes() == (4000, 12_000)
    assert c is not None


def test_C4_empty_tensors_have_no_storage_to_count(told) -> None:
    held = [torch.ones(0), torch.ones(1, dtype=torch.int8)]
    assert blocks() == [(1, 2, ALIVE)] and len(held) == 2


def test_C4_logs_of_any_length_are_whole(told) -> None:
    """Longer than the memory that they begin with, and than twice as much."""
    held = [torch.empty(i + 1, dtype=torch.int8) for i in range(10_000)]
    assert blocks() == [(i + 1, i + 1, ALIVE) for i in range(10_000)]
    del held[5000:]
    held += [torch.empty(7) for _ in range(3)]
    found = blocks()
    assert found[:5000] == [(i + 1, i + 1, ALIVE) for i in range(5000)]
    assert found[5000:] == [(i + 1, i + 1, 10_000) for i in range(5000, 10_000)] + [
        (28, 10_001 + i, ALIVE) for i in range(3)
    ]
    assert ledger.live_bytes() == (5000 * 5001 // 2 + 84, 10_000 * 10_001 // 2)
    assert ledger.failure() is None


def test_C4_what_a_place_may_hold_is_what_it_holds(told) -> None:
    refused: list[tuple[int, int]] = []
    ledger.limit(CPU, 4096, lambda place, asked: refused.append((place, asked)))
    whole = torch.ones(1024)
    assert refused == [] and ledger.live_bytes(CPU)[0] == 4096
    one = torch.ones(1, dtype=torch.int8)
    assert refused == [(CPU, 1)] and ledger.live_bytes(CPU)[0] == 4096 and len(blocks()) == 1
    del whole
    ledger.round_to(CPU, 512)
    try:
        held = [torch.ones(1, dtype=torch.int8), torch.ones(128), torch.ones(129)]
        assert ledger.live_bytes(CPU)[0] == 512 + 512 + 1024 and refused == [(CPU, 1)]
        held.append(torch.ones(2048, dtype=torch.int8))
        assert ledger.live_bytes(CPU)[0] == 4096 and refused == [(CPU, 1)]
        del held[-1]
        held.append(torch.ones(2049, dtype=torch.int8))
        assert ledger.live_bytes(CPU)[0] == 2048 and refused == [(CPU, 1), (CPU, 2049)]
        held.clear()
        assert ledger.live_bytes(CPU) == (0, 4096)
        del one
    finally:
        ledger.round_to(CPU, 0)


def test_C4_places_without_data_are_from_0_to_minus_128(told) -> None:
    for call in (ledger.live_bytes, ledger.reset_peak, lambda p: ledger.round_to(p, 0)):
        call(-128)
        for place in (-129, 1):
            with pytest.raises(ValueError, match=f"expected a place without data, got {place}"):
                call(place)


def test_C4_a_storage_that_is_given_another_length_is_another(told) -> None:
    t = torch.ones(100)
    storage = t.untyped_storage()
    storage.resize_(0)
    assert blocks() == [(400, 1, 1)] and ledger.live_bytes() == (0, 400)
    storage.resize_(1000)
    assert blocks() == [(400, 1, 1), (1000, 2, ALIVE)] and ledger.live_bytes() == (1000, 1000)
    assert calls()[-1][0] == 0 and calls()[-1][3] == HELD + context.get_phase()
    del storage, t
    assert blocks() == [(400, 1, 1), (1000, 2, 2)]


def test_C4_modules_and_phases_are_told_with_their_place_in_the_log(told) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.ones(2, 4)
    at = ledger.position()
    loss = model(x).sum()
    after = ledger.position()
    loss.backward()
    optimizer.step()
    kinds = [kind for kind, _ in told]
    assert kinds == ["enter", "exit", "backward", "backward end", "step begins", "step"]
    (_, path), (_, left), (_, back), (_, end), (_, begins), (_, step) = WHICH
    assert path == left == calls()[at][1] and context.module_path(path) == "Sequential"
    assert (back, end) == (0, 0) and begins == step != 0
    whens = [when for _, when in told]
    assert whens == sorted(whens) and whens[0] == at and whens[1] == after - 1 and whens[2] == after + 1
    entered = [row for row in calls()[at:after] if row[3] & ENTERED]
    forward = context.PHASES.index("forward")
    assert [(sig, place, phase) for sig, _, place, phase in entered] == [(0, 0, ENTERED + forward)] * 3
    assert len({module for _, module, *_ in entered}) == 3
    outlived = np.frombuffer(ledger.logs()[1], ledger.BLOCK)
    grads = [row for row in outlived if row["died"] == ALIVE and whens[2] < row["born"] <= whens[3]]
    assert {int(row["outlived"]) & 1 for row in grads} == {1} and len(grads) == 2


def test_C4_what_outlives_the_call_that_it_was_made_in_is_told_from_what_does_not(told) -> None:
    class Keeps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept = x + 1
            between = x + 2
            del between
            return x * 3

    model = Keeps()
    with torch.no_grad():
        x = torch.ones(2)
        begun = len(blocks())
        y = model(x)
    del y, model.kept
    model = None
    found = np.frombuffer(ledger.logs()[1], ledger.BLOCK)[begun:]
    assert (found["outlived"] & 1).tolist() == [1, 0, 1]


def test_C4_marks_stay_with_their_storage(told) -> None:
    a, b = torch.ones(2), torch.ones(3)
    ledger.mark(lazy.get_handle(b[1:]), 5)
    assert np.frombuffer(ledger.logs()[1], ledger.BLOCK)["mark"].tolist() == [0, 5]
    assert ledger.held_bytes(lazy.get_handle(b[1:])) and ledger.held_bytes(lazy.get_handle(a))


def test_C4_what_was_there_before_is_counted_when_it_is_said() -> None:
    with estimating():
        before = torch.ones(10)
        view = before[5:]
        ledger.open(tape, lambda *_: None)
        try:
            with pytest.raises(RuntimeError, match="one is open already"):
                ledger.open(tape, lambda *_: None)
            assert not ledger.held_bytes(lazy.get_handle(before))
            for _ in range(2):
                ledger.hold(lazy.get_handle(view))
                ledger.hold(lazy.get_handle(before))
            assert blocks() == [(40, 1, ALIVE)] and calls()[0][3] == HELD + context.get_phase() and len(calls()) == 1
            ledger.stop()
            after = torch.ones(10) * 2
            ledger.note("aten::item")
            assert len(calls()) == 1 and len(blocks()) == 1
            del before, view
            assert blocks() == [(40, 1, 1)] and after is not None
        finally:
            assert len(ledger.close()[0]) == 16
    assert ledger.logs() == ledger.close() == (b"", b"")


def test_C4_calls_by_name(told) -> None:
    ledger.note("aten::one of these")
    ledger.note("aten::another")
    with ledger.Making("aten::one of these"):
        ledger.hold
    with pytest.raises(KeyError), ledger.Making("aten::another"):
        raise KeyError
    found = calls()
    assert [ledger.named(sig) for sig, *_ in found[:3]] == [
        "aten::one of these", "aten::another", "aten::one of these"
    ]  # fmt: skip
    assert found[3][0] == 0 and found[3][3] == HELD + context.get_phase()
    x = torch.ones(2)
    assert ledger.named(calls()[-1][0]) is None and x is not None
    at = ledger.position()
    ledger.repeat(0, 5)
    assert [row[0] for row in calls()[at:]] == [row[0] for row in found[:3]] + [calls()[at - 1][0]]


def test_C4_what_reads_what_is_logged_where_it_is_asked_for(told) -> None:
    x, w = torch.ones(2, 2), torch.ones(2, 2)
    assert ledger.follow(True) == b""
    y = torch.addmm(w, x, w)
    a, b = x.split(1)
    flow = np.frombuffer(ledger.follow(False), np.uint32).tolist()
    seven = flow[:7]
    assert seven[0] == 2 and seven[1] == calls()[2][0] and seven[5:] == [3, 1]
    first, second, third, out = flow[7:11]
    assert first == third != second and out not in (first, second)
    assert flow[11] == 3 and flow[16:18] == [1, 2] and flow[18] == second and len(flow) == 21
    z = y + 1
    assert ledger.follow(True) == b"" and (a, b, z) is not None


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_C4_a_call_made_again_is_logged_as_one_taken_apart(told, mode) -> None:
    x, target = torch.randn(8, 10, requires_grad=True), torch.randint(10, (8,))
    many = [
        lambda: F.cross_entropy(x, target),
        lambda: F.layer_norm(x, (10,)),
        lambda: F.gelu(x, approximate="tanh"),
        lambda: F.mse_loss(x, x.detach()),
        lambda: F.dropout(x, 0.5),
        lambda: torch.einsum("ij,kj->ik", x, x),
        lambda: F.cosine_similarity(x, x),
        lambda: x.var(1),
    ]

    def logged(call: Any) -> tuple:
        at, begun = ledger.position(), len(blocks())
        with mode():
            out = call()
        names = [(ledger.named(sig), sig if sig < 0x70000000 else 0, *rest[:1], rest[2]) for sig, *rest in calls()[at:]]
        made = [(n, born - at, died - at if died != ALIVE else None) for n, born, died in blocks(begun)]
        whole = np.frombuffer(ledger.logs()[1], ledger.BLOCK)[begun:]
        places = whole[["module", "sig", "place", "phase", "mark"]].tolist()
        live = ledger.live_bytes()[0]
        assert live == sum(n for n, _, died in blocks() if died == ALIVE)
        del out
        return names, made, places

    for call in many:
        intercept.set_logging(True)  # calls that are logged by name are taken apart each time
        try:
            expected = logged(call)
        finally:
            intercept.set_logging(False)
        for _ in range(3):
            assert logged(call) == expected
