"""What the program's own signal handlers raise passes as it is, and takes nothing with it (SPEC L9)."""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import mindtorch
from mindtorch.base import plugins
from mindtorch.engine.execute import local
from mindtorch.engine.passes import optimizer as passes_optimizer
from mindtorch.graph import ComputationGraph
from mindtorch.graph import graph as graph_module
from mindtorch.graph.parts import Call, Hole, Output, Reading
from mindtorch.profile import Profiler

LAZY = "remote_accelerator:0"


class Alarm(Exception):
    """The program's own."""


class Handler:
    """The shapes that a handler can have; each raises once."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def method(self, number: int, frame: Any) -> None:
        raise self.error

    def __call__(self, *args: Any) -> None:
        self._deeper()

    def _deeper(self) -> None:
        raise self.error

    def resets(self, number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)  # a handler that is none any more when it raises
        raise self.error


SHAPES: dict[str, Callable[[BaseException], Any]] = {
    "method": lambda error: Handler(error).method,
    "object": Handler,
    "resets itself": lambda error: Handler(error).resets,
    "partial": lambda error: functools.partial(Handler.method, Handler(error)),
    "lambda": lambda error: lambda number, frame: Handler(error)._deeper(),
}
ERRORS = (
    Alarm("out of time"),
    KeyboardInterrupt(),
    SystemExit(3),
    TimeoutError("late"),
    RuntimeError("enough"),
    NotImplementedError("no"),
    ValueError("v"),
    MemoryError("m"),
    torch.OutOfMemoryError("o"),
)


@pytest.fixture(autouse=True)
def handlers_put_back() -> Iterator[None]:
    kept = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGUSR1, kept[0])
    signal.signal(signal.SIGALRM, kept[1])


@torch.library.custom_op("genie_test_signals::ring", mutates_args=())
def ring(x: torch.Tensor) -> torch.Tensor:
    """An operation of the program's, in the middle of which the signal comes, for its first call."""
    if ring_at.pop("now", None):
        signal.raise_signal(signal.SIGUSR1)
    return x * 2


@ring.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


ring.register_autograd(lambda ctx, grad: ring(grad))
ring_at: dict[str, bool] = {}


def program(d: str, ringing: bool = True) -> torch.Tensor:
    """Shows it when an operation is lost, runs twice or draws out of turn."""
    torch.manual_seed(3)
    x = torch.zeros(3, device=d)
    for i in range(4):
        x.add_(torch.rand(3, device=d))
        x[i % 3].mul_(0.5)
        x = ring(x) if ringing else x * 2
    return x.sum()


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": torch.Tensor.item,
    "cpu": torch.Tensor.cpu,
    "print": repr,
    "tolist": torch.Tensor.tolist,
    "numpy": torch.Tensor.numpy,
    "bool": bool,
    "flush": lambda t: mindtorch.flush("test"),
    "to": lambda t: t.to("cpu"),
    "setting": lambda t: torch.set_default_dtype(torch.float64),
    "data dependent": lambda t: t.reshape(1).nonzero(),
}


@pytest.mark.parametrize("read", READS)
def test_L9_what_a_handler_raises_during_a_read_passes_as_it_is(read: str) -> None:
    expected = program("cpu").item()
    error = Alarm("out of time")
    signal.signal(signal.SIGUSR1, SHAPES["method"](error))
    x = program(LAZY)
    recorded, before = x * 3, mindtorch.stats()
    ring_at["now"] = True
    with pytest.raises(Alarm) as caught:
        READS[read](x)
    torch.set_default_dtype(torch.float32)
    assert caught.value is error
    assert x.item() == expected and recorded.item() == torch.tensor(expected).mul(3).item()
    assert mindtorch.stats()["ops_executed"] > before["ops_executed"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("shape", SHAPES)
def test_L9_whatever_the_handler_is_and_raises(shape: str, error: BaseException) -> None:
    signal.signal(signal.SIGUSR1, SHAPES[shape](error))
    x = program(LAZY)
    ring_at["now"] = True
    with pytest.raises(type(error)) as caught:
        x.item()
    assert caught.value is error
    assert x.item() == program("cpu").item()


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("where", ["verify", "observer", "submit", "fetch"])
def test_L9_in_the_engines_own_python_code(where: str, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGUSR1, SHAPES["object"](error))
    fired = itertools.count()

    def ringing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if next(fired) in (0, 3):
                signal.raise_signal(signal.SIGUSR1)
            return original(*args)

        return call

    executor = mindtorch.engine.execute.values.executor()
    x = program(LAZY, ringing=False)
    if where == "verify":
        mindtorch._ext.lazy.forget_calls()  # so that each call is verified again
        x = program(LAZY, ringing=False)
        monkeypatch.setattr(local, "_verify", ringing(local._verify))
    elif where == "observer":
        monkeypatch.setattr(local, "_op_observer", ringing(lambda *args: None))
    else:
        monkeypatch.setattr(executor, where, ringing(getattr(executor, where)))
    got = None
    for _ in range(3):
        try:
            got = x.item()
            break
        except type(error) as caught:
            assert caught is error
    assert got == program("cpu", ringing=False).item()


def test_L9_between_operations() -> None:
    """A long read of C++ operations alone: the handler has its chance between them."""
    signal.signal(signal.SIGALRM, Handler(Alarm("out of time")))
    x = torch.zeros((), device=LAZY)
    for _ in range(20_000):
        x = x + 1
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    with pytest.raises(Alarm):
        x.item()
        pytest.fail("ran to the end before the signal")
    assert x.item() == 20_000.0


def test_L9_in_a_backward_pass_and_what_it_reads() -> None:
    model, expected = nn.Linear(3, 3).to(LAZY), nn.Linear(3, 3)
    expected.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})

    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
            return t.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            grad = ring(grad)
            return grad * grad.sum().item()

    signal.signal(signal.SIGUSR1, Handler(Alarm("out of time")))
    x = torch.ones(2, 3)
    loss = Reads.apply(model(x.to(LAZY))).square().sum()
    ring_at["now"] = True
    with pytest.raises(Alarm):
        loss.backward()
    model.zero_grad()
    Reads.apply(model(x.to(LAZY))).square().sum().backward()
    Reads.apply(expected(x)).square().sum().backward()
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad.cpu(), q.grad)


@pytest.mark.parametrize("error", [RuntimeError("enough"), ValueError("v"), Alarm()], ids=lambda e: type(e).__name__)
def test_L9_while_a_call_is_predicted(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch's own inference raises is an answer; what a handler raises meanwhile is not."""
    signal.signal(signal.SIGUSR1, Handler(error))
    library = torch.library.Library("genie_test_signals", "FRAGMENT")
    library.define(f"late_{type(error).__name__}(Tensor x) -> Tensor")
    rings = [True]

    def meta(x: torch.Tensor) -> torch.Tensor:
        if rings and rings.pop():
            signal.raise_signal(signal.SIGUSR1)
        return torch.empty_like(x)

    library.impl(f"late_{type(error).__name__}", meta, "Meta")
    library.impl(f"late_{type(error).__name__}", lambda x: x + 1, "CPU")
    op = getattr(torch.ops.genie_test_signals, f"late_{type(error).__name__}")
    x = torch.ones(3, device=LAZY)
    with pytest.raises(type(error)) as caught:
        op(x)
    assert caught.value is error
    y = op(x)
    assert not y.materialized and y.tolist() == [2.0] * 3


def test_L9_an_operations_own_error_is_still_the_operations() -> None:
    """Also where the program has handlers, and the operation is Python code of the program's."""

    @torch.library.custom_op("genie_test_signals::refuses", mutates_args=())
    def refuses(x: torch.Tensor) -> torch.Tensor:
        if x.numel() > 100_000 and x.dtype == torch.float32:  # small copies, on which calls are tried, pass
            raise Alarm("not by a signal")
        return x.clone()

    refuses.register_fake(torch.empty_like)
    signal.signal(signal.SIGUSR1, Handler(Alarm("by a signal")))
    y = refuses(torch.ones(1 << 20, device=LAZY))
    with pytest.raises(mindtorch.MaterializationError, match="not by a signal"):
        y.cpu()


def struck(d: str) -> torch.Tensor:
    """Records, predicts, runs calls that cannot be recorded, and draws in each of these ways."""
    x = program(d, ringing=False) + torch.rand(3, device=d)
    y = torch.nn.functional.rrelu(x - 0.5, training=True) + torch.bernoulli(x.abs().clamp(max=1))
    kept = y[y > -9].unique() + torch.multinomial(x.abs() + 0.1, 2).sum()
    return kept.sum() + torch.linalg.eigvalsh(torch.outer(x, x)).sum() + x.norm()


# Where Python itself has nobody to raise to (a callback of gc's, which test libraries install), it says so and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("delays", [range(1, 60), range(60, 900, 7)], ids=["early", "late"])
def test_L9_wherever_a_timer_strikes_nothing_is_lost(delays: range) -> None:
    """Deadlines of a few microseconds to some milliseconds, in recording and in reading alike."""

    class Late(Exception):
        pass

    armed = False

    def handler(number: int, frame: Any) -> None:
        if armed:
            raise Late

    signal.signal(signal.SIGALRM, handler)
    expected = struck("cpu").item()
    for k, delay in enumerate(delays):
        if k % 3 == 0:
            mindtorch._ext.lazy.forget_calls()
            mindtorch.engine.record.predict.forget()
        torch.manual_seed(7)
        state = torch.get_rng_state()
        x = torch.rand(3, device=LAZY)
        y = program(LAZY, ringing=False)
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, delay * 1e-5)
            got = struck(LAZY).item()
            y.cpu()
            armed = False
            assert got == expected
        except Late:
            armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert torch.is_grad_enabled() and torch._C._is_torch_function_enabled(), delay
        assert torch._C._len_torch_dispatch_stack() == 0 == torch._C._len_torch_function_stack()
        assert y.item() == program("cpu", ringing=False).item()
        torch.manual_seed(7)
        assert torch.equal(x.cpu(), torch.rand(3)), delay
        torch.manual_seed(7)
        assert torch.equal(torch.get_rng_state(), state)
        assert struck(LAZY).item() == expected, delay
    mindtorch.flush("test")
    assert mindtorch.stats()["ops_pending"] == 0


class Passing(TorchDispatchMode):
    """A mode of the program's, with a body in Python."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs or {})


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mode", [Profiler, Passing])
def test_L9_modes_stay_on_wherever_a_timer_strikes(mode: Callable[[], Any]) -> None:
    """Strikes in what is run without the modes, and while they are taken away and put back, among others."""
    armed = False

    def handler(number: int, frame: Any) -> None:
        if armed:
            raise Alarm

    signal.signal(signal.SIGALRM, handler)
    x, struck_in_time = torch.zeros(3, device=LAZY), 0
    with mode():
        on = [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]
        for k in range(600):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, (k % 200 + 1) * 1e-5)
                for _ in range(200):
                    x = x + torch.ones(3, device=LAZY)
                    x.sum().item()
                armed = False
            except Alarm:
                armed = False
                struck_in_time += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            stack = [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]
            assert stack == on, k
    assert on and struck_in_time > 100 and torch._C._len_torch_dispatch_stack() == 0


def test_C1_in_a_profiled_program(forked: Callable[..., Any], tmp_path: Any) -> None:
    script = tmp_path / "alarmed.py"
    script.write_text("""
import signal, torch, mindtorch
class Alarm(Exception): pass
def handler(number, frame): raise Alarm
signal.signal(signal.SIGALRM, handler)
x = torch.zeros((), device="remote_accelerator:0")
for _ in range(20000): x = x + 1
model = torch.nn.Identity()
signal.setitimer(signal.ITIMER_REAL, 0.005)
try:
    for _ in range(1000): model(x); x = x + 1; x.item()
    print("never")
except Alarm:
    print("passed as it is")
""")
    done = forked("-m", "mindtorch.cli.main", "profile", str(script), folder=tmp_path)
    assert "passed as it is" in done.stdout and done.returncode == 0, done.stdout + done.stderr
    assert "never" not in done.stdout.splitlines()


def test_L10_a_graph_is_whole_wherever_a_handler_strikes() -> None:
    """Struck before each line that adds a node: that node is there or it is not, and the others are as they were."""

    def build(line: int | None) -> tuple[ComputationGraph, bool]:
        graph, lines, struck = ComputationGraph(), itertools.count(), False

        def strike(frame: Any, event: str, _: Any) -> Any:
            if frame.f_code.co_filename != graph_module.__file__:
                return None
            if event == "line" and next(lines) == line:
                raise Alarm
            return strike

        def add(n: int) -> None:
            one = Output((n, 3), torch.float32, "cpu")
            graph._append(
                graph._intern_call(Call(f"aten::op{n}", (Hole(0), Hole(1)), {}, (one,))),
                [(0, 0), (0, 0)],
                graph._intern_module(f"m.layer{n}"),
                graph._intern_place(("f.py", n, "forward")),
                1,
                readings=(None, Reading(0, (n, 3), (3, 1), torch.float32)),
            )

        graph._append(
            graph._intern_call(Call("genie::data", (), {}, (Output((3,), torch.float32, "cpu"),))), (), kind=1
        )
        before = sys.gettrace()
        for n in (1, 2, 3, 4):
            if n == 3:
                sys.settrace(strike)
            try:
                add(n)
            except Alarm:
                struck = True
            finally:
                sys.settrace(before)
        return graph, struck

    def described(graph: ComputationGraph) -> list[Any]:
        assert len(graph.edges) == len(graph._source) == len(graph._output)
        return [
            (node.op, node.kind, node.inputs, node.readings, node.outputs, node.module, node.phase, node.location)
            for node in graph.nodes
        ]

    whole = described(build(None)[0])
    without = [node for node in whole if node[0] != "aten::op3"]
    assert len(whole) == 5
    lines = itertools.takewhile(lambda each: each[1], map(build, itertools.count()))
    graphs = [described(graph) for graph, _ in lines]
    assert (
        len(graphs) > 20 and graphs.count(without) > 15 and graphs.count(whole) == len(graphs) - graphs.count(without)
    )


def test_L9_entry_points_are_looked_up_where_no_handler_runs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """importlib suppresses every exception while it lists a folder; a handler's would be lost there."""
    seen = []

    def listed(*_: Any) -> list[str]:
        seen.append(threading.current_thread() is threading.main_thread())
        return []

    monkeypatch.setattr(importlib.metadata.FastPath, "children", listed)
    importlib.invalidate_caches()
    monkeypatch.syspath_prepend(tmp_path)
    plugins.names("mindtorch.executors")
    plugins.offered("mindtorch.patterns", object, pytest.fail)
    importlib.invalidate_caches()  # else no distribution is found for the rest of the process
    assert seen and not any(seen)
    monkeypatch.undo()
    assert importlib.metadata.version("torch")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_L9_entry_points_for_which_there_is_no_memory_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was out of memory when it ran its first plan never answered again."""

    start = plugins.start_unwatched
    monkeypatch.setattr(plugins, "start_unwatched", lambda _look, given: start(len, given))  # raises, as that does
    with pytest.raises(MemoryError, match="entry points"):
        plugins.names("mindtorch.executors")
    monkeypatch.undo()
    plugins.names("mindtorch.executors")


def test_L9_what_struck_in_an_import_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python before 3.12 raises a RuntimeError because of it; so does what is planted here."""

    class Struck:
        def __set_name__(self, owner: type, name: str) -> None:
            signal.raise_signal(signal.SIGALRM)

    def forms(_: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            try:
                type("Late", (), {"x": Struck()})
            except Alarm as error:
                raise RuntimeError("Error calling __set_name__") from error
        return None

    def strike(number: int, frame: Any) -> None:
        raise Alarm("out of time")

    before = signal.signal(signal.SIGALRM, strike)
    left = 1
    monkeypatch.setattr(passes_optimizer.Optimizer, "in_use", forms)
    x = torch.ones(2, device=LAZY) + 1
    try:
        with pytest.raises(Alarm, match="out of time"):
            x.tolist()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert left == 0 and x.tolist() == [2.0, 2.0]
