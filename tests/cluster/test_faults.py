"""R4: whenever a worker is ended or stopped, there are the right numbers or one error, and no others.

``pytest tests/cluster/test_faults.py --faults 1000`` is the whole; a fault takes two or three seconds.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.cluster.link import Link
from mindtorch.cluster.ray_executor import RayExecutor

from ..executors import using

LAZY = "remote_accelerator:0"
STEPS = 25
HOW = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)


def training(device: str, losses: list[float]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    torch.manual_seed(2)
    for step in range(STEPS):
        x = torch.rand(16, 8, device=device)
        loss = net(x).square().mean()
        optimizer.zero_grad()
        if step % 3 == 0:
            losses.append(loss.item())
        loss.backward()
        optimizer.step()
        if step % 3 == 1:
            losses.append(loss.item())
        time.sleep(0.01)  # or it is over before anything happens to it
    return [p.detach().cpu() for p in net.parameters()]


def test_R4_faults_at_any_time_give_the_right_numbers_or_one_error(link: Link, pytestconfig: pytest.Config) -> None:
    expected_losses: list[float] = []
    expected = training("cpu", expected_losses)
    ends: dict[str, int] = {"rebuilt": 0, "lost": 0, "over before": 0}
    first = pytestconfig.getoption("--first-fault")
    for seed in range(first, first + pytestconfig.getoption("--faults")):
        choose = random.Random(seed)
        lineage = choose.choice((0, 1 << 24))
        executor = RayExecutor(link, lineage=lineage)
        process, how = executor.stats["process"], choose.choice(HOW)
        blow = threading.Timer(choose.uniform(0, 0.6), lambda process=process, how=how: os.kill(process, how))
        losses: list[float] = []
        try:
            with using(executor):
                blow.start()
                try:
                    found = training(LAZY, losses)
                except mindtorch.MaterializationError as error:
                    assert not lineage and str(error).startswith("session lost: the worker (process"), (seed, error)
                    assert losses == expected_losses[: len(losses)], seed
                    ends["lost"] += 1
                else:
                    assert losses == expected_losses, seed
                    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), seed
                    ends["rebuilt" if executor.stats.get("rebuilt") else "over before"] += 1
        finally:
            blow.cancel()
            blow.join()
            executor.close()
    print(ends)
