"""What fails while a recording runs, and what is left afterwards (SPEC L9)."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import signal
import subprocess
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch import MaterializationError
from mindtorch.engine.execute import local

from .executors import using

LAZY = "remote_accelerator:0"
pytestmark = pytest.mark.usefixtures("nothing_pending")


class Outer(nn.Module):
    """One op that fails when it runs, in a module with a name, on a line of its own."""

    def __init__(self, fail: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner = Inner(fail)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * 2) + 1


class Inner(nn.Module):
    def __init__(self, fail: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.fail = fail

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fail(x)


HUGE = 1 << 46  # floats: more than any machine has, less than what torch refuses without asking
FAILURES: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor], type[Exception]]] = {
    "index": ("aten::gather", lambda x: x.gather(0, torch.full((1,), 7, device=LAZY)), RuntimeError),
    "embedding": ("aten::embedding", lambda x: nn.functional.embedding(x.long() + 90, x.view(4, 1)), IndexError),
    "assertion": ("aten::multinomial", lambda x: torch.multinomial(x - 100, 1), RuntimeError),
    "scatter": ("aten::scatter", lambda x: x.scatter(0, x.long() + 50, 1.0), RuntimeError),
    "memory": ("aten::repeat", lambda x: x.repeat(HUGE)[:4], RuntimeError),
}


@pytest.mark.parametrize("name", FAILURES)
def test_L9_a_failure_names_op_module_and_line(name: str) -> None:
    op, fail, cause = FAILURES[name]
    model = Outer(fail)
    before = torch.arange(4.0, device=LAZY) + 1
    with torch.no_grad():
        bad = model(before)
    independent = torch.ones(2, device=LAZY) * 5
    with pytest.raises(MaterializationError) as failure:
        bad.tolist()
    text = str(failure.value)
    line = inspect.getsourcelines(fail)[1]
    assert text.startswith(f"[{op}] recorded in Outer.inner at {__file__}:{line} in <lambda>: "), text
    assert isinstance(failure.value.__cause__, cause) and str(failure.value.__cause__) in text
    # Results before it are intact, the engine goes on, dependents raise the same cause.
    assert before.tolist() == [1.0, 2.0, 3.0, 4.0] and independent.tolist() == [5.0, 5.0]
    for dependent in (bad, bad * 2, (bad * 3).sum()):
        with pytest.raises(MaterializationError) as again:
            dependent.cpu()
        assert again.value.__cause__ is failure.value.__cause__ and str(again.value) == text
    assert (torch.ones(2, device=LAZY) + 1).tolist() == [2.0, 2.0]


def failing_index() -> torch.Tensor:
    return torch.full((1,), 9, device=LAZY)


def test_L9_a_failed_write_takes_what_follows_with_it_and_what_was_before_stays() -> None:
    x = torch.arange(3.0, device=LAZY)
    before = x + 1
    alias = x.detach()
    x.index_fill_(0, failing_index(), 7.0)
    after, view = x * 2, x[:2]
    x.add_(100)
    chained = view + 1
    unrelated = torch.ones(2, device=LAZY) * 3
    with pytest.raises(MaterializationError, match="index_fill_") as failure:
        after.tolist()
    for dependent in (after, view, chained, chained * 2):
        with pytest.raises(MaterializationError) as again:
            dependent.tolist()
        assert again.value.__cause__ is failure.value.__cause__
    # As in eager: the write and what came after it had no effect.
    assert x.tolist() == alias.tolist() == [0.0, 1.0, 2.0] and before.tolist() == [1.0, 2.0, 3.0]
    assert unrelated.tolist() == [3.0, 3.0]
    x.mul_(2)
    assert x.tolist() == [0.0, 2.0, 4.0], "the storage can be used again"


def test_L9_a_failure_is_raised_once_for_the_storages_that_were_not_written() -> None:
    x, y = torch.zeros(2, device=LAZY), torch.zeros(2, device=LAZY)
    bad = torch.ones(3, device=LAZY).gather(0, failing_index())
    x.add_((bad + 1)[0])
    x.add_(1)
    y.copy_(x)
    z = y + 1
    with pytest.raises(MaterializationError, match="gather"):
        x.tolist()
    for _ in range(3):
        assert x.tolist() == y.tolist() == [0.0, 0.0]
        for failed in (bad, z):
            with pytest.raises(MaterializationError, match="gather"):
                failed.tolist()
    x.add_(1)
    assert x.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("use", [lambda x, bad: x.add_(bad), lambda x, bad: x.add_((bad * 2).sum())])
def test_L9_a_value_that_failed_is_not_written_in_silence(use: Callable) -> None:
    x = torch.zeros(2, device=LAZY)
    bad = torch.ones(3, device=LAZY).gather(0, failing_index())
    with pytest.raises(MaterializationError, match="gather"):
        bad.tolist()
    use(x, bad)  # recorded when the failure was known
    with pytest.raises(MaterializationError, match="gather"):
        x.tolist()
    assert x.tolist() == [0.0, 0.0]


def test_L9_training_goes_on_after_a_bad_batch() -> None:
    def train(device: str) -> tuple[list[int], list[float]]:
        weight = torch.nn.Parameter(torch.zeros(2, device=device))
        optimizer = torch.optim.SGD([weight], 0.1)
        raised = []
        for step in range(12):
            optimizer.zero_grad()
            try:
                scale = torch.ones(1, device=device)
                if step == 5:
                    scale = scale.gather(0, torch.full((1,), 9, device=device))
                loss = ((weight - 1) * scale).square().sum()
                loss.backward()
                optimizer.step()
                loss.item()
            except RuntimeError:
                raised.append(step)
        return raised, weight.tolist()

    assert train(LAZY) == train("cpu")


def test_L9_running_statistics_survive_a_failed_input() -> None:
    norm = torch.nn.BatchNorm1d(2).to(LAZY)
    norm(torch.ones(4, 2, device=LAZY).gather(0, torch.full((4, 2), 9, device=LAZY)))
    with pytest.raises(MaterializationError, match="gather"):
        norm.running_mean.tolist()
    norm(torch.ones(4, 2, device=LAZY))
    assert norm.running_mean.tolist() == pytest.approx([0.1, 0.1])


def test_L9_a_kept_failure_keeps_no_frames() -> None:
    class Big:
        pass

    def read(x: torch.Tensor) -> weakref.ref[Big]:
        big = Big()
        with pytest.raises(MaterializationError):
            x.tolist()
        return weakref.ref(big)

    bad = torch.ones(3, device=LAZY).gather(0, failing_index())
    seen = [read(bad) for _ in range(20)]
    gc.collect()
    assert [r() for r in seen] == [None] * 20, "the error in the tape keeps the frames of whoever read it"
    with pytest.raises(MaterializationError) as failure:
        bad.tolist()
    assert len(traceback.extract_tb(failure.value.__traceback__)) < 10, "tracebacks pile up"


def test_L9_a_kernel_in_python_leaves_its_traceback_as_text() -> None:
    library = torch.library.Library("lazyfail", "DEF")
    try:
        library.define("picky(Tensor x) -> Tensor")
        library.impl("picky", lambda x: torch.empty_like(x), "Meta")

        def kernel(x: torch.Tensor) -> torch.Tensor:
            if x[0] > 1:
                raise ValueError("too large")
            return x.clone()

        library.impl("picky", kernel, "CPU")
        gc.collect()
        values = mindtorch.stats()["values"]
        x = torch.full((2,), 3.0, device=LAZY)
        bad = torch.ops.lazyfail.picky(x) + 1
        with pytest.raises(MaterializationError, match=r"lazyfail::picky.*ValueError: too large") as failure:
            bad.tolist()
        assert isinstance(failure.value.__cause__, ValueError)
        if hasattr(failure.value, "__notes__"):
            assert 'raise ValueError("too large")' in failure.value.__notes__[0]
        del x, bad, failure
        gc.collect()
        assert mindtorch.stats()["values"] == values, "the kept error holds the tensors of who read"
    finally:
        library._destroy()


def test_L9_failed_values_die_with_their_tensors() -> None:
    gc.collect()
    values = mindtorch.stats()["values"]
    bad = torch.ones(3, device=LAZY).gather(0, failing_index())
    worse = [bad + i for i in range(10)]
    for t in worse:
        with pytest.raises(MaterializationError):
            t.tolist()
    del bad, worse, t
    gc.collect()
    assert mindtorch.stats()["values"] == values and mindtorch.stats()["ops_pending"] == 0


# ---- the executor fails ----------------------------------------------------------------------------------------------
class Tight(mindtorch.LocalExecutor):
    """Runs out of memory: before a segment, or after it has run the first ops of one."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.fail_before = False
        self.fail_after: int | None = None

    def submit(self, segment: Any) -> None:
        if self.fail_before:
            raise torch.OutOfMemoryError("Tried to allocate 20.00 GiB")
        if self.fail_after is None:
            return super().submit(segment)
        left = self.fail_after

        def observer(seq: int, start: int, end: int) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise torch.OutOfMemoryError("Tried to allocate 20.00 GiB")

        local._op_observer, previous = observer, local._op_observer
        try:
            return super().submit(segment)
        finally:
            local._op_observer = previous


@pytest.fixture
def tight() -> Iterator[Tight]:
    with using(Tight()) as executor:
        yield executor
        executor.fail_before, executor.fail_after = False, None


def test_L9_an_executor_out_of_memory_loses_nothing(tight: Tight) -> None:
    x = torch.ones(2, device=LAZY)
    y = x * 3
    tight.fail_before = True
    line = inspect.currentframe().f_lineno - 3  # type: ignore[union-attr]
    for _ in range(2):
        with pytest.raises(MaterializationError, match=r"20\.00 GiB") as failure:
            y.tolist()
        assert isinstance(failure.value.__cause__, torch.OutOfMemoryError)
        assert f"[aten::ones] recorded in (no module) at {__file__}:{line}" in str(failure.value)
    tight.fail_before = False
    assert y.tolist() == [3.0, 3.0], "once there is memory, the recording runs"


def test_L9_an_executor_out_of_memory_half_way_goes_on_where_it_stopped(tight: Tight) -> None:
    mindtorch.reset_stats()
    x = torch.zeros(2, device=LAZY)
    for _ in range(10):
        x.add_(1)
    last = x * 2
    tight.fail_after = 4
    line = inspect.currentframe().f_lineno - 3  # type: ignore[union-attr]
    with pytest.raises(MaterializationError, match=r"20\.00 GiB") as failure:
        last.tolist()
    assert f"[aten::add_] recorded in (no module) at {__file__}:{line}" in str(failure.value)
    assert mindtorch.stats()["ops_executed"] == 4
    tight.fail_after = None
    assert last.tolist() == [20.0, 20.0] and x.tolist() == [10.0, 10.0]
    assert mindtorch.stats()["ops_executed"] == 12, "an op ran twice"


# ---- no memory for the engine's own work -----------------------------------------------------------------------------
LOCALS_OWN = pytest.mark.only_on("local", reason="what is made to fail is the local executor's own code")


def no_memory(*_: object) -> None:
    raise MemoryError("nothing left")


@LOCALS_OWN
def test_L9_a_result_that_cannot_be_checked_for_want_of_memory_is_computed_again(monkeypatch: Any) -> None:
    mindtorch._ext.lazy.forget_calls()  # each result is checked again, whatever other tests have called
    x = torch.arange(4.0, device=LAZY)
    (x + 1).tolist()
    y = x * 0.3125
    w = y.clone()
    w.add_(1)
    monkeypatch.setattr(local, "_verify", no_memory)
    for _ in range(2):
        with pytest.raises(MaterializationError, match=r"aten::mul.*nothing left") as failure:
            w.tolist()
        assert isinstance(failure.value.__cause__, MemoryError)
    assert not y.materialized and not w.materialized  # type: ignore[attr-defined]
    monkeypatch.undo()
    assert w.tolist() == [1.0, 1.3125, 1.625, 1.9375] and y.tolist() == [0.0, 0.3125, 0.625, 0.9375]


@LOCALS_OWN
def test_L9_a_draw_without_memory_is_not_drawn_again(monkeypatch: Any) -> None:
    mindtorch._ext.lazy.forget_calls()  # each result is checked again, whatever other tests have called
    torch.manual_seed(0)
    x = torch.rand(3, 5, 7, device=LAZY)
    after = torch.rand(2, device=LAZY)
    monkeypatch.setattr(local, "_verify", no_memory)
    with pytest.raises(MaterializationError, match="nothing left"):
        x.tolist()
    monkeypatch.undo()
    with pytest.raises(MaterializationError, match="nothing left"):
        x.tolist()
    torch.manual_seed(0)
    torch.rand(3, 5, 7)
    assert after.tolist() == torch.rand(2).tolist()


@LOCALS_OWN
def test_L9_a_failure_without_memory_for_its_words_is_still_one(monkeypatch: Any) -> None:
    x = torch.arange(4.0, device=LAZY)
    y = x.clone()
    y.scatter_(0, x.long() + 50, 1.0)
    z = y * 2
    monkeypatch.setattr(local, "_failure", no_memory)
    for _ in range(2):
        with pytest.raises((MaterializationError, MemoryError), match="nothing left"):
            z.tolist()
    monkeypatch.undo()
    with pytest.raises((MaterializationError, MemoryError), match="nothing left"):
        z.tolist()
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0] and (x + 1).tolist() == [1.0, 2.0, 3.0, 4.0]


# ---- interrupts ------------------------------------------------------------------------------------------------------
def noisy(device: str, n: int) -> torch.Tensor:
    """A program whose result shows it when an op is lost, runs twice or draws out of turn."""
    torch.manual_seed(3)
    x = torch.zeros(3, device=device)
    for i in range(n):
        x.add_(torch.rand(3, device=device))
        x[i % 3].mul_(0.5)
        x = x + 1
    return x


def interrupted_while_running(n: int) -> bool:
    """Did the signal come while the ops of ``noisy`` ran? If it did, nothing that was computed may be lost by it."""
    expected = noisy("cpu", n).tolist()
    state = torch.get_rng_state()
    mindtorch.reset_stats()
    x = noisy(LAZY, n)
    recorded = mindtorch.stats()["ops_recorded"]
    # Somebody else sends the signal, a moment after the read has begun, as a terminal does.
    sender = subprocess.Popen(["sh", "-c", f"read go; sleep 0.02; kill -INT {os.getpid()}"], stdin=subprocess.PIPE)
    assert sender.stdin is not None
    sender.stdin.write(b"go\n")
    sender.stdin.flush()
    late = False
    with pytest.raises(KeyboardInterrupt):
        x.tolist()
        late = True
        sender.wait(30)  # the signal is late: on a busy machine it may come after the last op
        time.sleep(30)
    sender.stdin.close()
    sender.wait(30)
    done = mindtorch.stats()["ops_executed"]
    assert x.tolist() == expected
    assert mindtorch.stats()["ops_executed"] == recorded, "every op ran once"
    noisy("cpu", n)
    assert torch.equal(torch.get_rng_state(), state), "the CPU's generator was left with the device's numbers"
    elsewhere = mindtorch.engine.execute.values.executor().place.type == "meta"  # what was sent off counts as run
    return 0 < done <= recorded and not late if elsewhere else 0 < done < recorded


@pytest.mark.only_on("local", "pipe", "ray", reason="the worker itself is interrupted, in the middle of what it does")
def test_L9_ctrl_c_while_running_loses_nothing_that_was_computed(request: pytest.FixtureRequest) -> None:
    # What a shell starts in the background ignores the signal, and so does all that it starts.
    request.addfinalizer(functools.partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert any(interrupted_while_running(n) for n in (6_000, 20_000, 60_000, 200_000)), "never came while ops ran"


@pytest.mark.parametrize(
    "where",
    [pytest.param(where, marks=LOCALS_OWN) for where in ("verify", "observer")] + ["submit", "after_submit", "fetch"],
)
def test_L9_an_interrupt_in_the_engines_own_python_code_loses_nothing(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = noisy("cpu", 3).tolist()
    fired = 0

    def interrupting(original: Callable[..., Any], late: bool = False) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal fired
            result = original(*args) if late else None
            fired += 1
            if fired in (1, 4):
                raise KeyboardInterrupt
            return result if late else original(*args)

        return call

    executor = mindtorch.engine.execute.values.executor()
    if where == "verify":
        mindtorch._ext.lazy.forget_calls()  # so that each call is verified again
        monkeypatch.setattr(local, "_verify", interrupting(local._verify))
    elif where == "observer":
        monkeypatch.setattr(local, "_op_observer", interrupting(lambda *args: None))
    elif where == "fetch":
        monkeypatch.setattr(executor, "fetch", interrupting(executor.fetch))
    else:
        monkeypatch.setattr(executor, "submit", interrupting(executor.submit, where == "after_submit"))
    mindtorch.reset_stats()
    x = noisy(LAZY, 3)
    with pytest.raises(KeyboardInterrupt):
        x.tolist()
    got = None
    while got is None:
        try:
            got = x.tolist()
        except KeyboardInterrupt:
            continue
    assert got == expected and fired
    s = mindtorch.stats()
    assert s["ops_executed"] == s["ops_recorded"], "an op was lost or ran twice"
