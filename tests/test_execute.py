"""What runs, how often, and what it costs (SPEC L10, L14, L15, R1)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch._ext import context

from .executors import using

LAZY = "remote_accelerator:0"


@pytest.fixture(autouse=True)
def clean_stats() -> None:
    gc.collect()
    mindtorch.flush("test")
    mindtorch.reset_stats()


def executed() -> int:
    return mindtorch.stats()["ops_executed"]


@contextmanager
def runs(n: int) -> Iterator[None]:
    """Exactly ``n`` ops are executed inside."""
    before = executed()
    yield
    assert executed() - before == n


def test_L14_nothing_runs_twice() -> None:
    x = torch.ones(3, device=LAZY)
    y = x + 1
    with runs(2):
        y.tolist()
    with runs(0):
        y.tolist()
        y.cpu()
        repr(y)
        x.tolist()
    z = y * 2
    with runs(1):
        z.tolist()


@pytest.mark.only_on("local", reason="elsewhere what can be seen runs after a read, too")
def test_L14_only_what_a_read_needs_runs() -> None:
    x = torch.ones(3, device=LAZY)
    a, b, c = x + 1, x + 2, x + 3
    with runs(2):
        b.tolist()
    assert b.materialized and x.materialized and not a.materialized and not c.materialized
    with runs(2):
        (a.tolist(), c.tolist())
    assert mindtorch.stats()["ops_pending"] == 0


def test_L14_dead_ops_never_run() -> None:
    x = torch.ones(3, device=LAZY)
    for _ in range(100):
        (x * 2 + 1).relu()
    chain = x
    for _ in range(100):
        chain = chain + 1
    del chain
    with runs(2):
        (x + 5).tolist()
    mindtorch.flush("test")
    s = mindtorch.stats()
    assert s["ops_executed"] == 2 and s["ops_dropped"] == 400 and s["ops_pending"] == 0
    assert s["ops_recorded"] == 402


def test_L14_dead_writes_never_run() -> None:
    x = torch.ones(3, device=LAZY)
    y = x.clone()
    y.add_(1)
    y.mul_(3)
    del y
    with runs(1):
        x.tolist()
    mindtorch.flush("test")
    assert executed() == 1


def test_L14_a_write_runs_before_a_later_read_and_after_an_earlier_one() -> None:
    x = torch.zeros(2, device=LAZY)
    before = x + 1
    x.add_(10)
    with runs(3):
        assert x.tolist() == [10.0, 10.0]
    with runs(0):
        assert before.tolist() == [1.0, 1.0]


def test_L14_draws_run_in_order_whatever_is_read_first() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2), torch.rand(2)
    torch.manual_seed(0)
    a, b = torch.rand(2, device=LAZY), torch.rand(2, device=LAZY)
    assert torch.equal(b.cpu(), expected[1]) and torch.equal(a.cpu(), expected[0])


def test_L14_flush_runs_everything_visible_once() -> None:
    kept = [torch.ones(2, device=LAZY) * i for i in range(10)]
    mindtorch.flush("test")
    assert all(t.materialized for t in kept) and mindtorch.stats()["ops_pending"] == 0
    assert mindtorch.stats()["triggers"] == {"test": 1}
    with runs(0):
        mindtorch.flush("test")


def test_L14_intermediate_memory_is_freed_while_a_segment_runs() -> None:
    x = torch.ones(1000, device=LAZY)
    y = x
    for _ in range(50):
        y = y + 1
    values = mindtorch.stats()["values"]
    y.cpu()
    assert mindtorch.stats()["values"] <= values - 49


@pytest.mark.only_on("local", reason="what is read from elsewhere is a copy, which nobody keeps")
def test_L14_values_die_with_their_tensors() -> None:
    x = torch.ones(4, device=LAZY) + 1
    reference = weakref.ref(x.materialize())
    assert reference() is not None
    del x
    gc.collect()
    assert reference() is None


# ---- L15 -------------------------------------------------------------------------------------------------------------
def test_L15_stats_is_a_plain_documented_dict() -> None:
    s = mindtorch.stats()
    for key in (
        "ops_recorded",
        "ops_pending",
        "ops_executed",
        "ops_fallback",
        "segments",
        "triggers",
        "bytes_held",
        "bytes_per_op",
        "record_bytes",
    ):
        assert key in s and key in (mindtorch.stats.__doc__ or ""), key
    assert type(s) is dict and 0 < s["record_bytes"] <= 64
    s["triggers"]["made up"] = 1
    assert "made up" not in mindtorch.stats()["triggers"]


def test_L15_counts_add_up_and_reset() -> None:
    x = torch.ones(2, device=LAZY)
    y = x + 1
    s = mindtorch.stats()
    assert (s["ops_recorded"], s["ops_pending"], s["ops_executed"], s["segments"]) == (2, 2, 0, 0)
    assert s["bytes_per_op"] == s["bytes_held"] / 2
    y.cpu()
    s = mindtorch.stats()
    assert (s["ops_pending"], s["ops_executed"], s["segments"], s["triggers"]) == (0, 2, 1, {"cpu": 1})
    mindtorch.reset_stats()
    s = mindtorch.stats()
    assert (s["ops_recorded"], s["ops_executed"], s["segments"], s["triggers"], s["ops_fallback"]) == (0, 0, 0, {}, 0)
    z = y * 2
    mindtorch.reset_stats()
    assert mindtorch.stats()["ops_pending"] == 1 and z.tolist() == [4.0, 4.0]


# ---- L10, S5, S6 -----------------------------------------------------------------------------------------------------
def test_L10_a_long_chain_records_and_runs_without_recursion() -> None:
    n = 200_000
    x = torch.zeros((), device=LAZY)
    y = x
    before = mindtorch.stats()["bytes_held"]  # tables that earlier programs of this process have filled
    for _ in range(n):
        y = y + 1
    s = mindtorch.stats()
    assert s["ops_pending"] == n + 1
    assert 28 <= (s["bytes_held"] - before) / n <= 100
    assert y.item() == n
    s = mindtorch.stats()
    assert s["ops_executed"] == n + 1 and s["ops_pending"] == 0


def test_L10_a_long_chain_that_is_never_read_is_dropped_without_recursion() -> None:
    y = torch.zeros((), device=LAZY)
    for _ in range(200_000):
        y = y + 1
    del y
    s = mindtorch.stats()
    assert s["ops_pending"] == 0 and s["ops_executed"] == 0 and s["ops_dropped"] == 200_001


@pytest.mark.parametrize("what", ["pure", "in_place", "random", "views", "writes_through_views"])
def test_L15_a_loop_that_keeps_nothing_holds_bytes_flat(what: str) -> None:
    x = torch.ones(4, 4, device=LAZY)

    def body() -> None:
        if what == "pure":
            (x * 2 + 1).relu()
        elif what == "in_place":
            y = x * 2
            y.add_(1)
        elif what == "random":
            torch.nn.functional.dropout(x)
        elif what == "views":
            x.t()[0].view(2, 2)
        else:
            y = x * 2
            y[0].add_(1)

    def held() -> int:
        return mindtorch.stats()["bytes_held"]

    for _ in range(10_000):
        body()
    first = held()
    for _ in range(60_000 // (10 if what == "random" else 1)):
        body()
    limit = 600_000
    assert held() <= max(first * 1.1, limit), f"{first} -> {held()} bytes"


def test_L15_a_training_loop_holds_bytes_flat() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to(LAZY)
    # Not Adam, whose step sizes are new numbers in new calls each time: tests/ext/test_leaks.py sees to those.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.ones(2, 4, device=LAZY)
    held: list[int] = []
    values: list[int] = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        loss.item()
        # The log of module boundaries apart, which grows up to a bound: tests/semantics/test_modules.py sees to it.
        held.append(mindtorch.stats()["bytes_held"] - context.table_bytes())
        values.append(mindtorch.stats()["values"])
    assert values[-1] <= values[10] + 2
    assert held[-1] <= held[20] * 1.05, "the tables grow with every step"


def test_S5_record_size() -> None:
    assert mindtorch.stats()["record_bytes"] <= 64


@pytest.mark.parametrize("ops", [1_000_000])
def test_L10_a_million_ops(after_a_step: Callable[..., Any], ops: int) -> None:
    """In a process of its own: the issue's chain of a million, recorded, counted, read, within the byte budget."""
    code = f"""
        import torch, mindtorch
        y = torch.zeros((), device="remote_accelerator:0")
        for _ in range({ops}):
            y = y + 1
        s = mindtorch.stats()
        print(s["ops_pending"], s["bytes_per_op"] <= 100, y.item(), mindtorch.stats()["ops_executed"])
    """
    assert after_a_step(code).stdout.split() == [str(ops + 1), "True", f"{float(ops)}", str(ops + 1)]


# ---- R1 --------------------------------------------------------------------------------------------------------------
class Recording(mindtorch.LocalExecutor):
    """The in-process executor, noting what it is asked."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.segments: list[list[str]] = []
        self.fetched = 0

    def submit(self, segment) -> None:  # type: ignore[no-untyped-def]
        self.segments.append([name for name, *_ in segment.instructions()])
        super().submit(segment)

    def fetch(self, values, whole=False) -> list[torch.Tensor]:  # type: ignore[no-untyped-def]
        self.fetched += len(values)
        return super().fetch(values, whole)


@pytest.fixture
def recording() -> Iterator[Recording]:
    with using(Recording()) as executor:
        yield executor


def test_R1_another_executor_gets_segments_in_program_order(recording: Recording) -> None:
    x = torch.ones(2, device=LAZY)
    y = (x * 3).relu_()
    assert (y - 1).tolist() == [2.0, 2.0]
    assert recording.segments == [["aten::ones", "aten::mul", "aten::relu_", "aten::sub"]]
    assert recording.fetched == 1


def test_R1_pending_work_runs_before_the_executor_changes() -> None:
    pending = torch.ones(2, device=LAZY) * 4
    with using(Recording()):
        assert pending.materialized and pending.tolist() == [4.0, 4.0]


@pytest.mark.parametrize("device", ["meta", "banana", "cuda:99", "npu"])
def test_R1_an_executor_device_that_cannot_work_is_refused(device: str) -> None:
    with pytest.raises((mindtorch.UsageError, RuntimeError)):
        mindtorch.LocalExecutor(device)


def test_R1_segments_of_many_inputs_and_outputs(same_as_eager: Callable[..., None]) -> None:
    def program(d: str) -> object:
        parts = [torch.full((2,), float(i), device=d) for i in range(300)]
        joined = torch.cat(parts)
        pieces = joined.split(1)
        return joined, torch.stack(list(pieces[:200])), torch.meshgrid(*parts[:3], indexing="ij")

    same_as_eager(program)


def test_L3_a_layout_that_was_not_predicted_is_told_from_the_next_call_on() -> None:
    library, turned = torch.library.Library("lazylayout", "DEF"), False
    try:
        library.define("either(Tensor x) -> Tensor")
        library.impl("either", lambda x: (x + 1).t().contiguous().t() if turned else x + 1, "CPU")
        library.impl("either", lambda x: torch.empty(x.shape, dtype=x.dtype, device="meta"), "Meta")
        either = torch.ops.lazylayout.either
        plain = torch.arange(6.0).reshape(2, 3)
        x = plain.to(LAZY)
        promised = [either(x) for _ in range(2)]
        turned = True
        for y in promised:
            assert y.stride() == (3, 1)
            assert y.tolist() == (plain + 1).tolist()
            assert y.stride() == y.cpu().stride() == (3, 1), "as the program was told"
        for _ in range(3):
            y = either(x)
            assert y.stride() == (1, 2)
            assert y.tolist() == (plain + 1).tolist() and y.cpu().stride() == (1, 2)
    finally:
        library._destroy()


@pytest.mark.parametrize(
    "given", [lambda x: x.double(), lambda x: x[:1].clone(), lambda x: None], ids=["dtype", "sizes", "nothing"]
)
def test_L9_a_kernel_that_gives_what_was_not_predicted_is_named(given: Callable[[torch.Tensor], Any]) -> None:
    library, changed = torch.library.Library("lazylayout", "DEF"), False
    try:
        library.define("other(Tensor x) -> Tensor")
        library.impl("other", lambda x: given(x) if changed else x + 1, "CPU")
        library.impl("other", lambda x: torch.empty(x.shape, dtype=x.dtype, device="meta"), "Meta")
        y = torch.ops.lazylayout.other(torch.ones(2, 3).to(LAZY))
        changed = True
        with pytest.raises(mindtorch.MaterializationError, match=r"lazylayout::other.*predicted .*, the kernel gave"):
            y.tolist()
    finally:
        library._destroy()
