"""What a profile on a GPU says (SPEC C2), and what it costs: ``pytest -s tests/gpu/test_profile.py``.

It skips without a GPU. What it measures is printed; only counts, bits and ratios of device times are asserted.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity

from mindtorch.profile import Profiler

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

HEAVIEST, LITTLE = 10, 20e-6  # seconds: less than that is the tracer's own grain


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class GPT2(nn.Module):
    """GPT-2 small's sizes."""

    def __init__(self, width: int = 768, layers: int = 12, vocabulary: int = 50257) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(Block(width, 12) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        return self.norm(x) @ self.tokens.weight.T


def gpt2(dtype: torch.dtype) -> Callable[[], Any]:
    torch.manual_seed(0)
    model = GPT2().cuda().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(0, 50257, (4, 512), device="cuda")

    def step() -> Any:
        loss = F.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def mlp() -> Callable[[], Any]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    x = torch.randn(32, 64, device="cuda")

    def step() -> Any:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def convolutions() -> Callable[[], Any]:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for channels in (3, 64, 64, 64):
        layers += [nn.Conv2d(channels, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    model, x = nn.Sequential(*layers).cuda(), torch.randn(8, 3, 96, 96, device="cuda")

    def step() -> Any:
        loss = model(x).mean()
        loss.backward()
        return loss.detach()

    return step


def streams() -> Callable[[], Any]:
    """Two streams, copies both ways, and reads."""
    side, x = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
    host = torch.randn(2048, 2048, pin_memory=True)

    def step() -> Any:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = (x @ x).relu()
        z = host.to("cuda", non_blocking=True) @ x
        torch.cuda.current_stream().wait_stream(side)
        return (y + z).sum().item()

    return step


PROGRAMS: dict[str, Callable[[], Callable[[], Any]]] = {
    "gpt2-float32": lambda: gpt2(torch.float32), "gpt2-bfloat16": lambda: gpt2(torch.bfloat16), "mlp": mlp,
    "convolutions": convolutions, "streams": streams,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.empty_cache()


def torchs(step: Callable[[], Any], steps: int, told: set[str]) -> Counter[str]:
    """Device seconds of ATen's ops, by torch.profiler: a kernel is the outermost op's that we tell of, too."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    found: Counter[str] = Counter()  # of floats, whatever its stub says
    for event in profile.events():
        if not event.kernels:
            continue
        name, parent = event.name, event
        while parent is not None:
            name = parent.name if _known_as(parent.name) in told else name
            parent = parent.cpu_parent
        found[_known_as(name)] += sum(kernel.duration for kernel in event.kernels) / 1e6  # type: ignore[assignment]
    return found


def _known_as(name: str) -> str:
    """Where it is watched, autograd adds gradients up out of place."""
    return name.rstrip("_")


@pytest.mark.parametrize("name", PROGRAMS)
def test_C2_the_heaviest_ops_take_what_torchs_profiler_says(name: str) -> None:
    step = PROGRAMS[name]()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with Profiler(whole=True) as profiler:
        torch.zeros(1, device="cuda").add_(1)  # the first op is waited for, and not traced
        for _ in range(3):
            step()
    report = profiler.report()
    assert (report["gpu"]["how"], report["gpu"]["why"]) == ("traced", ""), report["warnings"]
    ours: Counter[str] = Counter()
    for row in report["ops"]:
        ours[_known_as(row["name"])] += row["device_s"]
    expected = torchs(step, 3, {name for name, seconds in ours.items() if seconds})
    print(f"\n{name}: {report['gpu']}")
    heaviest = sorted(expected, key=lambda op: -expected[op])[:HEAVIEST]
    for op in heaviest:
        print(f"  {op:48} torch {1e3 * expected[op]:9.3f} ms   genie {1e3 * ours.get(op, 0):9.3f} ms")
    assert sum(row["self_s"] for row in report["ops"]) == pytest.approx(report["totals"]["time_s"], abs=1e-9)
    assert report["gpu"]["busy_s"] + report["gpu"]["idle_s"] <= report["totals"]["time_s"] * 1.001
    assert report["gpu"]["unattributed_s"] <= 0.01 * report["gpu"]["busy_s"]
    assert sum(ours.values()) == pytest.approx(sum(expected.values()), rel=0.1)
    for op in heaviest:
        if expected[op] > LITTLE and op.startswith("aten::"):
            assert ours[op] == pytest.approx(expected[op], rel=0.1, abs=LITTLE), op


@pytest.mark.parametrize("name", ["gpt2-float32", "gpt2-bfloat16", "mlp"])
def test_C2_a_traced_run_computes_the_same_bits_and_says_what_it_costs(name: str) -> None:
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        plain, again = (_losses(PROGRAMS[name]()) for _ in range(2))
        step = PROGRAMS[name]()
        with Profiler(whole=True) as profiler:
            seen = _losses(step)
    if torch.equal(plain, again):  # else torch itself gives other bits the next time
        assert torch.equal(plain, seen)
    assert profiler.report()["gpu"]["how"] == "traced"
    step = PROGRAMS[name]()
    before = _seconds(step)
    with Profiler(whole=True) as profiler:
        step()
        within = _seconds(step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GENIE_PROFILE_CUDA", "wait")
        with Profiler(whole=True) as waiting:
            step()
            waited = _seconds(step)
    assert waiting.report()["gpu"]["how"] == "waited"
    after = _seconds(step)
    print(f"\n{name}: plain {1e3 * before:.2f} and {1e3 * after:.2f} ms a step, traced {1e3 * within:.2f} ms "
          f"({100 * (within / min(before, after) - 1):+.1f} %), waited {1e3 * waited:.2f} ms")  # fmt: skip


def test_C2_a_graph_that_is_replayed_is_traced() -> None:
    x, y = torch.randn(512, 512, device="cuda"), torch.zeros(512, 512, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y.copy_((x @ x).relu())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.copy_((x @ x).relu())
    with Profiler(whole=True) as profiler:
        x.mul_(1)
        for _ in range(50):
            graph.replay()
    report = profiler.report()
    assert report["gpu"]["how"] == "traced", report["warnings"]
    between = next(row for row in report["ops"] if row["name"] == "(python)")
    assert between["kernels"] >= 150  # three for each replay, at least


def _losses(step: Callable[[], Any]) -> torch.Tensor:
    return torch.stack([torch.as_tensor(step()).cpu() for _ in range(3)])


def _seconds(step: Callable[[], Any], steps: int = 10, rounds: int = 3) -> float:
    """Of a step, at best; the device is waited for once per round."""
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - began) / steps)
    return min(found)
