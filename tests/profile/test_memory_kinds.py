"""C2: what a measured run's memory was for, over time: at each moment told, the kinds sum to what was live."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mindtorch.profile import Profiler
from mindtorch.profile.report.page import page_data

Program = Callable[[], object]


def training(optimizer: type[torch.optim.Optimizer], steps: int = 3, **options: Any) -> Program:
    def run() -> None:
        net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        steps_of = optimizer(net.parameters(), lr=0.1, **options)
        for _ in range(steps):
            steps_of.zero_grad()
            net(torch.randn(32, 64)).square().mean().backward()
            steps_of.step()

    return run


def evaluation() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    with torch.no_grad():
        for _ in range(4):
            net(torch.randn(2, 3, 16, 16))


def writes() -> None:
    held = [torch.ones(1000)]
    for _ in range(5):
        held.append(held[-1][:500].clone())
        held[-1].add_(1).resize_(2000)
        del held[0]


def threads() -> None:
    def work() -> None:
        for _ in range(20):
            torch.ones(1000).mul(2.0)

    running = [threading.Thread(target=work) for _ in range(3)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def recorded() -> None:
    x = torch.ones(1000, device="remote_accelerator")
    for _ in range(5):
        x = x * 2.0 + 1.0
    x.tolist()


def sparse() -> None:
    x = torch.eye(200).to_sparse()
    for _ in range(3):
        torch.sparse.mm(x, torch.ones(200, 50))


PROGRAMS = {
    "AdamW": training(torch.optim.AdamW),
    "SGD with momentum": training(torch.optim.SGD, momentum=0.9),
    "fused Adam": training(torch.optim.Adam, fused=True),
    "evaluation": evaluation,
    "writes": writes,
    "threads": threads,
    "recorded": recorded,
    "sparse": sparse,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("warmup", [0, 1])
def test_C2_kinds_of_memory_over_time_sum_to_what_was_live(name: str, warmup: int) -> None:
    before = torch.ones(100)  # which the profile did not see being made
    with Profiler(warmup=warmup) as profiler:
        PROGRAMS[name]()
        before.add(1)
    memory = profiler.report()["memory"]
    line = memory["timeline"]
    assert len(line["bytes"]) == len(line["positions"]) > 0
    assert [sum(parts) for parts in zip(*line["categories"].values(), strict=True)] == line["bytes"]
    assert all(size >= 0 for sizes in line["categories"].values() for size in sizes)


def test_C2_kinds_over_time_are_at_the_peak_what_the_peak_is_made_of() -> None:
    with Profiler() as profiler:
        training(torch.optim.AdamW)()
    memory = profiler.report()["memory"]
    line = memory["timeline"]
    at = max(range(len(line["bytes"])), key=line["bytes"].__getitem__)
    assert line["bytes"][at] == memory["peak_bytes"]
    assert {name: sizes[at] for name, sizes in line["categories"].items() if sizes[at]} == memory["categories"]


def test_C2_a_storage_is_there_from_the_op_that_makes_it_to_the_op_before_its_end() -> None:
    with Profiler(whole=True) as profiler:
        a = torch.ones(1000)  # 0
        b = a + 1  # 1
        del a
        c = b + 1  # 2: without a
        del b
        c.add_(1)  # 3: without b
    line = profiler.report()["memory"]["timeline"]
    assert line["positions"] == [0, 1, 2, 3] and line["bytes"] == [4000, 8000, 8000, 4000]
    assert line["categories"] == {"inputs and other": [4000, 8000, 8000, 4000]}


def test_C2_each_step_has_its_gradients_and_activations_while_they_are_there() -> None:
    with Profiler(whole=True) as profiler:
        net = nn.Linear(1000, 1000, bias=False)
        for _ in range(2):
            loss = net(torch.ones(1, 1000)).relu().sum()
            loss.backward()
            net.zero_grad()
    line = profiler.report()["memory"]["timeline"]
    gradients = line["categories"]["gradients"]
    assert set(gradients) == {0, 4_000_000}
    begins = [i for i in range(1, len(gradients)) if gradients[i] and not gradients[i - 1]]
    assert len(begins) == 2  # of each step, and gone between them
    assert set(line["categories"]["parameters"]) <= {0, 4_000_000}


def test_C2_without_room_for_all_storages_there_are_no_kinds_over_time() -> None:
    with Profiler(whole=True, max_events=40) as profiler:
        kept = [torch.ones(10) for _ in range(10)]
        for _ in range(60):
            torch.ones(10).detach()
        del kept
    assert profiler.collector.balance.lives() is None
    report = profiler.report()
    assert "categories" not in report["memory"]["timeline"]
    assert page_data(report, profiler.recording())["report"]["memory"]["peak_bytes"] == report["memory"]["peak_bytes"]


def test_C2_as_many_storages_as_there_is_room_for_are_known() -> None:
    """The limit is that of the log of events."""
    for n, known in ((40, True), (41, False)):
        with Profiler(whole=True, max_events=40) as profiler:
            for _ in range(n):
                torch.empty(10)
        assert (profiler.collector.balance.lives() is not None) == known, n
