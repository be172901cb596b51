"""S13: a small training step whose worker is an actor of a Ray cluster on this machine.

Beside it, in the same run: the same step in this process, and a call of an actor that does nothing, by Ray alone, in a
process of its own as Ray's documentation has it. Ray's part of a step is such a call; what is more is ours.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from typing import NamedTuple

from .timing import LAZY, mindtorch, torch

HERE = importlib.util.find_spec("ray") is not None

_EMPTY = """
import json, logging, tempfile, time, os, ray
with tempfile.TemporaryDirectory(prefix="genie-", dir="/tmp") as folder:
    ray.init(address="local", num_cpus=1, num_gpus=0, object_store_memory=100 << 20, include_dashboard=False,
             log_to_driver=False, logging_level=logging.CRITICAL, _temp_dir=folder + "/r")
    class Empty:
        def call(self, message):
            return message
    actor = ray.remote(Empty).remote()
    message = b"x" * 2000
    best = 1.0
    for _ in range(40):
        began = time.perf_counter()
        for _ in range(50):
            ray.get(actor.call.remote(message))
        best = min(best, (time.perf_counter() - began) / 50)
    print(json.dumps(best))
    ray.shutdown()
"""


class Times(NamedTuple):
    """Seconds of a step on Ray, of one in this process, and of an empty call."""

    ray: float
    here: float
    call: float

    @property
    def aim(self) -> float:
        return self.here + 1.5 * self.call + 0.5e-3


def empty_call() -> float:
    """Seconds, the least of some rounds."""
    variables = {
        **os.environ,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "0" * 64,
    }
    ran = subprocess.run([sys.executable, "-c", _EMPTY], env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(ran.stdout.splitlines()[-1]))


class Steps:
    """Of a small model by AdamW; the loss is read at the end of each."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 64), torch.nn.ReLU()] * 2
        self.net = torch.nn.Sequential(*layers, torch.nn.Linear(64, 10)).to(LAZY)
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.x, self.y = torch.randn(32, 64).to(LAZY), torch.randint(10, (32,)).to(LAZY)

    def run(self, n: int) -> float:
        """Seconds a step."""
        began = time.perf_counter()
        for _ in range(n):
            loss = torch.nn.functional.cross_entropy(self.net(self.x), self.y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            loss.item()
        return (time.perf_counter() - began) / n


def best(rounds: int = 30, n: int = 20) -> float:
    steps = Steps()
    steps.run(n)
    return min(steps.run(n) for _ in range(rounds))


def training() -> Times:
    """Here and on Ray in turn would move all values each time; so one after the other, twice."""
    here = best()
    mindtorch.connect(workers=1, device="cpu")
    try:
        there = best()
    finally:
        mindtorch.disconnect()
    return Times(there, min(here, best()), empty_call())


class Ray:
    def setup(self) -> None:
        if not HERE:
            raise NotImplementedError("Ray is not installed")

    def track_S13_step(self) -> float:
        return training().ray * 1e3

    track_S13_step.unit = "ms"  # type: ignore[attr-defined]
