"""What a measured profile and an estimate have in common: the model, the stages of the run, its iterations."""

from __future__ import annotations

from typing import Any, NamedTuple

from mindtorch._ext import context
from mindtorch._ext.timeline import Timeline
from mindtorch.profile.model import ModelBook
from mindtorch.profile.npu_ops import NpuOps
from mindtorch.profile.targets import Target


class ThreadWork(NamedTuple):
    """What threads of one kind did: how many they were, their ops, and the time within ops."""

    threads: int
    ops: int
    ns: int

    def plus(self, timeline: Timeline) -> ThreadWork:
        return ThreadWork(self.threads + 1, self.ops + timeline.n_ops, self.ns + timeline.op_ns)


class Run:
    """A program's run in stages. Where it is in one is told in the program's own measure: nanoseconds, calls."""

    def __init__(self, stage: str, target: Target | None, warmup: int, steps: int | None) -> None:
        """Raises ValueError: warmup < 0 or steps < 1."""
        if warmup < 0 or (steps is not None and steps < 1):
            name = type(self).__name__
            raise ValueError(f"[{name}] expected warmup >= 0 and steps >= 1, got {warmup} and {steps}")
        self.target, self.warmup, self.steps = target, warmup, steps
        self.interrupted = False
        self.exit_code = 0
        self.book = ModelBook()
        self.marks: list[int] = []  # ends of iterations
        #: By stage: (rows or their table, interception in ns, entries by module, peak bytes).
        self.parts: dict[str, tuple[Any, int, dict[int, int], int]] = {}
        self.peaks: dict[int, int] = {}
        self.phase_peaks: list[int] = [0] * len(context.PHASES)
        self.places: dict[str, Any] = {}
        self.npu: NpuOps | None = None  # an estimate runs nothing there
        self.children: dict[str, int] = {}  # processes started that may have run torch
        self.compiled = 0  # functions
        self.frozen_ns = 0
        self._stage = stage
        self._announced = False

    def _announce(self, at: int) -> None:
        """The program says by itself that an iteration begins: from now on nothing is guessed."""
        if not self._announced:
            self._announced, self.warmup, self.steps = True, 0, None
        if self._stage in ("warmup", "main"):
            self.marks.append(at)
            self.warmup += self._stage == "warmup"

    def thread_work(self) -> list[tuple[str, ThreadWork]]:
        """What each kind of thread did, where that is known."""
        return []

    def _first_module(self) -> str:
        """The stage that begins with the first call of a module."""
        return "warmup" if self.warmup else "main"

    def _iteration_ended(self, at: int) -> str:
        """The stage that begins with the end of an iteration: mostly the one that it is in already."""
        self.marks.append(at)
        if self._stage == "warmup" and len(self.marks) == self.warmup:
            return "main"
        if self._stage == "main" and self.steps is not None and len(self.marks) == self.warmup + self.steps:
            return "rest"
        return self._stage
