"""The tape and its tables by themselves: counters, memory returned, nothing torn by odd orders of death (SPEC S5)."""

from __future__ import annotations

import copy
import gc
import random

import pytest
import torch

import mindtorch
from mindtorch._ext import context, intern, lazy, tape
from mindtorch.engine.execute.values import tape as main
from mindtorch.engine.semantics import generation

LAZY = "remote_accelerator:0"


@pytest.fixture(autouse=True)
def settled() -> None:
    gc.collect()
    mindtorch.flush("test")


def test_S5_a_fresh_tape_is_empty() -> None:
    t = tape.Tape(intern.Interner(torch.Size))
    counters = t.counters()
    assert {k: counters[k] for k in ("recorded", "pending", "executed", "dropped", "values")} == dict.fromkeys(
        ("recorded", "pending", "executed", "dropped", "values"), 0
    )
    assert counters["record_bytes"] <= 64 and counters["bytes_held"] > 0
    assert t.pending_seqs() == []
    with pytest.raises(KeyError, match="record 5"):
        t.describe(5)


def test_S5_handles_are_made_by_the_engine_only() -> None:
    with pytest.raises(TypeError):
        tape.Handle()


def test_S5_unknown_metadata_is_refused() -> None:
    interner = intern.Interner(torch.Size)
    assert interner.counts() == (0, 0)
    for bad in (0, 1, 1000):
        with pytest.raises(IndexError, match="expected an id"):
            interner.meta(bad)


def test_S5_equal_calls_and_metadata_are_stored_once() -> None:
    x = torch.ones(3, 3, device=LAZY)
    (x + 1.25).cpu()
    before = main.interner.counts()
    for _ in range(100):
        x = (x + 1.25) * 1.0
    between = main.interner.counts()
    assert between[0] - before[0] <= 1 and between[1] - before[1] <= 2
    for _ in range(100):
        x = (x + 1.25) * 1.0
    assert main.interner.counts() == between


@pytest.mark.parametrize("pair", [(1, 1.0), (1, True), (0.0, -0.0), (2, 2 + 0j), (float("nan"), 1.0)])
def test_L7_constants_that_compare_equal_are_told_apart(pair: tuple) -> None:
    base = torch.zeros(2, dtype=torch.int64)
    for value in pair:
        expected = torch.mul(base, value)
        got = torch.mul(base.to(LAZY), value)
        assert got.dtype == expected.dtype
        left, right = torch.full((2,), value), torch.full((2,), value, device=LAZY).cpu()
        assert left.dtype == right.dtype and left.view(torch.uint8).tolist() == right.view(torch.uint8).tolist()


def test_S5_memory_returns_when_handles_die() -> None:
    def work() -> None:
        keep = [torch.ones(2, device=LAZY) * i for i in range(20_000)]
        del keep

    work()
    gc.collect()
    first = main.counters()
    for _ in range(3):
        work()
    gc.collect()
    after = main.counters()
    assert after["values"] == first["values"] and after["pending"] == first["pending"]
    assert after["bytes_held"] <= first["bytes_held"] * 1.02 + 4096


def test_S5_counters_balance() -> None:
    before = main.counters()
    x = torch.ones(2, device=LAZY)
    kept = [x + i for i in range(10)]
    for i in range(10):
        x * i
    kept[3].cpu()
    now = main.counters()
    recorded, pending, executed, dropped = (now[k] - before[k] for k in ("recorded", "pending", "executed", "dropped"))
    assert recorded == pending + executed + dropped == 21
    assert (pending, executed, dropped) == (9, 2, 10)
    assert now["values"] - before["values"] == 11
    seqs = main.pending_seqs()
    assert seqs == sorted(seqs) and len(seqs) == now["pending"]


def test_S5_chunks_are_reused_around_a_survivor() -> None:
    """One old pending record must not keep the memory of everything recorded after it."""
    old = torch.ones(2, device=LAZY) + 1
    before = main.counters()["bytes_held"]
    for _ in range(100_000):
        torch.ones(2, device=LAZY) * 2
    assert main.counters()["bytes_held"] <= before + 200_000
    assert old.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("seed", range(8))
def test_L14_random_programs_agree_with_eager_whatever_dies_or_is_read_when(seed: int) -> None:
    """A small interpreter of random programs: pure ops, views, writes, draws, deaths and reads in any order."""
    rng = random.Random(seed)
    outcomes = []
    for device in ("cpu", LAZY):
        rng.seed(seed)
        torch.manual_seed(seed)
        live = [torch.arange(12.0, device=device).reshape(3, 4)]
        seen: list[object] = []
        for _ in range(400):
            t = rng.choice(live)
            kind = rng.randrange(12)
            if kind == 0:
                live.append(t * 0.5 + 1)
            elif kind == 1:
                live.append(t[rng.randrange(t.shape[0])].reshape(1, -1) if t.shape[0] else t)
            elif kind == 2:
                live.append(t.t())
            elif kind == 3:
                t.mul_(0.5)
            elif kind == 4:
                t[0].add_(1)
            elif kind == 5:
                live.append(torch.randn(2, 3, device=device))
            elif kind == 6 and len(live) > 3:
                live.pop(rng.randrange(len(live)))
            elif kind == 7:
                live.append(t.detach())
            elif kind == 8:
                t.copy_(rng.choice([u for u in live if u.shape == t.shape]).clone())
            elif kind == 9:
                seen.append(t.tolist())
            elif kind == 10:
                live.append(torch.cat([t, t]).view(-1)[:2].view(2, 1))
            else:
                t.normal_() if rng.randrange(2) else t.clamp_(-5, 5)
        seen.extend(t.tolist() for t in live)
        outcomes.append(seen)
    assert outcomes[0] == outcomes[1]


def test_L14_a_tensor_that_dies_while_recording_is_harmless() -> None:
    class Reader:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def __del__(self) -> None:
            (self.x * 3).tolist()
            self.x + 7

    x = torch.ones(4, device=LAZY)
    for i in range(2000):
        cycle: list[object] = [Reader(x)]
        cycle.append(cycle)
        del cycle
        y = x + i * 0.001
    gc.collect()
    assert torch.equal(y.cpu(), torch.ones(4) + 1999 * 0.001)


def test_S5_many_names_for_one_value() -> None:
    x = torch.ones(2, device=LAZY)
    names = [x.detach() for _ in range(1000)]
    assert all(n.tolist() == [1.0, 1.0] for n in names[::250])
    x.add_(1)
    assert names[0].tolist() == names[999].tolist() == [2.0, 2.0]
    del names
    assert x.tolist() == [2.0, 2.0]


def test_L7_what_reads_a_tensor_runs_before_it_is_written_at_once() -> None:
    x = torch.arange(3.0, device=LAZY)
    assert x.tolist() == [0.0, 1.0, 2.0], "it has been computed: nothing that is pending makes it"
    before = x + 1
    view = x[1:] * 2
    x.apply_(lambda v: 9.0)  # which cannot wait
    assert before.tolist() == [1.0, 2.0, 3.0] and view.tolist() == [2.0, 4.0] and x.tolist() == [9.0] * 3


def test_S5_only_the_last_name_of_a_value_lets_go_of_it() -> None:
    x = torch.arange(1000.0, device=LAZY)
    x.cpu()
    waits = x + 1
    waiting = main.waiting
    other = x.detach()
    del x
    assert main.waiting == waiting, "another name holds it"
    del other
    assert main.waiting == waiting + 4000
    assert waits.sum().item() == 500_500.0


@pytest.mark.parametrize("names", [1, 2, 3])
def test_L7_values_with_several_names_stay_shared_in_copies(names: int) -> None:
    def program(device: str) -> list[list[float]]:
        first = torch.ones(4).to(device) * 2
        held = [first, *(first.detach() for _ in range(names - 1))]
        made = copy.deepcopy(held)
        made[-1].mul_(5)
        return [t.tolist() for t in (*held, *made)]

    assert program(LAZY) == program("cpu")


def test_L12_only_candidates_get_the_phase_that_they_turned_out_to_be() -> None:
    class Adds(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    model, x = Adds(), torch.ones(2, device=LAZY)
    before, made = lazy.position(), []
    context.follow_generation(lambda *_: context.CANDIDATE, lambda *_: None)
    try:
        with torch.no_grad():
            made += [model(x), x * 2, model(x), x - 3]
            lazy.tell_phase(before + 2, context.PHASES.index("decode"))
    finally:
        generation.install()
    phases = [context.phase_name(main.describe(seq)[3]) for seq in range(before, lazy.position())]
    assert phases == ["forward", "other", "decode", "other"], "a candidate from before is none of these"
    assert [t.tolist() for t in made] == [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0], [-2.0, -2.0]]


def test_S5_metadata_and_calls_are_found_again_in_tables_that_are_nearly_full() -> None:
    """Where they collide, too: the tables are searched as they were filled, and filled anew as they grew."""
    held = [torch.empty(0, i, device=LAZY) for i in range(5000)]
    metas, calls = main.interner.counts()
    held += [torch.zeros(0, i, device=LAZY) for i in range(5000)]
    assert main.interner.counts() == (metas, calls + 5000), "equal metadata of other calls"
    held += [torch.empty(0, i, device=LAZY) for i in range(5000)]
    assert main.interner.counts() == (metas, calls + 5000), "equal calls"
    assert [tuple(t.shape) for t in held] == [(0, i) for i in range(5000)] * 3


def test_S5_a_long_chain_that_nobody_reads_dies_at_once_and_without_recursion() -> None:
    before = main.counters()
    x = torch.ones(2, device=LAZY)
    for _ in range(200_000):
        x = x + 1
    assert main.counters()["pending"] - before["pending"] == 200_001
    del x
    after = main.counters()
    assert (after["pending"], after["values"]) == (before["pending"], before["values"])
    assert after["dropped"] - before["dropped"] == 200_001


def test_S5_a_record_is_told_of_until_it_has_run() -> None:
    """Its call, and the floats that its call leaves open: what runs afterwards is looked up in vain."""
    x = torch.ones(2, device=LAZY)
    x.cpu()
    before = lazy.position()
    held = [x * 0.25, torch.add(x, x, alpha=1.5), x + 1, torch.addcmul(x, x, x, value=-0.125)]
    seqs = range(before, lazy.position())
    assert [main.floats(seq) for seq in seqs] == [(0.25,), (1.5,), (), (-0.125,)]
    assert [len(main.describe(seq)[4]) for seq in seqs] == [1, 2, 1, 3]
    assert [len(main.describe(seq)[5]) for seq in seqs] == [1] * 4
    held[0].cpu()
    for ask in (main.floats, main.describe):
        with pytest.raises(KeyError, match=f"record {before} has run or was dropped"):
            ask(before)
        assert ask(before + 1)
    del held[1:]
    for ask in (main.floats, main.describe):
        with pytest.raises(KeyError, match=f"record {before + 1} has run or was dropped"):
            ask(before + 1)


def test_C4_only_tensors_without_data_have_memory_beside_them() -> None:
    """A value that was computed is no such memory, and neither is what nobody has kept."""
    x = torch.ones(2, device=LAZY)
    assert not lazy.is_kept(x._handle)  # type: ignore[attr-defined]
    x.cpu()
    assert not lazy.is_kept(x._handle)  # type: ignore[attr-defined]
    without = mindtorch.empty(2, device="meta")
    assert not lazy.is_kept(without._handle)
    view = without[1:]
    lazy.keep(without._handle, torch.tensor([3.0, 4.0]))
    assert lazy.is_kept(without._handle) and lazy.is_kept(view._handle)
    assert lazy.kept(without._handle).tolist() == [3.0, 4.0] and lazy.kept(view._handle).tolist() == [4.0]
    with pytest.raises(ValueError, match="expected a tensor without data, got a lazy one"):
        lazy.keep(x._handle, torch.ones(2))  # type: ignore[attr-defined]
    assert x.tolist() == [1.0, 1.0]


def records_until_a_sweep() -> int:
    """How many are pending at most, where most are writes that nobody can see."""
    most = main.n_pending
    while True:
        torch.zeros(1, device=LAZY).add_(1)
        if main.n_pending < most:
            return most
        most = main.n_pending


def test_S5_the_tape_is_swept_at_4096_records_and_at_twice_as_many_as_stay() -> None:
    lazy.sweep()
    assert main.n_pending == 0
    assert records_until_a_sweep() == 4094  # one call more, and there are 4096 at its end
    x = torch.ones(1, device=LAZY)
    kept = [x + 1 for _ in range(2999)]
    lazy.sweep()
    assert len(kept) + 1 == main.n_pending == 3000
    assert records_until_a_sweep() == 5998


@pytest.mark.parametrize(("draws", "told"), [(2048, 0), (2049, 1)])
def test_S5_more_than_2048_draws_that_wait_are_drawn_at_a_sweep(
    draws: int, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []
    monkeypatch.setattr(main, "on_draws", lambda: called.append(main.n_pending))
    x = torch.ones(1, device=LAZY)
    lazy.sweep()
    kept = [x + 1 for _ in range(4096 - draws - main.n_pending)]
    for _ in range(draws):
        assert called == []
        torch.rand(1, device=LAZY)
    assert called == [4096] * told and kept


@pytest.mark.parametrize("change", ["t_", "unsqueeze_", "resize_"])
def test_S5_a_tensor_that_parts_from_its_other_names_leaves_nothing(change: str) -> None:
    gc.collect()
    before = main.counters()["values"]
    x = torch.ones(2, 3, device=LAZY)
    same = x.detach()
    getattr(x, change)(*{"t_": (), "unsqueeze_": (0,), "resize_": (1, 3)}[change])
    assert same.shape == (2, 3) != x.shape
    x.add_(1)
    assert same[0].tolist() == [2.0] * 3
    del x, same
    gc.collect()
    mindtorch.flush("test")
    assert main.counters()["values"] == before


CALLS = {
    "several results": lambda x: torch.max(x, 1),
    "a list of views": lambda x: x.split(1),
    "views": lambda x: x.unbind(),
    "two results": lambda x: torch.aminmax(x, dim=1),
    "a write": lambda x: x.mul_(0.5),
    "writes": lambda x: torch._foreach_mul_([x, x.clone()], 0.5),
    **{f"{n} inputs": lambda x, n=n: torch.cat([x + 0.5] * n) for n in (3, 4, 8, 9)},
    **{f"{n} floats": lambda x, n=n: torch._foreach_mul([x] * n, [0.5 + k / 8 for k in range(n)]) for n in (2, 4, 5)},
    "a copy": lambda x: x.t().contiguous(),
    "random numbers": lambda x: torch.rand_like(x),
    "a draw into it": lambda x: x.clone().uniform_(),
}


@pytest.mark.parametrize("device", [LAZY, "meta:0"])
@pytest.mark.parametrize("name", CALLS)
def test_S5_no_call_leaves_a_value_behind(name: str, device: str) -> None:
    """Whether it is read, forgotten before it has run, or part of it is; nor bytes, once the tables have grown."""
    x = torch.ones(2, 3).to(device)
    for _ in range(2):  # what is made once
        made = CALLS[name](x)
        del made
    mindtorch.flush("test")
    before = main.counters()
    for keep in (True, False, True):
        made = CALLS[name](x)
        if isinstance(made, (tuple, list)) and keep:
            made = made[-1]
        if keep and device == LAZY and isinstance(made, torch.Tensor):
            made.tolist()
        del made
    gc.collect()
    mindtorch.flush("test")
    after = main.counters()
    assert (after["values"], after["pending"]) == (before["values"], before["pending"])
    assert after["bytes_held"] <= before["bytes_held"] + 4096
