"""C2, C4: profiles and estimates of programs that train in several threads at once."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch._ext import context
from mindtorch.engine import semantics
from mindtorch.engine.semantics import owners
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.measure.iterations import OneLoop
from mindtorch.profile.measure.peak import Registered, _gradients


def test_C2_gradients_are_not_read_while_another_thread_differentiates() -> None:
    # Torch writes and frees them without the GIL: profiles of such programs ended in a crash.
    semantics.install()
    try:
        leaf, result = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True) * 2
        (leaf * 3).sum().backward()
        seen, has_begun, goes_on = [], threading.Event(), threading.Event()

        def passes() -> None:
            (torch.ones(2, requires_grad=True) * 2).sum().backward()
            has_begun.set()
            assert goes_on.wait(60)

        def look() -> None:
            seen.append(_gradients([leaf, result]))

        look()
        other = threading.Thread(target=passes)
        other.start()
        assert has_begun.wait(60)
        look()  # it may begin the next one at any time, or drop what it has
        third = threading.Thread(target=look)
        third.start()
        third.join()
        goes_on.set()
        other.join()
        look()
    finally:
        semantics.uninstall()
    assert [len(found) for found in seen] == [1, 0, 0, 1] and seen[0][0] is seen[3][0] is leaf.grad


def test_C2_a_model_that_another_thread_is_making_may_be_looked_at() -> None:
    model, ends = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), threading.Event()

    def make() -> None:
        while not ends.is_set():
            model.add_module("more", nn.Identity())
            model.register_buffer("kept", torch.ones(1))
            model.register_parameter("weight", nn.Parameter(torch.ones(1)))
            del model.more, model.kept, model.weight

    before, other = sys.getswitchinterval(), threading.Thread(target=make)
    sys.setswitchinterval(1e-6)
    other.start()
    try:
        for _ in range(300):
            assert [name for name, _ in owners.named_modules(model)][:3] == ["", "0", "1"]
            assert len(owners.held(model)[0]) >= 4 and owners.first_parameter(model) is not None
            assert len(list(owners.named_tensors(model))) >= 4
    finally:
        ends.set()
        other.join()
        sys.setswitchinterval(before)


def test_C2_parameters_that_are_collected_while_they_are_looked_at_are_gone() -> None:
    # Until Python 3.11 any new tuple may begin a collection, which took parameters out of the table that was gone
    # through: their module's call raised.
    registered, before = Registered(), gc.get_threshold()
    parameter = nn.Parameter(torch.ones(1))
    for number in range(20_000):
        registered._refs[-number] = weakref.ref(parameter)
    gc.collect()
    gc.set_threshold(10**6)
    try:
        with registered:
            for _ in range(50):
                layer = nn.Linear(1, 1)
                layer.itself = [layer]  # garbage that only a collection finds
            del layer
            gc.set_threshold(5_000)
            roles = registered.roles()
    finally:
        gc.set_threshold(*before)
    assert sum(each is parameter for each in roles[0][0]) == 20_000


def test_C2_a_module_is_made_while_another_thread_ends_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    # Torch goes through a table of hooks for each parameter: taking one out of it meanwhile raised in that thread.
    first, second, capture = Registered(), Registered(), mindtorch.capture()
    begun, goes_on, made = threading.Event(), threading.Event(), []
    hooks = torch.nn.modules.module._global_parameter_registration_hooks
    before = len(hooks)

    def note(parameter: torch.Tensor) -> None:
        begun.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(first, "_note", note)
    with first:
        second.__enter__()
        capture.__enter__()
        other = threading.Thread(target=lambda: made.append(nn.Linear(1, 1)))
        other.start()
        assert begun.wait(60)
        capture.__exit__(None, None, None)
        second.__exit__(None, None, None)
        goes_on.set()
        other.join()
    assert len(made) == 1 and len(hooks) == before


def test_C2_threads_that_train_at_once_are_counted_to_the_last_operation(after_a_step: Callable[..., Any]) -> None:
    code = """
        import sys, threading, torch, mindtorch
        sys.setswitchinterval(1e-6)
        wrong = []
        def train():
            try:
                model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
                optimizer = torch.optim.SGD(model.parameters(), 0.1)
                for _ in range(40):
                    optimizer.zero_grad()
                    model(torch.ones(3, 8)).sum().backward()
                    optimizer.step()
            except BaseException as error:
                wrong.append(repr(error))
        threads = [threading.Thread(target=train) for _ in range(5)]
        with mindtorch.profile() as profile:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        calls = {}
        for op in profile.report()["ops"]:
            calls[op["name"]] = calls.get(op["name"], 0) + op["calls"]
        print(wrong, calls["aten::addmm"], calls["aten::relu"], calls["aten::threshold_backward"])
    """
    assert after_a_step(code).stdout.split("\n")[0] == "[] 400 200 200"


def test_C2_iterations_are_those_of_one_of_the_threads_that_run_at_once() -> None:
    """The one that was there first; others are told of beside it. Threads that take turns run one loop."""

    def profiled(threads: int, at_once: bool) -> dict[str, Any]:
        barrier, turns = threading.Barrier(threads if at_once else 1), threading.Lock()

        def train() -> None:
            model = nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            model.register_forward_pre_hook(lambda *_: [barrier.wait(60)].clear())
            for _ in range(4):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()

        def one_after_the_other() -> None:
            with turns:
                train()

        with mindtorch.profile() as profile:
            begun = [threading.Thread(target=train if at_once else one_after_the_other) for _ in range(threads)]
            for thread in begun:
                thread.start()
            for thread in begun:
                thread.join()
        return {**profile.report()["steps"], "text": " ".join(str(profile).split())}

    together = profiled(3, at_once=True)
    assert (together["count"], together["threads_aside"]) == (4, 2)
    assert together["time_s"] is None and "steps 4 of one loop (2 other threads left out)" in together["text"]
    in_turn = profiled(3, at_once=False)
    assert (in_turn["count"], in_turn["threads_aside"]) == (12, 0) and in_turn["time_s"]["min"] > 0
    assert "steps 12, median" in in_turn["text"]
    assert (profiled(1, at_once=True)["count"], profiled(1, at_once=True)["threads_aside"]) == (4, 0)


def test_C2_what_a_thread_does_within_anothers_call_is_of_that_call() -> None:
    loop = OneLoop()
    assert loop.counts("enter", 1, 7)  # DataParallel, whose replicas are called in threads of their own
    assert [loop.counts(kind, 2, thread) for thread in (8, 9) for kind in ("enter", "exit")] == [False] * 4
    assert [loop.counts(kind, 1, 7) for kind in ("exit", "backward", "step begins", "step")] == [True] * 4
    assert loop.aside == {8, 9} and not loop.counts("enter", 2, 8)
    assert loop.counts("enter", 3, 10) and loop.counts("step begins", 3, 10)  # the step's closure calls the model
    assert loop.counts("enter", 1, 7) and not loop.counts("exit", 3, 10)  # the first to come stays
    assert loop.aside == {8, 9, 10}


def test_C2_what_two_threads_import_at_once_is_start_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sleeps while it is loaded: together that takes as long as one of them, not twice."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("genie_slow_one", "genie_slow_two"):
        (tmp_path / f"{name}.py").write_text("import time\ntime.sleep(0.2)\n")
    net = torch.nn.Linear(2, 2)

    def load(name: str) -> None:
        net(torch.ones(1, 2))
        importlib.import_module(name)
        net(torch.ones(1, 2))

    with Profiler() as profiler:
        net(torch.ones(1, 2))
        threads = [threading.Thread(target=load, args=(name,)) for name in ("genie_slow_one", "genie_slow_two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    report = profiler.report()
    startup, totals = report["startup"], report["totals"]
    told = startup["import_s"] + startup["init_s"] + totals["time_s"] + totals["overhead_s"]
    assert startup["import_s"] > 0.19 and told < totals["wall_s"] + 0.1


def test_C4_an_estimate_looks_at_the_models_of_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run, looked = Estimator(target=targets.find("h100")), []

    def noted(model: nn.Module, path: int) -> None:
        assert run._marking.acquire(blocking=False)  # this thread may; no other, as long as it is held here
        run._marking.release()
        other = threading.Thread(target=lambda: looked.append(run._marking.acquire(blocking=False)))
        other.start()
        other.join()

    monkeypatch.setattr(run._on_host, "saw", noted)
    run._saw_root(nn.Linear(1, 1), context.intern_path(0, "Linear", "Linear"))
    assert looked == [False]
