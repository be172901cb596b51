"""C4: solvers that choose their steps by errors that nobody knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from mindtorch.profile.estimate import assumptions, waiting_loops
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.profile.estimate.estimator import Estimator


@pytest.fixture
def session() -> Iterator[None]:
    with estimating(Accelerator("Test GPU", 10**9)):
        yield


def unknown() -> torch.Tensor:
    return torch.randn(5, device="cuda").norm()


def integrate(f: Callable[[torch.Tensor], torch.Tensor], y: torch.Tensor, end: float, tolerance: float = 1e-3) -> int:
    """An adaptive Heun's method, with the first step, the control of the others and the assertions of torchdiffeq's."""
    t, end_time, steps = torch.zeros((), device="cuda"), torch.tensor(end, device="cuda"), 0
    scale = tolerance + y.abs() * tolerance
    first, slope = (y / scale).norm(), (f(y) / scale).norm()
    h = torch.tensor(1e-6, device="cuda") if first < 1e-5 else 0.01 * first / slope
    dt = torch.min(100 * h, (0.01 / max(first, slope)) ** (1 / 3)).abs()
    while end_time > t:
        assert t + dt > t, f"underflow in dt {dt.item()}"
        k1 = f(y)
        k2 = f(y + dt * k1)
        ratio = (dt * (k2 - k1) / (tolerance + tolerance * y.abs())).norm()
        if ratio <= 1:
            t, y = t + dt, y + dt * (k1 + k2) / 2
        factor = torch.tensor(10.0, device="cuda")
        if ratio != 0:
            factor = torch.min(factor, torch.max(0.9 / ratio ** (1 / 3), factor / 50))
        dt, steps = dt * factor, steps + 1
    return steps


def test_C4_a_solver_that_chooses_its_steps_comes_to_its_end() -> None:
    """The sum of a known time and an unknown step was as unknown: no more than the time before, and an error."""
    with Estimator() as estimator:
        model = nn.Linear(4, 4).cuda()
        assert 3 <= integrate(lambda y: model(y).tanh(), torch.randn(2, 4, device="cuda"), 1.0) <= 9
    line = integrate.__code__.co_firstlineno + 7
    assert (
        f"assumed values decided how many iterations loops ran (test_adaptive_solvers.py:{line}): a run may differ"
    ) in estimator.report()["warnings"]
    assert waiting_loops.ended() == []


def test_C4_numbers_go_on_as_they_would_from_the_assumption(session: None) -> None:
    with assumptions.instead(4):
        x, two = unknown(), torch.tensor(2.0, device="cuda")
        for found, expected in {
            x + 1: 5, x - two: 2, 1 / x: 0.25, x**0.5: 2, x.sqrt() * two: 4, (x / two).reciprocal(): 0.5, -x + 8: 4,
            torch.max(x, two): 4, torch.min(x, two): 2, x.clamp(max=3): 3, two.div_(x) * 2: 1,
            (two - 1 / x).square(): 0.0625, x.double() + 1: 5, (x + 1).view(1)[0]: 5,
        }.items():  # fmt: skip
            assert found.item() == pytest.approx(expected) and bool(found > expected - 0.01) and found < expected + 0.01


def test_C4_a_number_that_the_program_reads_is_positive_and_finite(session: None) -> None:
    """It divides by it, and takes its logarithm."""
    x = unknown()
    for found in (x - 1, x - x, (x - x).reciprocal(), (x - 1).sqrt()):
        assert found.item() == pytest.approx(1e-12) and math.isfinite(math.log(found.item()))
    assert x - 1 < -0.5
