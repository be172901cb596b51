"""C4: an estimate counts what a measured profile of the same program counts: ops, FLOPs, module tree, peak memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from mindtorch.base.errors import UsageError
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

# Made by torch in C++ for its own use, out of nothing: no tensor of ours is involved.
_UNSEEN = {"aten::empty"}


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Models of one test must not be found alive by the next one's profile."""
    yield
    gc.collect()


def train_net(Net: type[nn.Module]) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        tokens = torch.zeros(3, 5, dtype=torch.int64)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def infer_net(Net: type[nn.Module]) -> None:
    model = Net().eval()
    with torch.no_grad():
        for n in (4, 4, 7):
            model(torch.zeros(2, n, dtype=torch.int64))


def checkpointed(Net: type[nn.Module]) -> None:
    model = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(4))
    x = torch.randn(16, 8)
    for layer in model:
        x = checkpoint(layer, x, use_reentrant=False)
    x.sum().backward()


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.a(x)))
        return self.head(F.max_pool2d(self.b(x), 2).mean((2, 3)))


def convolutional(Net: type[nn.Module]) -> None:
    model = Conv()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        F.cross_entropy(model(torch.randn(4, 3, 16, 16)), torch.zeros(4, dtype=torch.int64)).backward()
        optimizer.step()
        optimizer.zero_grad()


def clipped(Net: type[nn.Module]) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.zeros(2, 3, dtype=torch.int64)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def folded_products(Net: type[nn.Module]) -> None:
    x, weight = torch.randn(4, 5, 6, requires_grad=True), torch.randn(6, 7, requires_grad=True)
    with torch.no_grad():
        x.mT.reshape(4, 30)
        x.view(torch.int32).clone()
    (x @ weight + torch.ops.aten._unsafe_view(x.view(20, 6) @ weight, [4, 5, 7])).sum().backward()


PROGRAMS = {f.__name__: f for f in (train_net, infer_net, checkpointed, convolutional, clipped, folded_products)}


def estimated(run: Callable[[], Any], **options: Any) -> dict[str, Any]:
    with Estimator(**options) as estimator:
        run()
    return estimator.report()


def measured(run: Callable[[], Any], **options: Any) -> dict[str, Any]:
    with Profiler(**options) as profiler:
        run()
    return profiler.report()


def by_line(report: dict[str, Any]) -> dict[tuple[str, int], int]:
    return {(row["file"], row["line"]): row["flops"] for row in report["lines"] if row["calls"]}


@pytest.mark.parametrize("name", PROGRAMS)
def test_C4_an_estimate_agrees_with_a_measured_profile(Net: type[nn.Module], name: str) -> None:
    mine, theirs = (kind(lambda: PROGRAMS[name](Net)) for kind in (estimated, measured))
    assert (mine["mode"], theirs["mode"]) == ("estimate", "measured")
    calls = [{row["name"]: row["calls"] for row in r["ops"] if row["name"] not in {*_UNSEEN, "(python)"}}
             for r in (mine, theirs)]  # fmt: skip
    assert calls[0] == calls[1]
    told = calls[0].keys() - {"aten::lift_fresh"}  # data that torch.tensor was given is no result of a call here
    moved = [{row["name"]: row["bytes"] for row in r["ops"] if row["name"] in told} for r in (mine, theirs)]
    assert moved[0] == moved[1]
    for key in ("flops", "macs", "params", "peak_bytes", "coverage"):
        assert mine["totals"][key] == theirs["totals"][key], key
    for key in ("name", "flops", "macs", "peak_bytes"):
        assert [row[key] for row in mine["phases"]] == [row[key] for row in theirs["phases"] if row["ops"]], key
    for key in ("path", "class", "depth", "calls", "flops", "macs", "params", "peak_bytes"):
        assert [row[key] for row in mine["modules"]] == [row[key] for row in theirs["modules"]], key
    assert mine["uncounted"] == [] == theirs["uncounted"] and mine.keys() >= theirs.keys()
    assert by_line(mine) == by_line(theirs)


def test_C4_memory_is_what_a_hand_computes() -> None:
    def run() -> None:
        model = nn.Linear(256, 256, bias=False)  # 256 KiB, as everything here
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = torch.randn(256, 256)
        for _ in range(2):
            y = model(x)
            y.sum().backward()
            del y
            optimizer.step()
            optimizer.zero_grad()

    report = estimated(run)
    facts, k = report["memory"], 256 * 1024
    # In the second step's backward: weight, input, momentum, output and gradient; the loss and its gradient.
    # The gradient of a sum is one number expanded, which is no matrix for BLAS: multiplying with it takes a copy.
    assert facts["categories"]["scratch"] == k and report["totals"]["peak_bytes"] == 5 * k + 8
    assert facts["categories"]["parameters"] == k and facts["categories"]["optimizer state"] == k
    assert sum(facts["categories"].values()) == facts["peak_bytes"] == 6 * k + 8
    timeline = facts["timeline"]
    assert max(timeline["bytes"]) == facts["peak_bytes"]
    assert [sum(parts) for parts in zip(*timeline["categories"].values(), strict=True)] == timeline["bytes"]


def test_C4_whether_it_fits_and_on_how_many() -> None:
    target = targets.find("h100")

    def run() -> None:
        with torch.no_grad():
            nn.Linear(10**6, 10**5, bias=False).cuda()(torch.zeros(1, 10**6, device="cuda"))

    facts = estimated(run, target=target)["memory"]
    assert facts["device"] == "cuda:0" and facts["capacity_bytes"] == int(target.memory_bytes)
    assert not facts["fits"] and facts["devices"] == 5
    assert (
        facts["spare_bytes"]
        == int(target.memory_bytes) - facts["peak_device_bytes"]
        < int(target.memory_bytes) - facts["peak_bytes"]
    )
    assert facts["peak_bytes"] == 4 * 10**11 + 4_000_256 + 400_384  # in blocks of 512 bytes
    assert facts["categories"]["parameters"] == 4 * 10**11


def test_C4_parameters_that_come_with_the_first_input_are_parameters() -> None:
    def run() -> None:
        net = nn.LazyLinear(1000, bias=False)
        net(torch.ones(1, 1024)).sum().backward()

    facts = estimated(run)["memory"]["categories"]
    assert facts["parameters"] == facts["gradients"] == 4 * 1000 * 1024


def test_C4_optimizers_work_on_lists_on_cuda_as_torchs_do_there() -> None:
    def run() -> None:
        model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8))).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(4, 256, device="cuda")).sum().backward()
        optimizer.step()

    report = estimated(run, target=targets.find("h100"))
    calls = {row["name"]: row["calls"] for row in report["ops"]}
    assert calls["aten::_foreach_addcdiv_"] == 1 and "aten::addcdiv_" not in calls and report["assumed"] == []
    # Weights, gradients, two moments and the list of denominators.
    assert report["memory"]["categories"]["temporaries"] >= 8 * 256 * 256 * 4
    assert 5 * 8 * 256 * 256 * 4 <= report["memory"]["peak_bytes"] <= 5.1 * 8 * 256 * 256 * 4


def test_C4_the_accelerators_memory_only(Net: type[nn.Module]) -> None:
    def run() -> None:
        model, host = nn.Linear(64, 64, bias=False).cuda(), torch.zeros(10**6)
        with torch.no_grad():
            model(host[:64].cuda())

    # 16 KiB of weights, and input and output in blocks of 512 bytes; the host's megabytes are the host's.
    assert estimated(run, target=targets.find("a100"))["memory"]["peak_bytes"] == 64 * 64 * 4 + 512 + 512


@pytest.mark.parametrize("warmup", [0, 1])
def test_C4_warmup_and_steps(Net: type[nn.Module], warmup: int) -> None:
    mine, theirs = (kind(lambda: train_net(Net), warmup=warmup, steps=1) for kind in (estimated, measured))
    assert mine["steps"]["count"] == theirs["steps"]["count"] == warmup + 1
    for key in ("flops", "peak_bytes"):
        assert mine["totals"][key] == theirs["totals"][key]


def test_C4_a_model_from_before_counts_as_in_a_measured_profile(Net: type[nn.Module]) -> None:
    with Estimator():
        model = Net().eval()
    tokens = torch.zeros(2, 4, dtype=torch.int64)

    def run() -> None:
        with torch.no_grad():
            model(tokens)

    mine = estimated(run)
    model = Net().eval()
    theirs = measured(run)
    assert mine["memory"]["categories"]["parameters"] == sum(p.nbytes for p in model.parameters())
    assert mine["totals"]["flops"] == theirs["totals"]["flops"]
    assert mine["totals"]["peak_bytes"] == theirs["totals"]["peak_bytes"]


def test_C4_an_error_of_the_program_ends_the_estimate(Net: type[nn.Module]) -> None:
    with pytest.raises(RuntimeError, match="4x5"), Estimator() as estimator:
        nn.Linear(2, 3)(torch.zeros(4, 2))
        nn.Linear(2, 3)(torch.zeros(4, 5))
    assert estimator.report()["totals"]["flops"] == 2 * 4 * 2 * 3
    assert type(torch.zeros(2)) is torch.Tensor


def test_C4_bad_arguments() -> None:
    with pytest.raises(ValueError, match="steps >= 1"):
        Estimator(steps=0)
    with pytest.raises(UsageError, match=r"expected one of h100"):
        targets.find("h1000")


@pytest.mark.parametrize("times", [0, 1, 3])
def test_C2_an_estimate_says_what_it_makes_of_compiled_functions(times: int) -> None:
    """Also of attention; what flex_attention has compiled by itself is no call of the program."""
    from torch.nn.attention.flex_attention import flex_attention

    with Estimator() as seen:
        x = torch.ones(1, 2, 128, 16)
        flex_attention(x, x, x)
        if times:
            torch.compile(flex_attention)(x, x, x)
        if times > 1:
            torch.compile(dynamic=True)(torch.relu)(x)
            nn.Linear(16, 16).compile()
    said = [text for text in seen.report()["warnings"] if "torch.compile" in text]
    assert len(said) == (times > 0) and all(f"({times} call" in text for text in said)
