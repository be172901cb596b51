"""`Loop`: watches a program for the end of so many of its iterations, where nothing is measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from mindtorch._ext.collect import Collector
from mindtorch.engine import semantics
from mindtorch.profile.measure.observed_run import Run, between


class Loop(Run):
    """Within the block, iterations are counted as a profile counts them; of this thread's own.

    ended: called once, when it is certain that `steps` iterations are over.
    position: where the program is, in whatever measure; `end` is where it was when they ended, None if it ended before.
    """

    def __init__(self, steps: int, position: Callable[[], int], ended: Callable[[], object]) -> None:
        super().__init__("init", None, 0, steps)
        self._position, self._ended = position, ended
        self._begun = 0
        self._frozen = False
        self.collector: Collector = Collector(_never, _never, torch.Tensor, self._on_mark, 0)

    def _begin(self, undo: ExitStack) -> None:
        undo.enter_context(between(semantics.install, semantics.uninstall))
        undo.callback(self.collector.stop)
        self.collector.start()

    @property
    def end(self) -> int | None:
        return self._begun if self._stage == "rest" else None

    def module_order(self) -> dict[int, int]:
        return self.collector.order

    def _on_mark(self, kind: str, at: int, which: int) -> None:
        if not self._frozen:
            self._follow(kind, at, which)

    def _begin_stage(self, name: str, at: int) -> None:
        self._stage, self._begun = name, self._position()

    def _freeze(self) -> None:
        self._frozen = True
        self._ended()


def _never(*_: Any) -> Any:
    raise AssertionError("no op is handed to a collector that is no mode")
