"""What a read runs: what it needs, what program order demands, nothing else, nothing twice (SPEC L14, L15).

Every op that runs is seen through the profiling hook, so these tests compare whole lists of op names.
"""

from __future__ import annotations

import gc
import inspect
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.engine.execute import triggers
from mindtorch.engine.execute.local import add_op_observer, remove_op_observer

LAZY = "remote_accelerator:0"


@pytest.fixture
def ran() -> Iterator[list[str]]:
    """Names of the ops that ran since it was last cleared."""
    gc.collect()
    mindtorch.flush("test")
    names: list[str] = []

    def note(name: str, *_: int) -> None:
        names.append(name.removeprefix("aten::"))

    add_op_observer(note)
    yield names
    remove_op_observer(note)


def value(x: torch.Tensor) -> object:
    return x.tolist()


def shared_input(d: str) -> Any:
    x = torch.ones(3, device=d)
    a, b, c = x + 1, x * 2, x - 3
    return [(b, "ones mul"), (c, "sub"), (a, "add"), (x, "")]


def diamond(d: str) -> Any:
    x = torch.ones(3, device=d)
    left, right = x + 1, x * 2
    return [(left @ right, "ones add mul matmul"), (left, ""), (right, "")]


def several_outputs(d: str) -> Any:
    x = torch.arange(6.0, device=d)
    values, indices = x.view(2, 3).max(dim=1)
    return [(indices + 1, "arange view max add"), (values, "")]


def write_before_the_read(d: str) -> Any:
    x = torch.zeros(3, device=d)
    other = torch.zeros(3, device=d)
    x.add_(1)
    other.add_(5)
    return [(x, "zeros add_"), (other, "zeros add_")]


def write_after_an_earlier_reader(d: str) -> Any:
    x = torch.zeros(3, device=d)
    before, unrelated = x + 1, torch.ones(3, device=d)
    x.add_(10)
    return [(x, "zeros add add_"), (before, ""), (unrelated, "ones")]


def a_later_write_does_not_run(d: str) -> Any:
    x = torch.zeros(3, device=d)
    y = x + 1
    x.add_(10)
    return [(y, "zeros add"), (x, "add_")]


def write_through_a_view(d: str) -> Any:
    x = torch.zeros(2, 3, device=d)
    row, other = x[0], x[1]
    row.add_(1)
    return [(other, "zeros select select add_"), (x, ""), (row, "")]


def write_to_the_base_of_a_view(d: str) -> Any:
    x = torch.zeros(2, 3, device=d)
    row = x[0]
    x.add_(1)
    unused = x[1] * 2
    return [(row, "zeros select add_"), (unused, "select mul")]


def views_of_views(d: str) -> Any:
    x = torch.arange(12.0, device=d)
    a = x.view(3, 4)
    b = a.t()
    c = b[1:]
    return [(c, "arange view t slice"), (a, ""), (b, "")]


def overwritten_completely(d: str) -> Any:
    x = torch.ones(3, device=d)
    y = torch.zeros(3, device=d)
    y.copy_(x * 2)
    return [(y, "ones zeros mul copy_"), (x, "")]


def draws_take_turns(d: str) -> Any:
    a, b, c = torch.rand(2, device=d), torch.rand(2, device=d), torch.rand(2, device=d)
    return [(b, "rand rand"), (a, ""), (c, "rand")]


def a_draw_in_place(d: str) -> Any:
    x, y = torch.zeros(2, device=d), torch.zeros(2, device=d)
    x.normal_()
    y.uniform_()
    z = torch.ones(2, device=d)
    return [(z, "ones"), (y, "zeros zeros normal_ uniform_"), (x, "")]


def a_value_that_was_drawn_is_not_drawn_again(d: str) -> Any:
    x = torch.rand(2, device=d)
    y = x + 1
    z = x * 2
    return [(y, "rand add"), (z, "mul"), (x, "")]


def out_argument(d: str) -> Any:
    x, y = torch.ones(2, device=d), torch.zeros(2, device=d)
    torch.add(x, 4, out=y)
    z = y * 2
    return [(x, "ones"), (z, "zeros add mul"), (y, "")]


def gradients(d: str) -> Any:
    w = torch.ones(2, device=d).requires_grad_()
    v = torch.ones(2, device=d).requires_grad_()
    (w * 3 + v * 5).sum().backward()
    assert w.grad is not None and v.grad is not None
    # Neither the other gradient nor the forward pass: of its sum, the `ones_like` that starts asks for the shape only.
    return [(w.grad, "ones_like expand mul"), (v.grad, "mul")]


def an_optimizer_step(d: str) -> Any:
    w = torch.ones(2, device=d).requires_grad_()
    optimizer = torch.optim.SGD([w], lr=0.5, foreach=False)
    loss = (w * w).sum()
    loss.backward()
    optimizer.step()
    # The squares read what the step overwrites, so they run before it; their sum waits until somebody looks.
    return [(w.detach(), None), (loss.detach(), "sum"), (w.grad, "")]


PROGRAMS: list[Callable[[str], Any]] = [
    shared_input,
    diamond,
    several_outputs,
    write_before_the_read,
    write_after_an_earlier_reader,
    a_later_write_does_not_run,
    write_through_a_view,
    write_to_the_base_of_a_view,
    views_of_views,
    overwritten_completely,
    draws_take_turns,
    a_draw_in_place,
    a_value_that_was_drawn_is_not_drawn_again,
    out_argument,
    gradients,
    an_optimizer_step,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_L14_a_read_runs_exactly_what_it_needs(program: Callable[[str], Any], ran: list[str]) -> None:
    torch.manual_seed(0)
    expected = [value(t) for t, _ in program("cpu")]
    torch.manual_seed(0)
    reads = program(LAZY)
    assert ran == [], "recording ran something"
    for (tensor, ops), wanted in zip(reads, expected):
        ran.clear()
        assert value(tensor) == wanted
        if ops is not None:
            assert ran == ops.split()
        ran.clear()
        assert value(tensor) == wanted and repr(tensor) and ran == [], "read twice, ran twice"


class Program:
    """Random steps over a few storages, recorded; and which steps a read needs, found the slow and obvious way."""

    def __init__(self, device: str, rng: random.Random) -> None:
        self.device, self.rng = device, rng
        self.tensors: list[tuple[torch.Tensor, int, int]] = []  # tensor, step that made it, storage
        self.steps: list[tuple[list[int], list[int], set[int], bool, bool]] = []
        self.storages = 0

    def step(self) -> None:
        kind = self.rng.choice(["make", "draw", "pure", "pure", "binary", "view", "write", "write", "copy", "draw_in"])
        if not self.tensors:
            kind = "make"
        t, maker, storage = self.rng.choice(self.tensors) if self.tensors else (torch.empty(0), 0, 0)
        u, maker2, storage2 = self.rng.choice(self.tensors) if self.tensors else (t, 0, 0)
        made: torch.Tensor | None = None
        ins, reads, writes, draws, view = [maker], [storage], set[int](), False, False
        if kind in ("make", "draw"):
            made = torch.rand(2, 2, device=self.device) if kind == "draw" else torch.ones(2, 2, device=self.device)
            ins, reads, draws = [], [], kind == "draw"
        elif kind == "pure":
            made = t * 0.5
        elif kind == "binary":
            made, ins, reads = t + u, [maker, maker2], [storage, storage2]
        elif kind == "view":
            made, view = t.t(), True
        elif kind == "write":
            t.add_(1.0)
            writes = {storage}
        elif kind == "copy":
            if storage == storage2:
                return
            t.copy_(u)
            ins, reads, writes = [maker, maker2], [storage, storage2], {storage}
        else:
            t.uniform_()
            writes, draws = {storage}, True
        number = len(self.steps)
        self.steps.append((ins, reads, writes, draws, view))
        if made is not None:
            if not view:
                self.storages += 1
            self.tensors.append((made, number, storage if view else self.storages))

    def needed(self, maker: int, storage: int, done: set[int]) -> set[int]:
        """Steps that reading a value must run. All tensors stay alive, so every step is visible to somebody."""
        values, contents, overwritten, rng = {maker}, {storage}, set[int](), False
        out: set[int] = set()
        for number in range(len(self.steps) - 1, -1, -1):
            ins, reads, writes, draws, view = self.steps[number]
            if number in done:
                continue
            if not (
                number in values or writes & contents or (draws and rng) or (not view and overwritten & set(reads))
            ):
                continue
            out.add(number)
            values |= set(ins)
            if not view:
                contents |= set(reads)
            overwritten |= writes
            rng |= draws
        return out


@pytest.mark.parametrize("seed", range(60))
def test_L14_random_programs_run_exactly_what_a_slow_oracle_says(seed: int, ran: list[str]) -> None:
    lazy, eager = Program(LAZY, random.Random(seed)), Program("cpu", random.Random(seed))
    order = random.Random(seed + 1000)
    done: set[int] = set()
    torch.manual_seed(seed)
    for _ in range(12):
        for _ in range(order.randrange(1, 6)):
            eager.step()
            lazy.step()
        k = order.randrange(len(lazy.tensors))
        tensor, maker, storage = lazy.tensors[k]
        wanted = lazy.needed(maker, storage, done)
        ran.clear()
        got = tensor.tolist()
        assert len(ran) == len(wanted), (ran, sorted(wanted))
        assert got == eager.tensors[k][0].tolist()
        done |= wanted
    mindtorch.flush("test")
    assert [t.tolist() for t, *_ in lazy.tensors] == [t.tolist() for t, *_ in eager.tensors]


# ---- stats ----------------------------------------------------------------------------------------------------------
def test_L15_stats_say_which_line_triggered() -> None:
    gc.collect()
    mindtorch.flush("test")
    mindtorch.reset_stats()
    x = torch.ones(2, device=LAZY)
    for _ in range(3):
        x = x + 1
        x.sum().item()
    if x.sum() > 2:
        (x * 2).cpu()
    x.cpu()
    here = inspect.currentframe().f_lineno  # type: ignore[union-attr]
    s = mindtorch.stats()
    assert s["trigger_lines"] == {f"{__file__}:{here - 4}": 3, f"{__file__}:{here - 3}": 1, f"{__file__}:{here - 2}": 1}
    assert s["triggers"] == {"item": 3, "bool": 1, "cpu": 1} and s["segments"] == 5
    mindtorch.reset_stats()
    assert mindtorch.stats()["trigger_lines"] == {}
    assert "trigger_lines" in (mindtorch.stats.__doc__ or "")


def test_L15_the_line_is_the_programs_own_also_in_torchs_code_and_in_threads() -> None:
    mindtorch.flush("test")
    mindtorch.reset_stats()

    def read() -> None:
        torch.nonzero(torch.ones(2, device=LAZY)).tolist()

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    line = inspect.getsourcelines(read)[1] + 1
    assert mindtorch.stats()["trigger_lines"] == {f"{__file__}:{line}": 1}


def test_L15_lines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "MAX_PLACES", 0)
    mindtorch.flush("test")
    mindtorch.reset_stats()
    (torch.ones(2, device=LAZY) + 1).cpu()
    (torch.ones(2, device=LAZY) + 1).cpu()
    assert mindtorch.stats()["trigger_lines"] == {"(other lines)": 2}
    monkeypatch.setattr(triggers, "MAX_PLACES", 1)
    mindtorch.reset_stats()  # and there is room again
    (torch.ones(2, device=LAZY) + 1).cpu()
    (line,) = mindtorch.stats()["trigger_lines"]
    assert "test_incremental.py" in line


LIKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros_like": torch.zeros_like,
    "ones_like": lambda x: torch.ones_like(x, dtype=torch.float64),
    "empty_like": torch.empty_like,
    "full_like": lambda x: torch.full_like(x, 3, memory_format=torch.contiguous_format),
    "rand_like": torch.rand_like,
    "randn_like": lambda x: torch.randn_like(x.t()),
    "randint_like": lambda x: torch.randint_like(x, 2, 5),
    "new_zeros": lambda x: x.new_zeros(2, 3),
    "new_ones": lambda x: x.new_ones((2,), dtype=torch.int64),
    "new_empty": lambda x: x.new_empty(2),
    "new_full": lambda x: x.new_full((2,), 7.0, requires_grad=True),
    "new_empty_strided": lambda x: x.new_empty_strided((2, 3), (1, 2)),
    "zeros_like of a view": lambda x: torch.zeros_like(x[0]),
    "zeros_like with a device": lambda x: torch.zeros_like(x, device=x.device),
    "zeros_like that needs a gradient": lambda x: torch.zeros_like(x, requires_grad=True),
}


@pytest.mark.parametrize("name", LIKE)
def test_L14_what_is_like_a_tensor_does_not_wait_for_it(name: str, ran: list[str], same_as_eager: Callable) -> None:
    x = torch.full((3, 4), 2.0, device=LAZY).exp()
    like = LIKE[name](x)
    assert isinstance(like, mindtorch.LazyTensor) and like.operation == "aten::" + name.split()[0] and not ran
    like.materialize()
    assert ran == [name.split()[0]] and not x.materialized, ran

    def program(d: str) -> object:
        x = torch.full((3, 4), 2.0, device=d).exp()
        like = LIKE[name](x)
        if like.requires_grad:
            (like * 2).sum().backward()
        return (like.shape, like.stride(), like.dtype) if "empty" in name else (like, like.grad, x)

    same_as_eager(program)


def test_L14_what_is_like_a_tensor_on_another_device(ran: list[str]) -> None:
    x = torch.full((3, 4), 2.0, device=LAZY).exp().t()
    like = torch.ones_like(x, device="remote_accelerator:1")
    assert str(like.device) == "remote_accelerator:1" and like.stride() == (1, 4)
    assert like.sum().item() == 12.0 and ran == ["ones_like", "sum"]


def test_L3_what_is_like_a_tensor_is_laid_out_like_it(same_as_eager: Callable) -> None:
    def program(d: str) -> object:
        made = []
        for size, stride in (((3, 1), (1, 7)), ((2, 1, 2), (2, 4, 1)), ((3, 4), (0, 1)), ((2, 3, 4), (3, 1, 6))):
            x = torch.empty_strided(size, stride, device=d).fill_(1)
            made += [torch.zeros_like(x), torch.rand_like(x), torch.full_like(x, 2), x.new_ones(size)]
        return [m.stride() for m in made], made

    same_as_eager(program)


def test_S5_what_is_kept_of_records_does_not_grow_with_those_that_ran() -> None:
    x = torch.ones(2).to(LAZY)

    def held_after(steps: int) -> int:
        for _ in range(steps):
            for _ in range(1000):
                y = x + 1
            y.tolist()
        gc.collect()
        return mindtorch.stats()["bytes_held"]

    held_after(20)
    before = held_after(20)
    assert held_after(150) < before + (1 << 16)  # a record takes 80 bytes, and tables grow by pieces


def test_L15_waits_are_added_up_by_line_the_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "_waits", {})
    monkeypatch.setattr(triggers, "MAX_PLACES", 2)
    monkeypatch.setattr("time.perf_counter_ns", lambda: 5_000_000_000)

    def on_this_line(begun: int, messages: int) -> None:
        triggers.waited(begun, messages)

    def on_that_line(begun: int, messages: int) -> None:
        triggers.waited(begun, messages)

    on_this_line(4_000_000_000, 1), on_this_line(3_500_000_000, 2)
    on_that_line(1_000_000_000, 0)
    triggers.waited(4_500_000_000, 7)  # there is no room for another line
    rows = [(row.where and row.where[1], *row[1:]) for row in triggers.waits()]
    this, that = (call.__code__.co_firstlineno + 1 for call in (on_this_line, on_that_line))
    assert rows == [(that, 1, 0, 4.0), (this, 2, 3, 2.5), (None, 1, 7, 0.5)]
