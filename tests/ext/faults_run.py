"""Run by tests/test_memory_safety.py with faults.c preloaded: in each scenario each allocation fails in turn."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable
from types import FunctionType

import torch
from torch import nn

import mindtorch
from mindtorch._ext import lazy as _core
from mindtorch._ext.collect import Collector, now_ns
from mindtorch.engine.execute.values import tape
from mindtorch.profile.measure import collect as profile

LAZY = "remote_accelerator:0"
library = ctypes.PyDLL(sys.argv[1])
library.faults_arm.argtypes = [ctypes.c_long]
arm, disarm = library.faults_arm, library.faults_disarm
library.faults_install()

base = torch.ones(4, device=LAZY)
square = torch.arange(6.0, device=LAZY).view(2, 3)
(base + 1).tolist(), square.tolist()
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(LAZY)
round_number = 0


def fresh() -> float:
    """A constant that no call had before, so that everything is inferred and interned anew."""
    return round_number + 0.125


def known_call() -> object:
    return base + 1


def new_number() -> object:
    return base * fresh()


def new_call() -> object:
    return base.roll(round_number)


def new_shape() -> object:
    return base.expand(1000 + round_number, 4)


def creation() -> object:
    return torch.full((round_number % 7 + 1,), fresh(), device=LAZY)


def several_outputs() -> object:
    return square.max(dim=1), square.split(1)


def many_inputs() -> object:
    return torch.cat([base] * 200)


def write() -> object:
    x = base + 0
    x.add_(fresh())
    x[1:].mul_(2)
    return x


def draw() -> object:
    return torch.rand(3, device=LAZY), torch.zeros(3, device=LAZY).normal_()


def fallback() -> object:
    return torch.nonzero(base)


def upload() -> object:
    return torch.ones(3).to(LAZY)


def module_call() -> object:
    with torch.no_grad():
        return model(base)


def new_module() -> object:
    layer = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4)).to(LAZY)
    with torch.no_grad():
        return layer(base)


def backward() -> object:
    x = torch.ones(3, device=LAZY, requires_grad=True)
    (x * fresh()).sum().backward()
    return x.grad


def read() -> object:
    return ((base * 3 + fresh()) - 1).tolist()


def read_part() -> object:
    x = base + 2
    y = x[:2]
    x.mul_(fresh())
    z = torch.rand(4, device=LAZY) + x
    return y.tolist(), z


def flush() -> object:
    kept = [base + i for i in range(5)]
    kept[0].add_(1)
    mindtorch.flush("test")
    return kept


def describe() -> object:
    x = torch.add(base, base, alpha=fresh())
    return x.operation, x.inputs, x.kwargs, x.metadata.tensor_shape, mindtorch.stats(), x


def graph() -> object:
    x = base * fresh() + 1
    return mindtorch.ComputationGraph.from_tensors(x).get_execution_order()


def copies() -> object:
    x = base + 1
    return x.detach(), x.data, nn.Parameter(x)


def many_values() -> object:
    return [base + 1 for _ in range(400)]


def many_calls() -> object:
    return [base.expand(20 * round_number + i, 4) for i in range(1, 20)]


def eviction() -> object:
    tape.interner.set_limit(1)
    try:
        return [base * (fresh() + i) for i in range(3)]
    finally:
        tape.interner.set_limit(64 << 20)


def sweep() -> object:
    x = base + 0
    for _ in range(20):
        x[0]
        x.add_(1)
    _core.sweep()
    return x


names: dict[str, FunctionType] = {}
exec("\n".join(["def f(x):"] + ["    y = x + 1"] * 40 + ["    return y"]), names)
LINES = names["f"].__code__


def new_lines() -> object:
    """Code and lines that no op was recorded from before."""
    for i in range(20):
        FunctionType(LINES.replace(co_filename=f"new{round_number}_{i}.py"), {})(base)
    return None


def new_thread() -> object:
    """A thread has its own stack of modules and log of autograd numbers."""
    found: list[object] = []

    def work() -> None:
        try:
            deep = nn.Identity()
            for _ in range(20):
                deep = nn.Sequential(deep)
            deep(torch.ones(2))
            x = base.detach().requires_grad_()
            found.append(torch.autograd.grad(model(x).sum(), x))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found


def failing() -> object:
    """A write fails in the kernel, and what depends on it with it."""
    x = base + fresh()
    x.scatter_(0, torch.full((1,), 50, device=LAZY), 1.0)
    y = x * 2
    try:
        y.tolist()
    except mindtorch.MaterializationError as error:
        if isinstance(error.__cause__, MemoryError):
            raise
        return None
    raise AssertionError("a failing kernel went unnoticed")


def profiled() -> object:
    """Ops measured by the profiler, with modules that it has not met."""
    collector = Collector(profile.describe, profile.count, torch.Tensor, lambda *mark: None)
    collector.start()
    try:
        for n in (round_number, round_number + 1):
            collector.dispatch(torch.ops.aten.add.Tensor, (), (torch.ones(n), torch.ones(n)))
            collector.dispatch(torch.ops.aten.mm.default, (), (torch.ones(1, n), torch.ones(n, 1)))
        nn.Sequential(nn.Identity(), nn.Identity())(torch.ones(2))
        return collector.split(now_ns()), collector.balance.module_peaks()
    finally:
        collector.stop()


SCENARIOS: list[Callable[[], object]] = [
    known_call,
    new_number,
    new_call,
    new_shape,
    creation,
    several_outputs,
    many_inputs,
    write,
    draw,
    fallback,
    upload,
    module_call,
    new_module,
    backward,
    read,
    read_part,
    flush,
    describe,
    graph,
    copies,
    many_values,
    many_calls,
    eviction,
    sweep,
    new_lines,
    new_thread,
    failing,
    profiled,
]


def engine_works() -> bool:
    """A small program of every kind gives what it should."""
    x = torch.arange(4.0, device=LAZY)
    y = x * 2
    x.add_(1)
    with torch.no_grad():
        shape = model(base).shape
    a, b = y.view(2, 2).split(1)
    return (x.tolist(), y.tolist(), a.tolist(), b.tolist(), shape) == (
        [1.0, 2.0, 3.0, 4.0],
        [0.0, 2.0, 4.0, 6.0],
        [[0.0, 2.0]],
        [[4.0, 6.0]],
        (4,),
    )


def settled() -> tuple[int, int]:
    gc.collect()
    mindtorch.flush("settle")
    gc.collect()
    counters = tape.counters()
    return counters["values"], counters["pending"]


def main() -> int:
    global round_number
    wrong = 0
    gc.collect()
    gc.freeze()  # what torch has made so far need not be looked at each time
    for scenario in [s for s in SCENARIOS if len(sys.argv) == 2 or s.__name__ in sys.argv[2:]]:
        scenario()
        round_number += 1
        values, pending = settled()
        k = rounds = raised = absorbed = 0
        while True:
            round_number += 1
            error: BaseException | None = None
            arm(k)
            try:
                scenario()
            except BaseException as e:  # looked at below
                error = e
            failed = disarm()
            if not torch.is_grad_enabled():
                print(f"{scenario.__name__}, allocation {k}: grad mode was left off")
                torch.set_grad_enabled(True)
                wrong += 1
            if not failed:
                if error is not None:
                    print(f"{scenario.__name__}: fails by itself: {error!r}")
                    wrong += 1
                break
            if error is None:
                absorbed += 1
            elif isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
                raised += 1
            elif "torch_api_function.ptr() != nullptr" in str(error):
                raised += 1  # torch's words for whatever it is raised when it looks up its own functions
            else:
                print(f"{scenario.__name__}, allocation {k}: expected MemoryError, got {error!r}")
                wrong += 1
            error = None
            if not engine_works():
                print(f"{scenario.__name__}, allocation {k}: the engine gives wrong results afterwards")
                wrong += 1
            now = settled()
            if now != (values, pending):
                print(f"{scenario.__name__}, allocation {k}: {now} values and pending ops, before {values, pending}")
                wrong += 1
                values, pending = now
            # Each of the first, then every seventh: looking at each caller's stack takes time, and what comes late in a
            # scenario is more of the same.
            k += 1 if k < 60 else 7
            rounds += 1
        print(f"{scenario.__name__}: {rounds} allocations failed, {raised} raised, {absorbed} did without")
    return wrong


if __name__ == "__main__":
    wrong = main()
    print("wrong:", wrong)
    sys.exit(1 if wrong else 0)
