"""Executors for the length of a block, and a worker by itself."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

import mindtorch
from mindtorch.engine.remote import division, hello
from mindtorch.engine.remote.placing import PlacingExecutor
from mindtorch.engine.remote.pricing import Work
from mindtorch.engine.remote.wire import dumps
from mindtorch.engine.remote.worker import Worker

AnExecutor = TypeVar("AnExecutor", bound=mindtorch.Executor)


@contextmanager
def using(executor: AnExecutor) -> Iterator[AnExecutor]:
    """``executor`` is the one in use, and then again the one that was."""
    previous = mindtorch.set_executor(executor)
    try:
        yield executor
    finally:
        mindtorch.set_executor(previous)


def greeted(**given: Any) -> Worker:
    """A worker that has had its hello."""
    worker = Worker(**given)
    worker.handle(dumps([("hello", tuple(hello.this_side()))]))
    return worker


def mortal(k: int, gone: Collection[int]) -> mindtorch.RemoteExecutor:
    """An executor whose worker is no more once its number is ``gone``."""
    answers = Worker("cpu").handle

    def send(message: bytearray) -> bytearray:
        if k in gone:
            raise ConnectionError(f"worker {k} was ended")
        return answers(message)

    return mindtorch.RemoteExecutor(send)


def is_held(lock: Any) -> bool:
    """Has a thread a reentrant lock for longer than anything takes that is not broken?"""
    until = time.monotonic() + 2
    while not repr(lock).startswith("<unlocked"):
        if time.monotonic() > until:
            return True
        time.sleep(0.01)
    return False


class Anywhere(PlacingExecutor):
    """Every record runs on a worker that is drawn, some on others, too."""

    dice = random.Random(0)

    def _division(self, work: Work, begins: dict[int, torch.Tensor]) -> division.Division:
        places = [self.dice.randrange(len(self.executors)) for _ in work.records]
        copies = work.copies if self.dice.randrange(4) else None  # where memory is short, there are none
        twice: dict[int, set[int]] = {}
        if work.repeatable is not None and copies is not None:
            for k in sorted(work.repeatable.positions):
                if self.dice.randrange(2) and not work.records[k][3]:
                    drawn = {self.dice.randrange(len(self.executors)) for _ in range(2)}
                    twice[k] = drawn - {places[k]}
        twice = {k: others for k, others in twice.items() if others}
        return division.parted(work.records, places, work.homes, self._generator, copies, work.stays, {}, twice)

    def _plan(self, work: Work, segment: Any) -> None:
        """There is none."""

    def _parts(self, segment: Any) -> Iterable[tuple[int, Any]]:
        self._workers = {}
        return self._divided(segment)
