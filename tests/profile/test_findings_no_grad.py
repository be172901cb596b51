"""C2: the finding that a model kept what a backward pass needs, where none came."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mindtorch.profile.estimate.estimator import Estimator
from tests.profile.test_findings import Report, estimated, ids, measured, the

HERE = Path(__file__)


def evaluate(learns: bool) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)))
    for _ in range(2):
        with torch.set_grad_enabled(learns):
            model(torch.ones(4096, 256))  # evaluates


def test_C2_finding_no_grad() -> None:
    report, other = measured(evaluate, True), measured(evaluate, False)
    row = the(report, "no-grad", "evaluates", file=HERE)
    peaks = [each["totals"]["peak_bytes"] for each in (report, other)]
    assert row["share"] * peaks[0] == pytest.approx(peaks[0] - peaks[1], rel=0.1)
    assert row["text"].startswith("models ran with gradients, but no backward pass followed")
    assert "no-grad" not in ids(other)


def test_C2_no_finding_where_no_grad_would_change_nothing() -> None:
    def one(learns: bool) -> None:
        with torch.set_grad_enabled(learns):
            nn.Linear(64, 4096)(torch.ones(4096, 64))

    report, other = measured(one, True), measured(one, False)
    assert report["totals"]["peak_bytes"] == other["totals"]["peak_bytes"] and "no-grad" not in ids(report)


def practise(device: str, learns: bool, rows: int = 4096) -> None:
    """Trains, and evaluates after each step."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256, device=device), nn.GELU()) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        model(torch.ones(64, 256, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.set_grad_enabled(learns):
            float(model(torch.ones(rows, 256, device=device)).sum())  # evaluates between steps


@pytest.mark.parametrize("mode", ["measured", "estimated"])
def test_C2_finding_no_grad_of_evaluations_of_a_program_that_trains(mode: str) -> None:
    def run(*args: Any) -> Report:
        return measured(practise, "cpu", *args) if mode == "measured" else estimated(practise, *args)

    report, other = run(True), run(False)
    row = the(report, "no-grad", "evaluates between steps", file=HERE)
    peaks = [each["memory"]["peak_bytes"] for each in (report, other)]
    held = report["memory"].get("peak_device_bytes", peaks[0])
    assert row["share"] * held == pytest.approx(peaks[0] - peaks[1], rel=0.1)
    assert "no-grad" not in ids(other)
    assert "no-grad" not in ids(run(True, 48)), "the peak is that of training"


def compare() -> None:
    """Several calls of a model, and one backward pass for all of them."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)))
    for _ in range(3):
        first, second = model(torch.ones(4096, 256)), model(torch.zeros(4096, 256))
        (first - second).square().sum().backward()
        model.zero_grad()


def collect() -> None:
    """Trains a little, then keeps what a model says of much."""
    practise("cpu", False, 64)
    model = nn.Linear(256, 1024)
    with torch.no_grad():
        kept = [model(torch.ones(1024, 256)) for _ in range(16)]
    del kept


@pytest.mark.parametrize("program", [compare, collect])
def test_C2_no_finding_where_a_backward_pass_comes_or_gradients_are_off(program: Callable[[], None]) -> None:
    report = measured(program)
    assert report["memory"]["kept_in_vain_bytes"] == 0 and "no-grad" not in ids(report)
    with Estimator() as seen:
        program()
    assert seen.report()["memory"]["kept_in_vain_bytes"] == 0
