"""Models and a recorder for the profile tests."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mindtorch.profile import Profiler
from mindtorch.profile.measure.run_queue import RunQueue


@pytest.fixture(autouse=True)
def only_models_of_this_test(alone: None) -> None:
    pass


@pytest.fixture
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles do not see that this process waits for a processor: what they find does not depend on other programs."""
    monkeypatch.setattr(RunQueue, "look", lambda self: 0)


class Attention(torch.nn.Module):
    """Causal-free self-attention written with the operators whose FLOPs are known in closed form."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(d, 3 * d)
        self.out = torch.nn.Linear(d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(torch.nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(d)
        self.attn = Attention(d, heads)
        self.up = torch.nn.Linear(d, 4 * d)
        self.act = torch.nn.GELU()
        self.down = torch.nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm(x))
        return x + self.down(self.act(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self, d: int = 16, heads: int = 2, layers: int = 2, vocabulary: int = 10) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, d)
        self.blocks = torch.nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.head = torch.nn.Linear(d, vocabulary, bias=False)
        self.head.weight = self.embed.weight  # tied

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(name="Net")
def net_class() -> type[Net]:
    return Net


@pytest.fixture
def training() -> Callable[..., None]:
    """Two steps of a `Net`, made within."""

    def program(**options: int) -> None:
        net = Net(**options)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(2):
            net(torch.zeros(2, 3, dtype=torch.long)).sum().backward()
            optimizer.step()

    return program


def _check_sums(report: dict[str, Any]) -> None:
    """Asserts that nothing is counted twice and nothing lost: every table sums to the totals."""
    total = report["totals"]["time_s"]
    for table, key in (("modules", "self_s"), ("ops", "self_s"), ("phases", "time_s"), ("lines", "self_s")):
        assert sum(row[key] for row in report[table]) == pytest.approx(total, rel=1e-9), table
    for key in ("flops", "macs", "ops"):
        assert sum(row[key] for row in report["phases"]) == report["totals"][key], key
    roots = [row for row in report["modules"] if row["depth"] == 0]
    assert sum(row["total_s"] for row in roots) == pytest.approx(total, rel=1e-9)
    for key in ("flops", "macs", "ops"):
        assert sum(row[key] for row in roots) == report["totals"][key], key
    assert sum(row["self_flops"] for row in report["modules"]) == report["totals"]["flops"]
    assert sum(row["flops"] for row in report["ops"]) == report["totals"]["flops"]
    assert sum(row["calls"] for row in report["ops"] if row["name"] != "(python)") == report["totals"]["ops"]
    assert sum(row["calls"] for row in report["lines"]) == report["totals"]["ops"]
    detail = report["detail"]
    for key, of in (("ops", "ops"), ("flops", "flops"), ("macs", "macs"), ("self_s", "time_s")):
        at = detail["columns"].index(key)
        assert sum(row[at] for row in detail["rows"]) == pytest.approx(report["totals"][of], rel=1e-9), key
    startup = report["startup"]
    accounted = (
        startup["import_s"]
        + startup["compile_s"]
        + startup["init_s"]
        + report["steps"]["warmup_s"]
        + total
        + report["totals"]["overhead_s"]
    )
    assert accounted == pytest.approx(report["totals"]["wall_s"], rel=1e-9)


@pytest.fixture(name="check_sums")
def check_sums_function() -> Callable[[dict[str, Any]], None]:
    return _check_sums


@pytest.fixture
def record() -> Callable[..., tuple[dict[str, Any], Profiler]]:
    def run(program: Callable[[], Any], **options: Any) -> tuple[dict[str, Any], Profiler]:
        with Profiler(**options) as profiler:
            program()
        report = profiler.report()
        _check_sums(report)
        return report, profiler

    return run
