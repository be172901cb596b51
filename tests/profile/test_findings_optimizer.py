"""C2: what an optimizer's fused kernels would save."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mindtorch.profile.report import findings, time_findings
from tests.profile.test_findings import estimated, ids, measured, rows_of, the

_HERE = Path(__file__)


@pytest.fixture(autouse=True)
def any_time_matters(as_it_was: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick machine takes less time for these programs than a finding must tell of."""
    monkeypatch.setattr(findings, "_BRIEF", 0.0)


def learn(device: str, kind: type[torch.optim.Optimizer], size: int, **options: Any) -> None:
    model = nn.Sequential(*(nn.Linear(size, size, device=device) for _ in range(12)))
    optimizer = kind(model.parameters(), lr=0.01, **options)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(64, size, device=device)).sum().backward()
        optimizer.step()  # learns


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_C2_finding_optimizer_unfused_says_what_a_fused_one_saves(kind: type[torch.optim.Optimizer]) -> None:
    torch.set_float32_matmul_precision("high")
    report, other = (estimated(learn, kind, 2048, warmup=1),
                     estimated(lambda *args: learn(*args, fused=True), kind, 2048, warmup=1))  # fmt: skip
    row = the(report, "optimizer-unfused", "learns", file=_HERE)
    assert row["seconds"] == pytest.approx(report["totals"]["time_s"] - other["totals"]["time_s"], rel=0.15)
    assert row["try"] == f"fused=True for {kind.__name__}"
    assert "optimizer-unfused" not in ids(other)
    assert "optimizer-unfused" not in ids(estimated(learn, torch.optim.Rprop, 2048)), "torch has no fused one"


def test_C2_no_finding_optimizer_unfused_where_the_estimated_program_stays_on_the_cpu() -> None:
    report = estimated(lambda _: learn("cpu", torch.optim.Adam, 256))
    assert "optimizer-unfused" not in ids(report), "on the GPU, torch takes the parameters together"


def test_C2_finding_optimizer_unfused_where_it_was_measured() -> None:
    report = measured(learn, "cpu", torch.optim.Adam, 1024, warmup=1)
    row = the(report, "optimizer-unfused", "learns", file=_HERE)
    spent = rows_of(report, phase=lambda phase: phase == "optimizer")
    assert row["seconds"] == pytest.approx(spent, rel=0.01)
    fused = measured(lambda: learn("cpu", torch.optim.Adam, 1024, fused=True), warmup=1)
    assert "optimizer-unfused" not in ids(fused)


def test_C2_finding_optimizer_unfused_says_what_its_share_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 % of the time were the phase's and the pattern's, 19 % the finding's: the rest made the state."""
    monkeypatch.setattr(time_findings, "percent", str)  # on a busy machine, both may round to the same
    whole, later = (the(measured(learn, "cpu", torch.optim.Adam, 256, warmup=n), "optimizer-unfused", "learns",
                        file=_HERE)["text"] for n in (0, 1))  # fmt: skip
    assert "Adam, without creating its state or clipping gradients: " in whole and "without" not in later


def each_alone(device: str, fused: bool | None) -> None:
    """As Pyro steps: with an optimizer for each parameter."""
    model = nn.Sequential(*(nn.Linear(1024, 1024, device=device) for _ in range(6)))
    optimizers = [torch.optim.Adam([parameter], fused=fused) for parameter in model.parameters()]
    for _ in range(4):
        model(torch.ones(64, 1024, device=device)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()  # one
            optimizer.zero_grad()


def test_C2_finding_optimizer_unfused_counts_a_fused_kernel_for_each_step() -> None:
    """It said what one kernel for all parameters saves, though ten optimizers step in an iteration."""
    torch.set_float32_matmul_precision("high")
    report, other = (estimated(each_alone, fused, warmup=1) for fused in (None, True))
    row = the(report, "optimizer-unfused", "one", file=_HERE)
    assert row["seconds"] == pytest.approx(report["totals"]["time_s"] - other["totals"]["time_s"], rel=0.15)
    assert "; 12 fused kernels, one for each step(), would save" in row["text"]
    assert "optimizer-unfused" not in ids(other)


def clips(device: str, foreach: bool, hook: bool, adams: bool | None = None) -> None:
    model = nn.Sequential(*(nn.Linear(512, 512, device=device) for _ in range(24)))
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, foreach=adams)

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=foreach)

    if hook:
        optimizer.register_step_pre_hook(clip)
    for _ in range(4):
        model.zero_grad()
        model(torch.ones(64, 512, device=device)).sum().backward()
        optimizer.step()  # steps


@pytest.mark.sample(1)
@pytest.mark.parametrize("foreach", [False, True])
def test_C2_finding_optimizer_unfused_leaves_out_what_clips_gradients(foreach: bool) -> None:
    found = [the(measured(clips, "cpu", foreach, hook, warmup=1), "optimizer-unfused", "steps", file=_HERE)["text"]
             for hook in (False, True)]  # fmt: skip
    alone, clipped = (re.findall(r"Adam[^:]*: ([\d,]+) operations", text) for text in found)
    assert alone == clipped and len(alone) == 1
    assert "optimizer-unfused" not in ids(measured(clips, "cpu", foreach, True, True, warmup=1))


def waves(device: str, dtype: torch.dtype) -> None:
    weights = [nn.Parameter(torch.ones(512, 512, dtype=dtype, device=device)) for _ in range(12)]
    optimizer = torch.optim.AdamW(weights)
    for _ in range(4):
        optimizer.zero_grad()
        sum(w.abs().sum() for w in weights).backward()
        optimizer.step()  # waves


def test_C2_no_finding_optimizer_unfused_where_torch_refuses_to_fuse() -> None:
    """fused=True takes real parameters alone, and was recommended to complex ones."""
    assert "optimizer-unfused" in ids(measured(waves, "cpu", torch.float32, warmup=1))
    assert "optimizer-unfused" not in ids(measured(waves, "cpu", torch.complex64, warmup=1))
    assert "optimizer-unfused" not in ids(estimated(waves, torch.complex64, warmup=1))
    weight = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    with pytest.raises(RuntimeError, match="`fused=True` requires"):
        torch.optim.AdamW([weight], fused=True).step()


class Around(torch.optim.Optimizer):
    """As Accelerate's, which hands on, and Opacus', which adds noise: `Optimizer.__init__` is never called."""

    def __init__(self, inner: torch.optim.Optimizer, noise: bool) -> None:
        self.inner, self.noise = inner, noise

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.noise:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(0.5).add_(torch.randn_like(parameter))
        self.inner.step(closure)


def learn_around(device: str, noise: bool) -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024, device=device) for _ in range(12)))
    optimizer = Around(torch.optim.Adam(model.parameters(), lr=0.01), noise)
    for _ in range(4):
        model(torch.ones(64, 1024, device=device)).sum().backward()
        optimizer.step()
        model.zero_grad()


@pytest.mark.parametrize("where", [estimated, measured])
def test_C2_finding_optimizer_unfused_is_of_the_one_within_another_that_only_hands_on(where: Any) -> None:
    def run(noise: bool) -> dict[str, Any]:
        return where(learn_around, noise) if where is estimated else where(learn_around, "cpu", noise)

    assert the(run(False), "optimizer-unfused")["try"] == "fused=True for Adam"
    assert "optimizer-unfused" not in ids(run(True)), "no fused kernel clips gradients and adds noise to them"
