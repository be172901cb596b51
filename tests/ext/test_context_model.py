"""L12: paths and phases of random programs, beside a model of them in plain Python."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from mindtorch._ext import context
from mindtorch.engine import semantics

OTHER, FORWARD, BACKWARD, OPTIMIZER = "other", "forward", "backward", "optimizer"


@pytest.fixture(autouse=True)
def tracked() -> Iterator[None]:
    semantics.install()
    yield
    semantics.uninstall()


class Calls(torch.nn.Module):
    """Runs what it is told to run."""

    def __init__(self, wide: int, deep: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.children_of_mine = torch.nn.ModuleList(Calls(wide, deep - 1) for _ in range(wide if deep else 0))

    def forward(self, run: Callable[[], Any]) -> Any:
        return run()


class Mark(torch.autograd.Function):
    """Notes where its backward is said to be."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, note: Callable[[], None]) -> torch.Tensor:  # type: ignore[override]
        ctx.note = note
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        ctx.note()
        return grad, None


class Program:
    """What runs, and at each step what is to be said of it: the path, and the phase."""

    def __init__(self, seed: int) -> None:
        context.forget_loss()  # of a model of an earlier test's
        self.dice = random.Random(seed)
        self.model = Calls(2, 2)
        self.optimizers = [torch.optim.SGD(self.model.parameters(), lr=0.1) for _ in range(2)]
        self.paths: list[str] = []
        self.stack: list[Calls] = []
        self.phase, self.loss, self.step = OTHER, False, 0  # loss: may what follows be one?
        self.looked = 0

    def look(self, path: str | None = None, phase: str | None = None) -> None:
        expected = phase or (FORWARD if self.phase == OTHER and self.loss else self.phase)
        assert context.phase_name(context.get_phase()) == expected
        said = context.get_module()
        assert (context.module_path(said) if said else "") == (self.paths[-1] if path is None else path)
        self.looked += 1

    def many(self, depth: int) -> None:
        for _ in range(self.dice.randrange(1, 4)):
            self.look()
            kinds = [self.call, self.without_grad, self.backward, self.raises]
            if self.phase != FORWARD:  # within no module
                kinds += [self.optimize, self.closure, self.stage]
            if depth:
                self.dice.choice(kinds)(depth - 1)
            self.look()

    def call(self, depth: int) -> None:
        if self.stack:
            children = self.stack[-1].children_of_mine
            if not children:
                return
            place = self.dice.randrange(len(children))
            module, path = children[place], f"{self.paths[-1]}.children_of_mine.{place}"
        else:
            module, path = self.model, "Calls"
        before, outermost = self.phase, not self.stack

        def run() -> None:
            self.paths.append(path)
            self.stack.append(module)
            if outermost and before in (OTHER, FORWARD, OPTIMIZER):
                self.phase = FORWARD
            try:
                self.many(depth)
            finally:
                self.stack.pop()
                self.paths.pop()
                self.phase = before

        try:
            module(run)
        except BaseException:
            self.loss = False
            raise
        if outermost and before == OTHER:
            self.loss = torch.is_grad_enabled()

    def without_grad(self, depth: int) -> None:
        with torch.set_grad_enabled(self.dice.random() < 0.5):
            self.many(depth)

    def raises(self, depth: int) -> None:
        with contextlib.suppress(ZeroDivisionError):
            self.many(depth)
            raise ZeroDivisionError

    def backward(self, depth: int) -> None:
        path, told = self.paths[-1], []
        with torch.enable_grad():
            x = torch.ones(1, requires_grad=True)
            y = Mark.apply(x, lambda: told.append(self.look(path, BACKWARD))) * 2
            y.sum().backward()
        assert told == [None] and x.grad is not None
        self.loss = False

    def optimize(self, depth: int) -> None:
        if self.step < len(self.optimizers):
            self.optimizers[self.step].step()
            self.loss, self.phase = False, self.phase if self.step else OTHER  # with a step a stage is over

    def closure(self, depth: int) -> None:
        """Steps within steps, of other optimizers: as deep as there are optimizers."""
        if self.step == len(self.optimizers):
            return
        optimizer = self.optimizers[self.step]
        before = self.phase if self.step else OTHER

        def run() -> None:
            self.phase, self.loss = OTHER, False
            self.many(depth)

        self.step += 1
        try:
            optimizer.step(run)
        finally:
            self.step -= 1
            self.phase, self.loss = before, False

    def stage(self, depth: int) -> None:
        phase = self.dice.choice(("prefill", "decode", "data"))
        outer = self.phase
        number = context.enter_stage(context.PHASES.index(phase))
        assert context.PHASES[number] == outer
        self.phase = phase
        if "data" not in (phase, outer):
            self.loss = False
        try:
            self.many(depth)
        finally:
            context.enter_stage(number)
            if "data" not in (self.phase, outer):  # a step may have ended it
                self.loss = False
            self.phase = outer


@pytest.mark.parametrize("seed", range(40))
def test_L12_paths_and_phases_are_those_of_a_model(seed: int) -> None:
    program = Program(seed)
    program.paths.append("")
    with contextlib.suppress(ZeroDivisionError):
        for _ in range(4):
            program.many(5)
    assert program.looked > 10
    context.forget_loss()
    assert (context.get_phase(), context.get_module()) == (0, 0)
