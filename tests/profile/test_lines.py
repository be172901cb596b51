"""C2: time between ops has an address, and what waits, compiles or computes again has a name."""

import gc
import os
import threading
import time
import warnings

import numpy as np
import pytest
import torch
import typing_extensions
from torch.utils.checkpoint import checkpoint

from mindtorch._ext import looking
from mindtorch._ext.labels import IN_BACKWARD, RECOMPUTING
from mindtorch.profile import Profiler
from mindtorch.profile.measure import collect
from mindtorch.profile.measure.collector_callbacks import describe


def looks():
    """How often the running profile has looked. What waits for more of them needs no particular time for it."""
    (profiler,) = collect._active
    return profiler.collector.sampler.looks


class Slow(torch.utils.data.Dataset):
    def __init__(self):
        self.spent = 0.0

    def __len__(self):
        return 8

    def __getitem__(self, i):
        began, enough = time.perf_counter(), looks() + 3
        while looks() < enough:
            time.sleep(0.005)  # loading
        self.spent += time.perf_counter() - began
        return torch.ones(4)


def by_source(report):
    return {row["source"]: row for row in report["lines"] if row["file"] == __file__}


def test_C2_a_line_that_runs_no_op_has_its_time(record):
    net, spent = torch.nn.Linear(4, 4), {"sleeping": 0.0, "spinning": 0.0}

    def sleep():
        began, enough = time.perf_counter(), looks() + 5
        while looks() < enough:  # sleeping
            time.sleep(0.01)  # sleeping
        spent["sleeping"] += time.perf_counter() - began

    def spin():
        began, enough = time.perf_counter(), looks() + 5
        while looks() < enough:  # spinning
            sum(range(1000))  # spinning
        spent["spinning"] += time.perf_counter() - began

    def program():
        for _ in range(3):
            net(torch.ones(2, 4))
            sleep()
            spin()
            values = np.sort(np.random.default_rng(0).random(400_000))  # sorting
            torch.from_numpy(values).sum()

    report, profiler = record(program)  # its lines sum to the total
    lines = by_source(report)
    for what, seconds in spent.items():
        rows = [row for source, row in lines.items() if source.endswith(f"# {what}")]
        assert all(row["calls"] == 0 and row["python_s"] == row["self_s"] for row in rows)
        assert sum(row["self_s"] for row in rows) > seconds / 2, what
    assert sum(row["calls"] for row in report["lines"] if row["file"] == __file__) == report["totals"]["ops"]
    assert profiler.collector.sampler.looks > 10 and profiler.collector.sampler.error is None
    assert not profiler.collector.sampler.running


def test_C2_a_long_op_is_its_lines_and_none_of_pythons(record):
    @torch.library.custom_op("mindtorch_test::long", mutates_args=())
    def long(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.3)  # within an op
        return x + 1

    report, _ = record(lambda: long(torch.ones(2)))  # the op's line
    lines = by_source(report)
    mine = next(row for source, row in lines.items() if source.endswith("# the op's line"))
    assert mine["calls"] >= 1 and mine["self_s"] - mine["python_s"] >= 0.3
    assert not any(source.endswith("# within an op") for source in lines)


def test_C2_lines_of_other_threads(record):
    spent = []

    def work():
        torch.ones(2) + 1
        began, enough = time.perf_counter(), looks() + 10
        while looks() < enough:  # in a thread
            time.sleep(0.01)  # in a thread
        spent.append(time.perf_counter() - began)

    def program():
        torch.ones(2) + 1
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    report, _ = record(program)
    rows = [row for source, row in by_source(report).items() if source.endswith("# in a thread")]
    assert sum(row["python_s"] for row in rows) > sum(spent) / 2 > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_C8_a_forked_child_has_no_thread_of_ours():
    with Profiler() as profiler:
        torch.ones(2) + 1
        child = os.fork()
        if not child:
            profiler.__exit__(None, None, None)  # as it would at the end of the block
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert profiler.collector.sampler.running
    assert not profiler.collector.sampler.running


FORKS = """
import os, warnings
import torch
from mindtorch.profile.measure.collect import Profiler
with Profiler() as profiler, warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for _ in range(3):
        torch.ones(2) + 1
        child = os.fork()
        if not child:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert profiler.collector.sampler.running
assert not seen and not profiler.collector.sampler.running, [str(each.message) for each in seen]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_L1_python_warns_of_no_thread_of_ours_at_a_fork(after_torch):
    """Python 3.12 and newer warn of a second thread; 3.13 counts them after it has called those who wait for a fork."""
    after_torch(FORKS)


def test_C2_waiting_for_a_loader_is_named_and_the_first_batch_is_the_loops(record):
    data = Slow()

    def program():
        net = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for batch in torch.utils.data.DataLoader(data, 2):
            net(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    report, _ = record(program)
    labels = {row["name"].partition("#")[0]: row for row in report["labels"]}
    loading = labels["enumerate(DataLoader)"]
    assert loading["calls"] == 5 and loading["total_s"] >= data.spent and loading["max_s"] >= data.spent / 4
    assert loading["min_s"] < loading["max_s"]  # that there is no more
    phase = next(row["time_s"] for row in report["phases"] if row["name"] == "data")
    assert report["waits"]["data_s"] == phase and report["waits"]["recompute_s"] == 0, "one figure"
    assert labels["Optimizer.step"]["calls"] == labels["Optimizer.zero_grad"]["calls"] == 4
    stacked = next(row for row in report["ops"] if row["name"] == "aten::stack")
    assert stacked["calls"] == 4  # of each batch, the first one's too
    assert report["startup"]["ops"] > 0
    slept = next(row for source, row in by_source(report).items() if source.endswith("# loading"))
    assert slept["self_s"] > data.spent / 2


def test_C2_the_first_batch_is_the_loops_whatever_makes_it(record):
    def program():
        net = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(4):
            x = torch.randn(2, 4)
            net(x).sum().backward()
            optimizer.step()

    report, _ = record(program)
    assert next(row["calls"] for row in report["ops"] if row["name"] == "aten::randn") == 4
    assert not [row for row in report["ops"] if row["name"] == "aten::uniform_"]
    report, _ = record(program, warmup=2)
    assert next(row["calls"] for row in report["ops"] if row["name"] == "aten::randn") == 2


def test_C2_what_checkpoints_compute_again_is_named(record):
    block, x = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()), torch.ones(8, 64, requires_grad=True)
    for reentrant in (False, True):
        report, _ = record(lambda reentrant=reentrant: [checkpoint(block, x, use_reentrant=reentrant).sum().backward()
                                                        for _ in range(3)])  # fmt: skip
        label = next(row for row in report["labels"] if row["name"].startswith("recomputed modules"))
        assert label["calls"] == 3 and 0 < report["waits"]["recompute_s"] == label["total_s"]
        backward = next(row["time_s"] for row in report["phases"] if row["name"] == "backward")
        assert label["total_s"] < backward


class Checkpoint(torch.autograd.Function):
    """As programs write their own (guided-diffusion's)."""

    @staticmethod
    def forward(ctx, function, x):
        ctx.function, ctx.x = function, x
        return function(x)

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            x = ctx.x.detach().requires_grad_()
            return None, torch.autograd.grad(ctx.function(x), x, grad)[0]


class Adjoint(Checkpoint):
    """As torchdiffeq's: what it calls in backward was not called in forward."""

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            for _step in range(3):
                x = torch.randn(8, 64, requires_grad=True)
                grad = grad + torch.autograd.grad(ctx.function(x), x, grad)[0]
            return None, grad


@pytest.mark.parametrize(("kind", "calls", "named"), [(Checkpoint, 3, "recompute_s"), (Adjoint, 9, "in_backward_s")])
def test_C2_what_an_adjoint_calls_in_backward_is_not_computed_again(record, kind, calls, named):
    """Of torchdiffeq's: "computing forward passes again in backward"."""
    block, x = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()), torch.ones(8, 64, requires_grad=True)
    report, _ = record(lambda: [kind.apply(block, x).sum().backward() for _ in range(3)])
    found = {row["name"]: row for row in report["labels"] if row["name"] in (RECOMPUTING, IN_BACKWARD)}
    (label,) = found.values()
    assert label["calls"] == calls and label["name"] == {"recompute_s": RECOMPUTING}.get(named, IN_BACKWARD)
    assert {name for name in ("recompute_s", "in_backward_s") if report["waits"][name]} == {named}
    assert report["waits"][named] == label["total_s"]


def test_C2_what_comes_before_a_label_is_not_taken_off_it(record, monkeypatch):
    def slow(func):
        time.sleep(0.1 if str(func).startswith("profiler.") else 0)
        return describe(func)

    monkeypatch.setattr(collect, "describe", slow)

    def program():
        with torch.profiler.record_function("first of all"):
            time.sleep(0.05)

    report, _ = record(program)
    (label,) = report["labels"]
    assert label["total_s"] >= 0.05


def test_C2_labels_of_the_program_and_of_errors(record):
    def program():
        with torch.profiler.record_function("outer"):
            for _ in range(3):
                with torch.profiler.record_function("inner"):
                    torch.ones(3) + 1
            with pytest.raises(RuntimeError), torch.profiler.record_function("failing"):
                torch.ones(2, 3) @ torch.ones(2, 3)

    report, _ = record(program)
    labels = {row["name"]: row for row in report["labels"]}
    assert {name: row["calls"] for name, row in labels.items()} == {"outer": 1, "inner": 3, "failing": 1}
    assert labels["outer"]["total_s"] >= labels["inner"]["total_s"] >= 3 * labels["inner"]["min_s"] > 0


def test_L1_a_look_lets_nothing_else_run():
    """What the look refers to outlives its function: torch copies a new tensor that somebody else refers to."""
    collections: list[str] = []
    seen: list[int] = []

    class Stub:
        def timelines(self):
            seen.append(len(collections))
            return [(threading.get_ident(), None)]

        lines = False

        def seen_at(self, timeline, place, waits):
            seen.append(len(collections))

    look = looking.Look((__file__,), {}, ("", ""), (), ())  # goes up to whoever calls the test
    look.collector = Stub()

    def deep(n):
        return deep(n - 1) if n else look.look()

    thresholds = gc.get_threshold()
    notes = lambda phase, info: collections.append(phase)  # noqa: E731
    gc.callbacks.append(notes)
    try:
        gc.set_threshold(1)
        for _ in range(20):
            deep(30)
            assert [set() for _ in range(9)]  # outside of it there is something to collect; of lists, some are kept
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(notes)
    assert collections and gc.isenabled()
    assert seen[::2] == seen[1::2] and len(seen) == 40


def test_L12_lines_of_deprecated_functions_are_the_users(record):
    a, b = torch.ones(3, 3), torch.ones(3, 3)

    @typing_extensions.deprecated("no more")
    def old(x):
        return torch.exp(x)

    def program():
        torch.chain_matmul(a, b, b)  # torch says that it is deprecated, with a wrapper from elsewhere
        old(a)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report, _ = record(program)
    lines = {(row["file"], row["source"]) for row in report["lines"] if row["calls"]}
    assert {file for file, _ in lines} == {__file__}
    assert {source.split("(")[0] for _, source in lines} == {"torch.chain_matmul", "return torch.exp"}


class Marked(torch.Tensor):
    """As MONAI's and fastai's: a class of tensors whose every call comes by here."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Slowly(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        enough = looks() + 3
        while looks() < enough:
            time.sleep(0.005)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_C2_time_in_a_class_of_tensors_is_of_the_line_that_called_it(record):
    def program():
        x = torch.ones(5).as_subclass(Slowly)
        for _ in range(3):
            x.exp()  # slow

    report, _ = record(program)
    row = max(report["lines"], key=lambda row: row["self_s"])
    assert row["source"].endswith("# slow") and row["file"] == __file__


def test_L12_what_a_class_of_tensors_hands_on_is_at_the_line_that_called_it(record):
    """All lines of such a program were one: that in the class."""

    def program():
        x = torch.randn(50).as_subclass(Marked)
        x.exp()  # here
        torch.stack([x, x])  # and here

    for lines in False, True:
        report, _ = record(program, lines=lines)
        found = {
            row["op"]: report["detail"]["lines"][row["line"]]["source"]
            for row in (dict(zip(report["detail"]["columns"], row, strict=True)) for row in report["detail"]["rows"])
        }
        assert found["aten::exp"].endswith("# here") and found["aten::stack"].endswith("# and here")
