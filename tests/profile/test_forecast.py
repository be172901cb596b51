"""C4: predicted beside measured: calls times the cost of a signature, which bound it is, the same sums everywhere."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets, work
from mindtorch.profile.cost.op_time import estimate
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.report.forecast import Forecast
from mindtorch.profile.report.rows import Row

H100 = targets.find("h100")


def job(flops: int | None, read: int = 0, written: int = 0, tag: str = "elementwise", **more: Any) -> work.Work:
    return work.Work(flops, 0, read, written, "float32", tag, **more)


def test_C4_about_is_never_below_the_bound():
    for work_ in (
        job(10**9, 10**9, 10**9),
        job(10**12, 10**6, tag="matmul", product=(1, 4096, 4096, 29802)),
        job(10, 40),
    ):
        cost = estimate(work_, H100)
        assert cost.least <= cost.seconds and cost.low < 0 < cost.high
    assert estimate(job(10**15, 1, tag="matmul"), H100).bound == "compute"
    assert estimate(job(10, 40), H100).bound == "launch"
    assert estimate(job(0, tag="view"), H100).seconds == estimate(job(0, tag="creation"), H100).seconds == 0
    assert estimate(job(None, 10**9), H100).bound == "memory"  # without a formula, its bytes are still known
    twice = dataclasses.replace(H100, model=lambda done, footprint: (done.bytes * 2.0, "memory"))
    assert estimate(job(1, 3), twice).seconds == 6.0


def test_C4_rows_are_calls_times_the_cost_of_their_signature():
    works = [None, job(10**12, tag="matmul"), job(10**6, 10**10), job(1, 4)]
    calls = [(0, 0, 0, 1, 9), (1, 0, 0, 1, 2), (2, 1, 0, 1, 3), (3, 1, 0, 2, 4), (2, 2, 0, 1, 1)]
    rows = [Row(*call, ns=5, nbytes=0) for call in calls]
    forecast = Forecast(H100, works)
    single = [0.0] + [estimate(w, H100).seconds for w in works[1:]]
    assert forecast.seconds(rows) == pytest.approx(2 * single[1] + 4 * single[2] + 4 * single[3])
    summary = forecast.summary(rows)
    assert summary["compute_s"] == pytest.approx(2 * single[1])
    assert summary["memory_s"] == pytest.approx(4 * single[2])
    assert summary["launch_s"] == pytest.approx(4 * single[3])
    assert summary["bytes"] == 4 * 10**10 + 16
    assert summary["intensity"] == (2 * 10**12 + 4 * 10**6 + 4) / summary["bytes"]
    assert summary["target"] == "h100"
    assert Forecast(H100, [None]).summary([])["intensity"] == 0


def test_C4_a_measured_profile_says_what_a_target_would_take(Net, check_sums):
    net, tokens = Net(), torch.arange(8).view(2, 4)
    with Profiler(target=H100) as profiler:
        net(tokens).sum().backward()
    report = profiler.report()
    check_sums(report)
    total = report["totals"]["predicted_s"]
    assert total > 0
    for table, key in (("ops", "predicted_s"), ("phases", "predicted_s"), ("modules", "self_predicted_s")):
        assert sum(row[key] for row in report[table]) == pytest.approx(total), table
    roots = [row for row in report["modules"] if row["depth"] == 0]
    assert sum(row["predicted_s"] for row in roots) == pytest.approx(total)
    roofline = report["roofline"]
    assert sum(roofline[f"{bound}_s"] for bound in ("compute", "memory", "launch")) == pytest.approx(total)
    assert roofline["target"] == "h100" and roofline["intensity"] > 0


def test_C4_without_a_target_nothing_is_predicted(record, Net):
    report, profiler = record(lambda: Net()(torch.arange(4).view(1, 4)))
    assert "roofline" not in report and "predicted_s" not in report["totals"]
    assert not any(profiler.collector.sig_works)


def test_C4_work_is_asked_for_once_per_signature(monkeypatch):
    asked: list[Any] = []

    def watch(func, args, kwargs, out):
        asked.append(func)
        return real(func, args, kwargs, out)

    real = work.work
    monkeypatch.setattr(work, "work", watch)
    a, b, turned = torch.ones(4, 4), torch.ones(4, 4), torch.ones(4, 4).t()
    with Profiler(target=H100) as profiler:
        for _ in range(50):
            torch.add(a, b)
            a.view(16)
            float(a.sum())
        assert len(asked) == 4  # add, view, sum, item
        torch.add(a, turned)  # other strides
        torch.add(a, b.double())  # another dtype (and the cast)
        assert len(asked) == 7
        torch.add(a, turned)
        a.view(4, 2, 2)  # views are all alike
    assert len(asked) == 7
    works = profiler.collector.sig_works
    assert len(works) == len(profiler.collector.sig_ops) == len(profiler.collector.sig_flops)


def _two_models(device: str) -> None:
    """A model that another makes use of while it is made, and then at each step, at the same line: its first calls are
    of the loop, as its line is."""
    steps = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)]

    def run(net: torch.nn.Module, at: str) -> None:
        for _ in range(20):
            torch.ones(8, device=at).mul(2.0).add_(1.0)
        net(torch.ones(8, device=at)).sum()

    run(steps[0], "cpu")
    for net in steps:
        net.to(device)
    for _ in range(3):
        run(steps[1], device)


def _normed(device: str) -> None:
    made = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(64, 64)).to(device)
    for _ in range(2):
        made(torch.ones(4, 64, device=device)).sum().backward()


def _prepared(device: str) -> None:
    """The loop's lines launch far more before the first call of a model than in it."""
    net = torch.nn.Linear(64, 64, device=device)

    def batch(ops: int) -> torch.Tensor:
        x = torch.ones(4, 64, device=device)
        for _ in range(ops):
            x = x + 1
        return x

    x = batch(300)
    for _ in range(2):
        net(x).sum().backward()
        x = batch(2)


def _heavy(device: str) -> None:
    net = torch.nn.Linear(4096, 4096, device=device)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        net(torch.ones(4096, 4096, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("program", [_two_models, _normed, _prepared, _heavy])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_C4_about_lies_in_its_interval_in_every_row(program: Any, device: str) -> None:
    """Of what a loop's lines launched before it, the host's time was in "about" and not in the interval."""
    with Estimator(target=H100) as estimate:
        program(device)
    report = estimate.report()
    rows = [report["totals"], *report["phases"], *report["ops"], *report["modules"], *report["lines"]]
    checked = [row for row in rows if "about_s" in row]
    for row in checked:
        low, high = row["about_low_s"], row["about_high_s"]
        assert low <= row["about_s"] * (1 + 1e-6) and row["about_s"] <= high * (1 + 1e-6), row
        assert row["bound_s"] <= row["about_s"] * (1 + 1e-6)
    assert len(checked) > len(report["phases"])
