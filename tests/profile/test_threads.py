"""C3: profiles of programs that train in several threads at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mindtorch._ext import context
from mindtorch.engine import semantics
from mindtorch.engine.semantics import owners


def test_C3_gradients_are_not_read_while_another_threads_backward_pass_may_write_them() -> None:
    # C++ writes them without the GIL: profiles of such programs ended in a crash, or a memory that was freed twice.
    semantics.install()
    try:
        seen = _gradients_seen()
    finally:
        semantics.uninstall()
    assert seen == ["itself", "none", "none", "itself"]


def _gradients_seen() -> list[str]:
    """What a leaf's gradient is in a hook of another thread's pass, beside it, in a hook of a pass beside it, after."""
    leaf, made = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True) * 2
    (leaf * 3).sum().backward()
    begun, goes_on, seen = threading.Event(), threading.Event(), []

    def look(_: object = None) -> None:
        assert context.gradient(made) is None
        found = context.gradient(leaf)
        seen.append("none" if found is None else "itself" if found is leaf.grad else "another")

    def wait(grad: torch.Tensor) -> None:
        look()
        begun.set()
        assert goes_on.wait(60)

    def passes() -> None:
        x = torch.ones(2, requires_grad=True)
        x.register_hook(wait)
        (x * 2).sum().backward()

    other = threading.Thread(target=passes)
    other.start()
    assert begun.wait(60)
    look()
    inner = torch.ones(2, requires_grad=True)
    inner.register_hook(look)
    inner.sum().backward()
    goes_on.set()
    other.join()
    look()
    return seen


def test_C3_a_model_that_another_thread_is_making_may_be_looked_at() -> None:
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


def test_C3_threads_that_train_at_once_are_counted_to_the_last_operation(after_torch: Callable[..., Any]) -> None:
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
    assert after_torch(code).stdout.split("\n")[0] == "[] 400 200 200"
