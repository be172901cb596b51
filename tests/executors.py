"""Executors for the length of a block, and a worker by itself."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import mindtorch
from mindtorch._ext.divided import facts
from mindtorch.engine.remote import division, hello, placing
from mindtorch.engine.remote.placing import PlacingExecutor
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
    worker.handle(dumps([("hello", tuple(hello.here()))]))
    return worker


def is_held(lock: Any) -> bool:
    """Has a thread a reentrant lock for longer than anything takes that is not broken?"""
    until = time.monotonic() + 2
    while not repr(lock).startswith("<unlocked"):
        if time.monotonic() > until:
            return True
        time.sleep(0.01)
    return False


class Anywhere(PlacingExecutor):
    """Every record runs on a worker that is drawn."""

    dice = random.Random(0)

    def _divided(self, segment: Any) -> Iterator[tuple[int, Any]]:
        records, begins, stays = placing._of_storages(*facts(segment))
        work = self._work(records, begins, stays)
        places = [self.dice.randrange(len(self.executors)) for _ in records]
        for part in division._parted(records, places, dict(work.homes), self._generator).parts:
            self._draws = part.draws
            yield part.worker, segment.part(part.positions)

    def _parts(self, segment: Any) -> Iterable[tuple[int, Any]]:
        self._workers = {}
        return self._divided(segment)
