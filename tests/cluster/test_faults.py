"""R4: whenever a worker is ended or stopped, there are the right numbers or one error, and no others.

``pytest tests/cluster/test_faults.py --faults 1000`` is the whole; a fault takes two or three seconds.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
import time

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.cluster.broker_client import Link
from mindtorch.cluster.ray_executor import RayExecutor

from ..executors import using

FIRST, SECOND = "remote_accelerator:0", "remote_accelerator:1"
STEPS = 25
HOW = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
LOST = r"session lost: the worker \(process|.*values from another worker did not arrive"


def training(first: str, second: str, losses: list[float]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2)).to(first)
    head = nn.Linear(32, 2).to(second)
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    torch.manual_seed(2)
    for step in range(STEPS):
        x = torch.rand(16, 8, device=first)
        loss = head(body(x).to(second)).square().mean()
        optimizer.zero_grad()
        if step % 3 == 0:
            losses.append(loss.item())
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        if step % 3 == 1:
            losses.append(loss.item())
        time.sleep(0.01)  # or it is over before anything happens to it
    return [p.detach().cpu() for p in parameters]


def test_R4_faults_at_any_time_give_the_right_numbers_or_one_error(link: Link, pytestconfig: pytest.Config) -> None:
    """One worker, or two with copies between them, that can be rebuilt or cannot; one fault, or two."""
    expected_losses: list[float] = []
    expected = training("cpu", "cpu", expected_losses)
    ends: dict[str, int] = {"rebuilt": 0, "lost": 0, "lost twice": 0, "over before": 0}
    first = pytestconfig.getoption("--first-fault")
    for seed in range(first, first + pytestconfig.getoption("--faults")):
        choose = random.Random(seed)
        workers, faults = choose.choice((1, 2)), choose.choice((1, 1, 2))
        lineages = [choose.choice((0, 1 << 24, 1 << 24)) for _ in range(workers)]
        executors = [RayExecutor(link, lineage=lineage) for lineage in lineages]
        blows = [
            threading.Timer(choose.uniform(0, 0.9), strike, (choose.choice(executors), choose.choice(HOW)))
            for _ in range(faults)
        ]
        losses: list[float] = []
        try:
            with using(mindtorch.SpreadExecutor(executors)) as executor:
                for blow in blows:
                    blow.start()
                try:
                    found = training(FIRST, SECOND if workers == 2 else FIRST, losses)
                except mindtorch.MaterializationError as error:
                    assert (faults == 2 or not all(lineages)) and re.match(LOST, str(error)), (seed, error)
                    assert losses == expected_losses[: len(losses)], seed
                    ends["lost twice" if all(lineages) else "lost"] += 1
                else:
                    assert losses == expected_losses, seed
                    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), seed
                    ends["rebuilt" if executor.stats.get("rebuilt") else "over before"] += 1
        finally:
            for blow in blows:
                blow.cancel()
                blow.join()
            for worker in executors:
                worker.close()
            told = False
            while not told:  # what was lost besides is for this run, too
                with contextlib.suppress(mindtorch.MaterializationError):
                    torch.ones(1, device=FIRST).item()
                    told = True
    print(ends)


def strike(worker: RayExecutor, how: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the other fault has ended it
        os.kill(worker.stats["process"], how)
