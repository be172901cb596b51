"""R1: how much of a worker's time the program does not wait for, as it records on meanwhile.

The worker is simulated: it runs every message in this process, and a clock that leaves this out says when a worker of
its own would have had the reply ready.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from .timing import LAZY, mindtorch, torch

from mindtorch.engine.remote.loopback import LoopbackExecutor  # isort: skip - after torch's threads are set

STEPS = 50


class Times(NamedTuple):
    """Seconds: what the program did, what the worker did, and how long both took together."""

    recording: float
    execution: float
    together: float

    @property
    def ratio(self) -> float:
        return self.together / (self.recording + self.execution)


class Simulated(LoopbackExecutor):
    """A worker that takes ``slower`` times as long as it does here, at a distance of ``latency`` seconds for the way
    there and back.
    """

    slower = 1.0
    latency = 0.0

    def __init__(self) -> None:
        super().__init__()
        self._handle = self._send
        self._send, self._post = self._reply_to, self._begin  # type: ignore[assignment]
        self._replies: dict[int, tuple[object, float]] = {}
        self.clear()

    def clear(self) -> None:
        self._here = self._waited = self._ready = self.execution = 0.0
        self._began = time.perf_counter()

    def _now(self) -> float:
        """The time of a program whose worker is elsewhere."""
        return time.perf_counter() - self._began - self._here + self._waited

    def _begin(self, message: bytearray) -> None:
        at, began = self._now(), time.perf_counter()
        reply = self._handle(message)
        took = time.perf_counter() - began
        self._here += took
        self.execution += took * self.slower
        self._ready = max(self._ready, at + self.latency / 2) + took * self.slower
        self._replies[id(message)] = reply, self._ready + self.latency / 2

    def _reply_to(self, message: bytearray) -> object:
        if id(message) not in self._replies:
            self._begin(message)
        reply, ready = self._replies.pop(id(message))
        self._waited += max(0.0, ready - self._now())
        return reply

    def times(self) -> Times:
        together = self._now()
        return Times(together - self._waited, self.execution, together)


def steps(read: str, n: int = STEPS) -> None:
    """Training steps of a small model that look at their loss before the backward pass, at the step's end, or never."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU()] * 4
    net = torch.nn.Sequential(*layers, torch.nn.Linear(64, 10)).to(LAZY)
    optimizer = torch.optim.AdamW(net.parameters())
    x, y = torch.randn(32, 64).to(LAZY), torch.randint(10, (32,)).to(LAZY)
    for _ in range(n):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        if read == "before":
            loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if read == "after":
            loss.item()


def training(read: str) -> Times:
    """Of `STEPS` steps with a worker that takes as long as recording does, or longer."""
    executor = Simulated()
    previous = mindtorch.set_executor(executor)

    def measured(n: int = STEPS) -> Times:
        executor.clear()
        steps(read, n)
        executor.sync()
        return executor.times()

    try:
        measured(5)
        found = measured()
        executor.slower = max(1.0, found.recording / found.execution)
        return measured()
    finally:
        mindtorch.set_executor(previous)


def at_a_distance(latency: float, read: str = "after") -> tuple[float, int]:
    """Seconds and messages of a step whose worker is as fast as here, and so far away."""
    executor = Simulated()
    executor.latency = latency
    previous = mindtorch.set_executor(executor)
    try:
        steps(read, 5)
        executor.sync()
        executor.clear()
        before = executor.stats["messages"]
        steps(read)
        executor.sync()
        return executor.times().together / STEPS, round((executor.stats["messages"] - before) / STEPS)
    finally:
        mindtorch.set_executor(previous)


class Overlap:
    params = ("before", "after", "never")

    def track_R1_share_of_both(self, read: str) -> float:
        return training(read).ratio

    track_R1_share_of_both.unit = "of recording plus execution"  # type: ignore[attr-defined]
