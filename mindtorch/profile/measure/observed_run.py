"""What a measured profile and an estimate have in common: the model, the stages of the run, its iterations."""

from __future__ import annotations

import functools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from mindtorch._ext import context, location
from mindtorch.base.import_hooks import without_collecting
from mindtorch.engine.semantics import generation, modules, phases
from mindtorch.engine.semantics.owners import first_parameter
from mindtorch.profile.measure import peak
from mindtorch.profile.measure.iterations import Iterations, OneLoop
from mindtorch.profile.measure.line_watch import LineWatch
from mindtorch.profile.measure.parameter_counts import ModelBook
from mindtorch.profile.measure.sampling import Sampling
from mindtorch.profile.report import times
from mindtorch.profile.report.module_names import Names
from mindtorch.profile.report.recording import Parameters, Recording, Stage

if TYPE_CHECKING:
    from mindtorch.profile.cost.targets import Target


def check_iterations(who: str, warmup: int, steps: int | None, unlimited: bool = False) -> None:
    """TypeError and ValueError: both are numbers, warmup >= 0 and steps >= 1. unlimited: steps may be None."""
    if not isinstance(warmup, int) or not (isinstance(steps, int) or (unlimited and steps is None)):
        raise TypeError(f"[{who}] expected whole numbers for warmup and steps, got {warmup!r} and {steps!r}")
    if warmup < 0 or (steps is not None and steps < 1):
        raise ValueError(f"[{who}] expected warmup >= 0 and steps >= 1, got {warmup} and {steps}")


@contextmanager
def between(begin: Callable[..., object], end: Callable[..., object], *args: Any) -> Iterator[None]:
    """``begin(*args)``, and ``end(*args)`` after the block."""
    begin(*args)
    try:
        yield
    finally:
        end(*args)


_Self = TypeVar("_Self", bound="Run")


class Run:
    """A program's run in stages. Where it is in one is told in the program's own measure: nanoseconds, calls."""

    def __init__(
        self, stage: str, target: Target | None, warmup: int, steps: int | None, lines: bool = False, hits: bool = False
    ) -> None:
        check_iterations(type(self).__name__, warmup, steps, unlimited=True)
        self.target, self.warmup, self.steps = target, warmup, steps
        self.lines = LineWatch(lines, hits)
        self.generated = generation.Generated()
        self.sampling = Sampling()
        self.optimizers: dict[type, bool] = {}  # their classes, and whether torch's fused kernels take the parameters
        self._twice, self._handed = phases.twice(), location.handed_on()
        self._in_constructors = context.trained_in_constructors()
        # By stage and optimizer, how many steps began.
        self.stepped: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.interrupted = False
        self.exit_code = 0
        self._marking = threading.RLock()  # a program may run its iterations in any of its threads, or in several
        self.book = ModelBook()
        self.iterations = Iterations()
        self._loop = OneLoop()
        self.on_iteration: Callable[[int], None] | None = None  # told how many have ended, as one does
        self.marks = self.iterations.ends
        self.registered = peak.Registered()
        self.stages: dict[str, Stage] = {}
        self.peaks: dict[int, int] = {}
        self.phase_peaks: list[int] = [0] * len(context.PHASES)
        self.children: dict[str, int] = {}  # processes started that may have run torch
        self.frozen_ns = 0
        self._stage = stage
        self._before = ""  # the stage that the last end of an iteration ended, if it did
        self._transforms: frozenset[int] | None = None  # while none but they were called: the parameters made before
        self._announced = False
        self._told: list[tuple[int, int]] = []  # start and end of the iterations reported, where they are announced
        self._last = 0  # when the program announced something last

    def __enter__(self: _Self) -> _Self:
        with ExitStack() as undo:  # of a run that fails to begin, or is interrupted meanwhile, nothing stays
            self._begin(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.interrupted = self.interrupted or (kind is not None and issubclass(kind, KeyboardInterrupt))
        self._undo.close()

    def _begin(self, undo: ExitStack) -> None:
        """What ends it, the last first, is on `undo`."""
        raise NotImplementedError

    def _announce(self, at: int) -> None:
        """The program says by itself that an iteration begins: from now on nothing is guessed."""
        if not self._announced:
            self._announced, self.warmup, self.steps = True, 0, None
        if self._stage in ("warmup", "main"):
            self.marks.append(at)
            self.warmup += self._stage == "warmup"
            self._tell()
        if self._stage == "main":
            self._told.append((self._last, at))
        self._last = at

    def _spans(self, since: int) -> list[tuple[int, int]]:
        """Start and end of the iterations reported; since: when the first of them began."""
        return self._told if self._announced else times.spans(self.marks, max(since, self.iterations.began))

    @functools.cached_property
    def names(self) -> Names:
        """What the report calls modules; of a run that has ended."""
        return Names(self.module_order())

    def recording(self) -> Recording:
        """What was seen, of a run that has ended."""
        raise NotImplementedError

    def _saw_root(self, root: torch.nn.Module, path: int) -> None:
        with self._marking:
            self.book.add(root, path)
            self.sampling.registered = self.registered.modules_made
            self.sampling.saw_root(root, path)
            self._take([*self.registered.roles(made_only=True), *peak.of_model(root)])

    def _saw_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """One that is about to step for the first time."""
        with self._marking:
            self.book.trains(optimizer)
            self._know_optimizer(optimizer)

    def _know_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        real = all(p.is_floating_point() for group in optimizer.param_groups for p in group["params"])  # not complex
        self.optimizers[type(optimizer)] = self.optimizers.get(type(optimizer), True) and real
        self._take(peak.of_optimizer(optimizer))

    def _saw_what_is_there(self) -> None:
        """Models and optimizers from before the run."""
        for root, path in modules.roots():
            self._saw_root(root, path)
        for optimizer in phases.optimizers():
            self._know_optimizer(optimizer)

    def _ends(self, stage: str) -> None:
        """What was counted since the last call belongs to that stage."""
        self.lines.ends(stage)
        self.generated.ends(stage)

    def _noted(self) -> dict[str, Any]:
        """Of the recording."""
        return {"chains": self.lines.chains, "hits": self.lines.hits(), "generated": self.generated.facts,
                "samples": self.sampling.samples, "optimizers": self.optimizers,
                "stepped": self.stepped, "differentiates_twice": phases.twice() > self._twice,
                "loops_aside": len(self._loop.aside),
                "handed_on": location.handed_on() - self._handed}  # fmt: skip

    def _take(self, roles: list[peak.Role]) -> None:
        for held, what in roles:
            for t in held:
                self._hold(t)  # it may have been made before
            peak.say(held, what)

    def _hold(self, t: torch.Tensor) -> None:
        """Count its storage from now on, if that was not known yet."""
        raise NotImplementedError

    def report(self, **facts: Any) -> dict[str, Any]:
        """The report as a plain dict (see `build_report`); `facts` replace top-level entries, as ``command=[...]``."""
        from mindtorch.profile.report.build import build_report  # with all patterns: a run of nothing needs none

        with without_collecting():
            return build_report(self.recording(), **facts)

    def _parameters(self) -> Parameters:
        called = [stage for name, stage in self.stages.items() if name in ("warmup", "main")] if self._announced else []
        book = self.book
        book.forget_all_but({path for stage in called or self.stages.values() for path in stage.entries})
        return Parameters(book.total()[0], book.trainable(), book.own(), book.own(trainable=True),
                          book.models(self.names))  # fmt: skip

    def module_order(self) -> dict[int, int]:
        """{path id of a module that was called: how many were first called before it}."""
        raise NotImplementedError

    def _begin_stage(self, name: str, at: int) -> None:
        """What follows `at` belongs to that stage."""
        raise NotImplementedError

    def _freeze(self) -> None:
        """Record nothing more: as many iterations as asked for have ended."""
        raise NotImplementedError

    def _follow(self, kind: str, at: int, which: int) -> None:
        """A mark of the program's: an outermost call, a backward pass or an optimizer's step, in this thread."""
        if not self._announced:
            self._guess(kind, at, which)
        if kind == "step begins":
            self.stepped[self._stage][which] += 1

    def _guess(self, kind: str, at: int, which: int) -> None:
        """What it says of stages and iterations."""
        loop, thread, apart = self.iterations, threading.get_ident(), len(self._loop.aside)
        kind = "call" if kind == "enter" and not torch.is_grad_enabled() else kind
        belongs = self._loop.counts(kind, which, thread)
        if len(self._loop.aside) > apart:
            loop.again(self._loop.told())
        if not belongs:
            return
        self._loop.note(thread, kind, which, at)
        if kind in ("enter", "call"):
            begins = self._stage in ("import", "init")
            if begins or self._transforms is not None:
                begins |= self._is_construction(which, begins)
            if begins:
                self._begin_stage("warmup" if self.warmup else "main", at)
            if kind == "call" and loop.calls(which, at):
                self._iteration_ended(at)
        elif kind == "backward":
            self._transforms = None
            if self._stage in ("import", "init") and context.trained_in_constructors() > self._in_constructors:
                self._begin_stage("warmup" if self.warmup else "main", at)  # what trains is no construction
            if loop.trains() and self._stage == "main" and self._before == "warmup":
                self._stage = "warmup"
        elif kind == "step begins":
            self._transforms = None
            said = loop.step_begins(which)
            if said == "late":
                self._iteration_ended(at)
            elif said == "confirmed" and self._stage == "rest":
                self._freeze()
            elif said == "withdrawn" and self._before:
                self._stage, self._before = self._before, ""  # nothing of the other one was taken yet
        elif kind == "step" and loop.step_ends(which, at):
            self._iteration_ended(at)

    def _is_construction(self, which: int, first: bool) -> bool:
        """Was what came before that call construction after all, though modules without parameters were called in it:
        transforms of images? So it was if the model was made after them."""
        path = context.path_root(which)
        parameter = next((first_parameter(root) for root, of in modules.roots() if of == path), None)
        if first:
            self._transforms = self.registered.made() if parameter is None else None
            return False
        if parameter is None:
            return False
        made, self._transforms = self._transforms or frozenset(), None
        if id(parameter) in made or self.iterations.ends:
            return False
        self._stage = "init"
        return True

    def _tell(self) -> None:
        if self.on_iteration is not None:
            self.on_iteration(len(self.marks))

    def _iteration_ended(self, at: int) -> None:
        self._tell()
        self._before = ""
        stage, ended = self._stage, len(self.marks)
        if stage == "warmup" and ended >= self.warmup:
            following = "main"
        elif stage == "main" and self.steps is not None and ended >= self.warmup + self.steps:
            following = "rest"
        else:
            return
        self._before = stage
        self._begin_stage(following, at)
        if following == "rest" and not self.iterations.tentative:
            self._freeze()
