"""Tables stay bounded when shapes keep changing, and what is held stays valid (SPEC S5, S6)."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch._ext import lazy as _core
from mindtorch.engine.execute.values import tape
from mindtorch.engine.record import eager, predict

LAZY = "remote_accelerator:0"
LIMIT = 1 << 20


@pytest.fixture(autouse=True)
def small_tables() -> Iterator[None]:
    gc.collect()
    mindtorch.flush("test")
    limit = tape.interner.limit
    tape.interner.set_limit(LIMIT)
    yield
    tape.interner.set_limit(limit)


def entries_in_use() -> int:
    """How many entries stay when all go that nothing names. Tables that were large once may hold more until then."""
    mindtorch.flush("test")
    tape.interner.set_limit(1)
    torch.ones(4, device=LAZY) * next(unheard)  # a new call, so the tables are looked through
    tape.interner.set_limit(LIMIT)
    return sum(tape.interner.counts())


unheard = itertools.count(1 << 20)


def test_S5_changing_shapes_do_not_grow_the_tables_and_no_id_in_use_is_lost() -> None:
    """A million ops, twenty thousand of them with shapes and constants never seen before."""
    x = torch.ones(4, device=LAZY)
    in_use, first = entries_in_use(), mindtorch.stats()["bytes_held"]
    kept: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    largest = 0
    for i in range(10_000):
        y = x + float(i)
        z = y.expand(1 + i, 4)
        for _ in range(98):
            x * 2.0
        if i % 500 == 0:
            kept.append((i, y, z))
            largest = max(largest, mindtorch.stats()["bytes_held"])
    assert largest <= max(first, LIMIT) * 2, "the tables grow with every new shape"
    for i, y, z in kept:
        assert z.shape == (1 + i, 4) and z.stride() == torch.ones(4).expand(1 + i, 4).stride()
        assert z.operation == "aten::expand" and y.operation == "aten::add"  # type: ignore[attr-defined]
        assert [t.shape for t in z.inputs] == [(4,)]  # type: ignore[attr-defined]
        assert torch.equal(z[-1].cpu(), torch.ones(4) + float(i))
    assert entries_in_use() < in_use + 200


def test_S5_uploads_of_changing_shapes_do_not_grow_the_tables() -> None:
    held = []
    for i in range(20_000):
        torch.empty(0, i).to(LAZY)
        if i % 1000 == 0:
            held.append(mindtorch.stats()["bytes_held"])
    assert max(held) <= max(held[0], LIMIT) * 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("device", [LAZY, "meta"])
def test_S5_what_is_never_seen_again_goes_long_before_the_limit(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ever new scalars and shapes, beside calls that a loop makes again and again: these stay."""
    tape.interner.set_limit(64 << 20, LIMIT)
    limit = max(LIMIT, tape.interner.bytes // 2)  # where tests before this one still use much, more may come
    asked: list[str] = []
    infer = predict._infer

    def asking(info: Any, *args: Any) -> Any:
        asked.append(info.name)
        return infer(info, *args)

    monkeypatch.setattr(predict, "_infer", asking)
    x, w = mindtorch.ones(4, device=device), mindtorch.ones(4, 4, device=device)
    held = tape.interner.bytes  # what tests before this one still use
    largest = evictions = calls = 0
    for i in range(40_000):
        x * (i + 0.5)
        if i % 4 == 0:
            x.expand(i + 1, 4)
        if i % 10 == 0:
            (w @ w).relu().sum(0).softmax(0)
        if i % 100 == 0:
            largest = max(largest, tape.interner.bytes)
            evictions += tape.interner.counts()[1] < calls
            calls = tape.interner.counts()[1]
    assert largest - held < 2 * limit and evictions >= (2 if limit == LIMIT else 1), (largest, held, evictions)
    assert all(asked.count(name) <= 1 for name in ("aten::matmul", "aten::relu", "aten::sum", "aten::softmax")), asked


def test_S5_ever_new_scalars_stay_below_a_quarter_of_the_limit() -> None:
    held = tape.interner.bytes  # what tests before this one still use
    tape.interner.set_limit(8 << 20, 2 << 20)
    x = torch.ones(4, device=LAZY)
    most = 0
    for i in range(50_000):
        x * (i + 100.25)  # of smaller ones only the first is part of a key
        if i % 100 == 0:
            most = max(most, tape.interner.counts()[1])
    assert 10_000 < most < 48_000, most
    assert tape.interner.counts()[1] < most + 100 and tape.interner.bytes <= (17 << 17) + held


def test_S5_calls_in_use_survive_an_eviction() -> None:
    in_use = entries_in_use()
    x = torch.ones(3, 3, device=LAZY)
    (x @ x).relu().cpu()
    tape.interner.set_limit(1)  # every new call looks for entries to free
    for i in range(50):
        y = (x @ x).relu() + i * 0.5
        a, b = y.max(dim=1)
        y.add_(float(i))
        assert y[0].tolist() == [3 + i * 1.5] * 3 and a.tolist() == [3 + i * 0.5] * 3 and b.shape == (3,)
    gc.collect()
    assert sum(tape.interner.counts()) < in_use + 200


def test_S5_tables_that_were_large_give_their_memory_back() -> None:
    """Else what they may hold until the next look would follow from how large they ever were."""
    entries_in_use()
    before = tape.interner.bytes
    tape.interner.set_limit(1 << 30, 1 << 30)
    x = torch.ones(4, device=LAZY)
    for i in range(12_000):
        (x * (i + 100.75)).expand(i + 1, 4)
    assert tape.interner.bytes > before + (2 << 20) and tape.interner.counts() > (12_000, 24_000)
    entries_in_use()
    assert tape.interner.bytes < 2 * before + (1 << 20)  # tables double: one more entry may be twice the memory
    y = (x * 0.75).expand(2, 4)
    assert y.tolist() == [[0.75] * 4] * 2


def test_S5_what_the_tables_say_that_they_hold_is_what_they_hold() -> None:
    """Counted entry by entry as they grow, and all at once when they are looked through: the same."""
    entries_in_use()
    tape.interner.set_limit(1 << 30, 1 << 30)
    x, held = torch.ones(4, device=LAZY), []
    for i in range(3000):
        held.append((x * (i + 200.75)).expand(i + 300, 4))
        held.append(held[-1].t()[:, 1 : i % 7 + 2])
    counted, entries = tape.interner.bytes, tape.interner.counts()
    tape.interner.set_limit(1)
    held.append(torch.ones(4, device=LAZY) * next(unheard))  # the tables are looked through
    now = tape.interner.counts()
    gone = sum(entries) - sum(now)
    assert gone < 30, "all of them are named"
    assert abs(tape.interner.bytes - counted) <= 300 * (abs(gone) + 3)


def test_S5_freed_values_give_their_memory_back() -> None:
    before = tape.counters()["bytes_held"]
    many = [torch.ones(1, device=LAZY) * 2.0 for _ in range(100_000)]
    assert tape.counters()["bytes_held"] > before + 16 * 100_000
    del many
    for _ in range(2_000):
        torch.ones(1, device=LAZY)
    assert tape.counters()["bytes_held"] <= before * 2 + 100_000


@pytest.mark.parametrize("threshold", range(3, 30))
def test_L7_a_finalizer_that_records_in_the_middle_of_a_call_changes_nothing(threshold: int) -> None:
    """The collector may run while a call is being recorded (Python 3.11 and older): at any of its allocations."""

    class Recorder:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def __del__(self) -> None:
            (self.x * 3).tolist()
            self.x + 7
            self.x.mul_(1)

    x, w = torch.ones(4, device=LAZY), torch.full((4,), 2.0, device=LAZY)
    before = gc.get_threshold()
    y, z = torch.zeros(4, device=LAZY), torch.arange(4.0, device=LAZY)
    with torch.no_grad():
        gc.set_threshold(threshold, 1_000_000, 1_000_000)
        try:
            for _ in range(100):
                for _ in range(3):
                    cycle: list[object] = [Recorder(x)]
                    cycle.append(cycle)
                    del cycle
                y.add_(w)
                a, _b = torch.max(z.view(2, 2), dim=1)
                p, q = z.split(2)
        finally:
            gc.set_threshold(*before)
    assert y.tolist() == [200.0] * 4 and w.tolist() == [2.0] * 4 and x.tolist() == [1.0] * 4
    assert a.tolist() == [1.0, 3.0] and p.tolist() == [0.0, 1.0] and q.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("limit", [7, 8, 15, 16, 31, 32, 63], ids=lambda bits: f"2**{bits}")
def test_L7_numbers_at_the_limits_of_a_keys_bytes(limit: int) -> None:
    """A key holds a small number in one byte, others in eight; what does not fit is torch's."""
    x, sizes = torch.ones(2, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    for n in (-(2**limit) - 1, -(2**limit), -(2**limit) + 1, 2**limit - 1, 2**limit, 2**limit + 1, 2**limit + 2):
        if -(2**63) <= n < 2**63:
            assert (x.to(LAZY) * n).tolist() == [n, n] == (n * x.to(LAZY)).tolist()
            assert torch.add(x.to(LAZY), x.to(LAZY), alpha=n).tolist() == torch.add(x, x, alpha=n).tolist()
        if 0 <= n < 2**17:
            assert sizes.to(LAZY).expand(n).shape == (n,) and torch.zeros((n,), device=LAZY).sum().item() == 0
    assert (x.to(LAZY) * 0.0).tolist() == [0.0, 0.0] and str((x.to(LAZY) * -0.0).tolist()) == "[-0.0, -0.0]"
    assert torch.equal((x.to(LAZY) * True).cpu(), x) and (x.to(LAZY) * 1.0).dtype is torch.float32


SIZES = """
import statistics, sys, torch, mindtorch
from mindtorch.engine.execute.values import tape

held = []

def taken(n, more=0):
    "By one new entry: what most of nine took, since a table or a chunk of records may grow at any of them."
    took = []
    for k in range(9):
        before = tape.counters()["bytes_held"]
        size = (n, 0, k, *[1] * more)
        held.append(torch.empty_strided(size, (1,) * len(size), device="remote_accelerator:0"))
        took.append(tape.counters()["bytes_held"] - before)
    return statistics.mode(took)

taken(3)
for sizes in ((4, 5), (255, 256, 257, 258), ((1 << 30) - 1, 1 << 30), ((1 << 30) + 1, 1 << 31)):
    bytes_of = [taken(n) - (sys.getsizeof(n) if n > 256 else 0) for n in sizes]
    assert len(set(bytes_of)) == 1, (sizes, bytes_of)
ranks = [taken(7, more) for more in range(4)]
one = sys.getsizeof((1,)) - sys.getsizeof(()) + 2 * 2  # in a tuple that is held once, and in the key two small numbers
assert ranks == [ranks[0] + one * more for more in range(4)], ranks
"""


def test_S5_sizes_are_counted_as_python_counts_them(after_torch: Callable[..., Any]) -> None:
    """Small numbers are there anyway; others are objects of their own. In a process without numbers that were freed:
    entries that take those are not beside the recent ones, whose strides they would share."""
    after_torch(SIZES)


BEFORE_A_TENSOR: dict[str, Any] = {
    "a byte": lambda mask, x: torch.where(mask, 1, x),
    "an int": lambda _, x: torch.pow(256, x),  # whose second byte looks like a tensor's
    "a float": lambda _, x: torch.pow(1000.5, x),
    "a complex number": lambda _, x: torch.pow(2j, x),
    "nothing": lambda mask, x: torch.clamp(mask, None, x),
    "a text": lambda mask, x: torch.div(input=mask, rounding_mode="floor", other=x),
    "a dtype": lambda _, x: torch.sum(dtype=torch.float64, dim=0, input=x),
}


@pytest.mark.parametrize("name", BEFORE_A_TENSOR)
def test_S5_of_a_call_that_is_kept_all_tensors_are_known(name: str) -> None:
    """Also those that come after constants, when nothing else names what they are like."""
    mask, x = (torch.ones(3, 1, device="cpu") > 0).to(LAZY), torch.ones(1, 17, device="cpu").to(LAZY)
    made = BEFORE_A_TENSOR[name](mask, x)
    sizes = [(3, 1), (1, 17)] if name in ("a byte", "nothing", "a text") else [(1, 17)]
    del mask, x
    tape.interner.set_limit(1)
    torch.ones(4, device=LAZY) * next(unheard)  # a new call, so the tables are looked through
    assert made._handle.pending  # type: ignore[attr-defined]
    metas = _core.input_metas(made._handle.sig)  # type: ignore[attr-defined]
    assert [tape.interner.meta(meta)[1] for meta in metas] == sizes


NUMBERS = [0, 1, -1, 127, 128, -128, -129, 255, 256, 1 << 31, -(1 << 31), (1 << 62) + 1, -(1 << 62) - 1, True, False]


def _full(number: Any, device: str) -> torch.Tensor:
    return torch.full((2,), number, device=device)


def _sum(number: int, device: str) -> torch.Tensor:
    return torch.ones(2, dtype=torch.int64).to(device) + number


CONSTANTS: dict[str, Any] = {
    **{f"full {n!r}": functools.partial(_full, n) for n in (*NUMBERS, 0.5, -0.0, 2 - 3j, 1j)},
    **{f"add {n!r}": functools.partial(_sum, n) for n in NUMBERS},
    "complex product": lambda d: torch.ones(2).to(d) * (0.5 - 2j),
    "complex factor": lambda d: torch.add(torch.ones(2).to(d) * 1j, torch.ones(2).to(d), alpha=0.25 + 4j),
    "nothing": lambda d: torch.ones(2, 3).to(d).clamp(None, 0.5),
    "a dtype": lambda d: torch.ones(2, 3).to(d).sum(0, dtype=torch.float64),
    "a list": lambda d: torch.ones(2, 3, 4).to(d).permute([2, 0, 1]).sum((0, 2), keepdim=True),
    "an empty list": lambda d: torch.ones(2, 3, 4).to(d).sum([]),
    "a text": lambda d: torch.nn.functional.gelu(torch.ones(3).to(d), approximate="tanh"),
    "texts": lambda d: torch.einsum("ij,kj->ik", torch.ones(2, 3).to(d), torch.ones(4, 3).to(d)),
    "rounding": lambda d: torch.div(torch.tensor([7.0, -7.0]).to(d), 2, rounding_mode="floor"),
    "a device": lambda d: torch.ones(2).to(d).to(torch.float64).to(d),
    "a place": lambda d: torch.arange(24).to(d).view(2, 3, 4)[..., 1:3, None, -1],
    "places": lambda d: torch.arange(24).to(d).view(2, 3, 4)[:, [0, 2], 1],
    "a layout": lambda d: torch.ones(1, 2, 3, 4).to(d).contiguous(memory_format=torch.channels_last),
    "tensors": lambda d: torch.cat([torch.ones(2).to(d), torch.zeros(3).to(d), torch.ones(1).to(d)]),
    "nested": lambda d: torch.nn.functional.pad(torch.ones(2, 3).to(d), (1, 2, 0, 1), value=-1.5),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_L7_constants_of_every_kind_reach_the_kernel_as_they_were_given(name: str) -> None:
    """However often the call was seen, and beside others of the same form."""
    expected = CONSTANTS[name]("cpu")
    before = dict(eager.fallback_counts)
    for _ in range(3):
        found = CONSTANTS[name](LAZY)
        assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
        home = found.cpu()
        assert torch.equal(home, expected) and repr(home.tolist()) == repr(expected.tolist())
    assert eager.fallback_counts == before  # all of them are recorded
