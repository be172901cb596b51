"""What cannot be recorded (SPEC L8) and what fails (L9)."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch import LazyTensorError, MaterializationError, UnsupportedOperationError

LAZY = "remote_accelerator:0"
pytestmark = pytest.mark.usefixtures("nothing_pending")


BAD_CALLS: dict[str, Callable[[str], object]] = {
    "broadcast": lambda d: torch.ones(2, 3, device=d) + torch.ones(2, 4, device=d),
    "matmul": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "mm_dim": lambda d: torch.mm(torch.ones(2, device=d), torch.ones(2, 2, device=d)),
    "matmul_dtype": lambda d: torch.ones(2, 2, device=d) @ torch.ones(2, 2, device=d, dtype=torch.float64),
    "linear": lambda d: nn.functional.linear(torch.ones(2, 3, device=d), torch.ones(4, 5, device=d)),
    "view": lambda d: torch.ones(2, 3, device=d).view(4),
    "view_strides": lambda d: torch.ones(2, 3, device=d).t().view(6),
    "reshape": lambda d: torch.ones(2, 3, device=d).reshape(4),
    "expand": lambda d: torch.ones(2, 3, device=d).expand(3, 3),
    "cat": lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(2, 4, device=d)]),
    "cat_nothing": lambda d: torch.cat([]),
    "stack": lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]),
    "dim": lambda d: torch.ones(2, device=d).sum(dim=3),
    "softmax_dim": lambda d: torch.softmax(torch.ones(2, device=d), 4),
    "softmax_int": lambda d: torch.softmax(torch.ones(2, device=d, dtype=torch.int64), 0),
    "transpose": lambda d: torch.ones(2, device=d).transpose(0, 1),
    "conv": lambda d: nn.functional.conv2d(torch.ones(1, 3, 4, 4, device=d), torch.ones(2, 5, 3, 3, device=d)),
    "layer_norm": lambda d: nn.functional.layer_norm(torch.ones(2, 3, device=d), (4,)),
    "embedding_dtype": lambda d: nn.functional.embedding(torch.ones(2, device=d), torch.ones(3, 3, device=d)),
    "in_place_broadcast": lambda d: torch.ones(2, device=d).add_(torch.ones(3, 2, device=d)),
    "in_place_dtype": lambda d: torch.ones(2, device=d, dtype=torch.int64).mul_(1.5),
    "in_place_cast": lambda d: torch.ones(2, device=d, dtype=torch.int64).add_(torch.ones(2, device=d)),
    "out_dtype": lambda d: torch.add(torch.ones(2, device=d), 1, out=torch.ones(2, device=d, dtype=torch.int64)),
    "bitwise_float": lambda d: torch.ones(2, device=d) & torch.ones(2, device=d),
    "neg_bool": lambda d: -torch.ones(2, device=d, dtype=torch.bool),
    "sub_bool": lambda d: torch.ones(2, device=d, dtype=torch.bool) - torch.ones(2, device=d, dtype=torch.bool),
    "wrong_type": lambda d: torch.ones(2, device=d) + "x",
    "none": lambda d: torch.ones(2, device=d) + None,
    "missing_argument": lambda d: torch.matmul(torch.ones(2, device=d)),
    "unknown_keyword": lambda d: torch.relu(torch.ones(2, device=d), banana=1),
    "unknown_method": lambda d: torch.ones(2, device=d).banana(),
    "cross_entropy": lambda d: nn.functional.cross_entropy(torch.ones(2, 3, device=d), torch.ones(3, device=d).long()),
    "gather_dtype": lambda d: torch.ones(2, 2, device=d).gather(0, torch.ones(2, 2, device=d)),
    "index_float": lambda d: torch.ones(2, device=d)[torch.ones(1, device=d)],
    "chunk_zero": lambda d: torch.ones(2, device=d).chunk(0),
    "squeeze_dim": lambda d: torch.ones(2, device=d).squeeze(4),
    "inverse_not_square": lambda d: torch.linalg.inv(torch.ones(2, 3, device=d)),
    "einsum": lambda d: torch.einsum("ij,jk->ik", torch.ones(2, 3, device=d), torch.ones(2, 3, device=d)),
}


@pytest.mark.parametrize("grad", [True, False], ids=["requires_grad", "no_grad"])
@pytest.mark.parametrize("name", BAD_CALLS)
def test_L9_errors_come_at_the_call_as_in_eager(name: str, grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        with pytest.raises(Exception) as eager:
            BAD_CALLS[name]("cpu")
        ran = mindtorch.stats()["segments"]
        with pytest.raises(type(eager.value)) as lazy:
            BAD_CALLS[name](LAZY)
    assert isinstance(lazy.value, type(eager.value))
    assert not isinstance(lazy.value, MaterializationError), "raised late"
    assert (torch.ones(2, device=LAZY) + 1).tolist() == [2.0, 2.0], ran


# ---- failures while running ------------------------------------------------------------------------------------------
class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids) * 2


def test_L9_a_failure_names_op_module_and_line() -> None:
    model = Lookup().to(LAZY)
    good = torch.ones(2, device=LAZY) * 3
    with torch.no_grad():
        bad = model(torch.tensor([1, 99], device=LAZY))
    after = good + 1
    assert not bad.materialized
    with pytest.raises(MaterializationError) as failure:
        bad.cpu()
    text = str(failure.value)
    assert "aten::embedding" in text and "Lookup.table" in text
    line = inspect.getsourcelines(Lookup.forward)[1] + 1
    assert f"{__file__}:{line} in forward" in text
    assert isinstance(failure.value.__cause__, IndexError) and "out of range" in str(failure.value)
    assert isinstance(failure.value, LazyTensorError) and isinstance(failure.value, RuntimeError)
    assert good.tolist() == [3.0, 3.0] and after.tolist() == [4.0, 4.0]
    assert model(torch.tensor([1, 2], device=LAZY)).shape == (2, 3)
    with pytest.raises(MaterializationError, match="embedding"):
        bad.sum().item()
    with pytest.raises(MaterializationError):
        repr(bad)


def failing() -> torch.Tensor:
    return torch.ones(3, device=LAZY).gather(0, torch.full((1,), 7, device=LAZY))


def test_L9_what_was_computed_before_a_failure_stays() -> None:
    x = torch.arange(3.0, device=LAZY)
    y = x * 2
    bad = failing()
    z = y + bad
    w = y + 1
    ran = mindtorch.stats()["ops_executed"]
    with pytest.raises(MaterializationError, match="gather"):
        z.tolist()
    assert w.tolist() == [1.0, 3.0, 5.0] and y.tolist() == [0.0, 2.0, 4.0]
    assert mindtorch.stats()["ops_executed"] - ran <= 5, "something ran twice"


def test_L9_a_failed_write_leaves_the_target_readable_or_failed() -> None:
    x = torch.arange(3.0, device=LAZY)
    x.index_fill_(0, torch.full((1,), 9, device=LAZY), 1.0)
    with pytest.raises((MaterializationError, IndexError)):
        x.tolist()
    y = torch.arange(3.0, device=LAZY) + 1
    assert y.tolist() == [1.0, 2.0, 3.0]


def test_L9_a_failed_draw_does_not_disturb_the_generator(same_bits: Callable[..., None]) -> None:
    torch.manual_seed(4)
    expected = torch.randn(2), torch.randn(2)
    torch.manual_seed(4)
    first = torch.randn(2, device=LAZY)
    bad = failing()
    second = torch.randn(2, device=LAZY)
    with pytest.raises(MaterializationError):
        (bad.sum() + second).tolist()
    same_bits(second, expected[1])
    same_bits(first, expected[0])


def test_L9_failures_in_backward_name_their_line_too() -> None:
    x = torch.ones(3, device=LAZY, requires_grad=True)
    y = x.gather(0, torch.full((1,), 7, device=LAZY))
    y.sum().backward()
    with pytest.raises(MaterializationError, match=r"test_lazy_errors\.py"):
        x.grad.tolist()  # type: ignore[union-attr]


def test_L9_flush_reports_and_goes_on() -> None:
    bad, good = failing(), torch.ones(2, device=LAZY) * 5
    with pytest.raises(MaterializationError):
        mindtorch.flush("test")
    assert good.tolist() == [5.0, 5.0]
    mindtorch.flush("test")
    assert bad.materialized


def test_L9_threads_see_the_failure_of_what_they_read() -> None:
    import threading

    bad = failing()
    outcomes: list[type] = []

    def read() -> None:
        try:
            bad.item()
        except Exception as e:
            outcomes.append(type(e))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert outcomes == [MaterializationError] * 4


def test_L9_an_interrupt_leaves_the_engine_usable() -> None:
    import signal

    x = torch.zeros((), device=LAZY)
    for _ in range(20000):
        x = x + 1
    timer = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        with pytest.raises(KeyboardInterrupt):
            x.item()
            pytest.fail("ran to the end before the signal")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, timer)
    assert x.item() == 20000.0


# ---- devices ---------------------------------------------------------------------------------------------------------
def test_D4_operands_on_two_devices_are_refused_by_name() -> None:
    a, b, c = torch.ones(2, device=LAZY), torch.ones(2), torch.ones(2, device="remote_accelerator:1")
    for mix in (
        lambda: a + b,
        lambda: b + a,
        lambda: torch.matmul(a, b),
        lambda: torch.cat([a, b]),
        lambda: a.add_(b),
        lambda: nn.functional.linear(a, torch.ones(2, 2)),
        lambda: torch.where(a > 0, a, b),
        lambda: b.add_(a),
    ):
        with pytest.raises(RuntimeError) as e:
            mix()
        assert "remote_accelerator:0" in str(e.value) and "cpu" in str(e.value)
    with pytest.raises(RuntimeError) as e:
        a + c
    assert "remote_accelerator:0" in str(e.value) and "remote_accelerator:1" in str(e.value)
    w = torch.ones(2, 2, device=LAZY, requires_grad=True)
    with pytest.raises(RuntimeError) as e:
        nn.functional.linear(b, w)
    assert "remote_accelerator:0" in str(e.value) and "cpu" in str(e.value)


def test_D4_0dim_cpu_tensors_join_anything(same_bits: Callable[..., None]) -> None:
    x, s = torch.arange(3.0), torch.tensor(2.5)
    lazy = x.to(LAZY)
    for got, expected in (
        (lazy * s, x * s),
        (s - lazy, s - x),
        (torch.where(lazy > 1, lazy, s), torch.where(x > 1, x, s)),
        (torch.add(lazy, s, alpha=2), torch.add(x, s, alpha=2)),
        (torch.pow(lazy, torch.tensor(2)), x**2),
    ):
        assert isinstance(got, mindtorch.LazyTensor)
        same_bits(got, expected)
    lazy += s
    same_bits(lazy, x + s)
    s.fill_(100)
    same_bits(lazy, x + 2.5)


def test_D5_the_index_travels() -> None:
    x = torch.ones(2, device="remote_accelerator:3")
    y = (x + 1).view(2, 1).to(torch.float64)
    assert str(y.device) == "remote_accelerator:3" and y.get_device() == 3
    assert str(torch.zeros_like(y).device) == str(y.new_zeros(1).device) == "remote_accelerator:3"
    assert str(y.to("remote_accelerator:1").device) == "remote_accelerator:1"
    assert y.to("remote_accelerator:3") is y or torch.equal(y.to("remote_accelerator:3"), y)
    assert y.to("remote_accelerator:1").tolist() == [[2.0], [2.0]]
    assert str(torch.ones(1, device="remote_accelerator").device) == "remote_accelerator:0"
    z = torch.ones(1, device="remote_accelerator:2", requires_grad=True)
    (z * 2).sum().backward()
    assert z.grad is not None and str(z.grad.device) == "remote_accelerator:2"
    assert str(torch.nonzero(x).device) == "remote_accelerator:3"


# ---- L8 --------------------------------------------------------------------------------------------------------------
def test_L8_what_cannot_be_recorded_runs_and_comes_back_lazy() -> None:
    mindtorch.reset_stats()
    x = torch.tensor([0.0, 2, 0, 3], device=LAZY) * 1
    found: torch.Tensor = torch.nonzero(x)
    assert isinstance(found, mindtorch.LazyTensor) and found.device == x.device
    stats = mindtorch.stats()
    assert stats["ops_fallback"] == 1 and stats["fallbacks"] == {"aten::nonzero": 1}
    assert stats["triggers"] == {"aten::nonzero": 1}
    assert torch.add(found, 1).tolist() == [[2], [4]]


def test_L8_a_view_made_eagerly_shares_memory() -> None:
    x = torch.arange(4.0, device=LAZY) * 1
    u = x.unfold(0, 2, 1)
    parts = torch.tensor_split(x, torch.tensor([1]))  # type: ignore[call-overload]
    x.add_(1)
    assert u.tolist() == [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]
    assert parts[0].tolist() == [1.0] and parts[1].tolist() == [2.0, 3.0, 4.0]


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    lib = torch.library.Library("lazytest", "DEF")
    lib.define("twice(Tensor x) -> Tensor")
    lib.impl("twice", lambda x: x * 2, "CPU")
    lib.define("nowhere(Tensor x) -> Tensor")
    lib.impl("nowhere", lambda x: torch.empty_like(x), "Meta")
    lib.define("bump_(Tensor(a!) x) -> Tensor(a!)")
    lib.impl("bump_", lambda x: x.add_(1), "CPU")
    yield lib
    lib._destroy()


@pytest.mark.usefixtures("library")
def test_L8_custom_operators() -> None:
    x = torch.arange(3.0, device=LAZY)
    y = torch.ops.lazytest.twice(x)
    assert isinstance(y, mindtorch.LazyTensor) and y.tolist() == [0.0, 2.0, 4.0]
    torch.ops.lazytest.bump_(x)
    assert x.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.usefixtures("library")
def test_L8_an_op_without_a_kernel_is_unsupported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(3, device=LAZY)
    with pytest.raises((UnsupportedOperationError, MaterializationError), match="lazytest::nowhere") as e:
        torch.ops.lazytest.nowhere(x).tolist()
    assert isinstance(e.value, UnsupportedOperationError), (
        "the caller cannot tell it from a failure of an op that exists"
    )
    monkeypatch.setenv("GENIE_UNSUPPORTED", "zeros")
    with caplog.at_level(logging.WARNING):
        assert torch.ops.lazytest.nowhere(x).tolist() == [0.0, 0.0, 0.0]
    assert any("lazytest::nowhere" in r.getMessage() for r in caplog.records)


def test_L8_sparse_and_quantized_results_stay_torchs_own() -> None:
    x = torch.eye(3, device=LAZY)
    s = x.to_sparse()
    assert torch.equal(s.to_dense().cpu(), torch.eye(3))
    assert torch.equal(torch.sparse.mm(torch.eye(3).to_sparse(), torch.ones(3, 2)), torch.ones(3, 2))


# ---- L11 -------------------------------------------------------------------------------------------------------------
def test_L11_fallbacks_are_logged_once_per_op_and_counted_per_call(after_a_step: Callable[..., Any]) -> None:
    code = """
        import threading, torch, mindtorch
        d = "remote_accelerator:0"
        x = torch.tensor([0.0, 1.0, 2.0], device=d)
        def program():
            for _ in range(5):
                (x + 1).nonzero()
                x[x > 0]
                torch.rand(2, device=d, generator=torch.Generator(d))
        threads = [threading.Thread(target=program) for _ in range(2)]
        for t in threads: t.start()
        for t in threads: t.join()
        x.apply_(abs)
        stats = mindtorch.stats()
        print(sorted(stats["fallbacks"].items()), stats["ops_fallback"])
        mindtorch.reset_stats()
        x.nonzero()
        print(mindtorch.stats()["fallbacks"])
    """
    on, off = after_a_step(code, GENIE_LOG_INTERCEPTS="1"), after_a_step(code)
    counts = {"aten::index": 10, "aten::nonzero": 10, "aten::rand": 10, "torch::apply_": 1}
    assert on.stdout == off.stdout == f"{list(counts.items())} 31\n{{'aten::nonzero': 1}}\n"
    lines = [line for line in on.stderr.splitlines() if "runs eagerly" in line]
    assert sorted(line.split()[0] for line in lines) == sorted(counts), "once per op, also after reset_stats()"
    assert "captured aten::gt" in on.stderr and not off.stderr


@pytest.mark.only_on("local", "loopback", reason="a process that was forked has no worker")
def test_L7_a_fork_while_another_thread_runs_something(after_a_step: Callable[..., Any], whole: bool) -> None:
    code = """
        import os, signal, threading, torch, mindtorch
        torch.set_num_threads(1)
        d, stop, begun = "remote_accelerator:0", threading.Event(), threading.Event()
        def record():
            while not stop.is_set():
                (torch.ones(3, device=d) + 1).cumsum(0).sum().item()
                begun.set()
        thread = threading.Thread(target=record)
        thread.start()
        begun.wait()  # modules are imported then: in a child, what another thread imported stays locked for good
        failed = 0
        for n in range(FORKS):
            x = (torch.full((4,), float(n), device=d) * 2).cumsum(0)
            child = os.fork()
            if not child:
                signal.alarm(60)
                os._exit(0 if x.tolist() == [2.0 * n * k for k in range(1, 5)] else 1)
            failed += os.waitpid(child, 0)[1] != 0
            if failed:
                break
        stop.set()
        thread.join()
        print(failed)
    """
    assert after_a_step(code.replace("FORKS", "40" if whole else "8")).stdout == "0\n"


@pytest.mark.parametrize(
    "call",
    [
        torch.cholesky_inverse,
        torch.linalg.inv,
        lambda m: torch.linalg.solve(m, m),
        lambda m: torch.linalg.cholesky(m - 1),
    ],
    ids=["cholesky_inverse", "inv", "solve", "cholesky"],
)
def test_L9_what_linear_algebra_refuses_is_raised_at_the_call(call: Callable[..., object]) -> None:
    for d in ("cpu", LAZY):
        with pytest.raises(torch.linalg.LinAlgError):
            call(torch.zeros(3, 3, device=d))


def test_L9_what_no_device_takes_is_torchs_own_error() -> None:
    """Torch 2.15 raises NotImplementedError of it, which is not for want of a kernel."""
    for call in (lambda x: x - x, lambda x: 1 - x, lambda x: x.sub_(x), lambda x: torch.sub(x, x, alpha=2)):
        errors = []
        for device in ("cpu", LAZY):
            with pytest.raises((RuntimeError, NotImplementedError)) as caught:
                call(torch.ones(2, dtype=torch.bool, device=device))
            errors.append((type(caught.value), str(caught.value)))
        assert errors[0] == errors[1]
