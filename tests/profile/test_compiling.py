"""C4: of a program with torch.compile, what was compiled is estimated as fused, and the rest as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mindtorch.profile.cost import op_time, targets
from mindtorch.profile.estimate.estimator import Estimator

A100 = targets.find("a100")


def estimate(run: Callable[[], Any]) -> dict[str, Any]:
    with Estimator(target=A100) as estimator:
        run()
    return estimator.report()


def about_s(run: Callable[[], Any]) -> float:
    return estimate(run)["totals"]["about_s"]


def chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(8):
        x = x.sin() + 1
    return x


class Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return chain(x)


def large(grad: bool = False) -> torch.Tensor:
    return torch.empty(1 << 26, device="cuda", requires_grad=grad)


def small() -> torch.Tensor:
    return torch.empty(16, device="cuda")


@pytest.mark.parametrize("make", [Chain, lambda: chain])
def test_C4_only_what_was_compiled_is_fused(make: Callable[[], Any]) -> None:
    def run() -> None:
        chain(torch.compile(make())(large()))

    plain = about_s(lambda: chain(chain(large())))
    found = estimate(run)["totals"]["about_s"]
    assert found == pytest.approx(plain * (16 + 1) / 32, rel=0.05)


def test_C4_a_compiled_module_within_a_model_and_its_backward_are_fused() -> None:
    def step(compiled: bool) -> None:
        model = nn.Sequential(Chain(), Chain()).cuda()
        if compiled:
            model[0].compile()
        model(large(grad=True)).sum().backward()

    def by_module(compiled: bool) -> dict[str, float]:
        return {row["path"]: row["about_s"] for row in estimate(lambda: step(compiled))["modules"]}

    plain, found = by_module(False), by_module(True)
    first, second = (next(path for path in plain if path.endswith(end)) for end in (".0", ".1"))
    assert found[first] < plain[first] / 8
    assert found[second] == pytest.approx(plain[second])


def test_C4_the_backward_of_a_compiled_function_within_a_module_is_its_modules() -> None:
    class Outer(nn.Module):
        def __init__(self, function: Callable[..., Any]) -> None:
            super().__init__()
            self.function = function

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.function(x)

    def backward(function: Callable[[], Any]) -> float:
        report = estimate(lambda: Outer(function())(large(grad=True)).sum().backward())
        return next(row["about_s"] for row in report["phases"] if row["name"] == "backward")

    assert backward(lambda: torch.compile(chain)) < backward(lambda: chain) / 4


def test_C4_cuda_graphs_take_no_time_of_the_host() -> None:
    host = 16 * op_time.HOST_KERNEL * A100.launch_s
    x = about_s(small)
    assert about_s(lambda: chain(small())) == pytest.approx(host + x, rel=0.1)
    launched = about_s(lambda: torch.compile(chain)(small()))
    assert launched == pytest.approx(op_time.HOST_COMPILED * host + x, rel=0.1)
    for options in ({"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}}):
        assert about_s(lambda options=options: torch.compile(chain, **options)(small())) < launched / 2
    assert about_s(lambda: torch.compile(chain, backend="eager")(small())) == pytest.approx(host + x, rel=0.1)


def test_C4_a_replayed_graph_is_launched_at_once() -> None:
    def replayed(times: int) -> float:
        def run() -> None:
            graph, x = torch.cuda.CUDAGraph(), small()
            with torch.cuda.graph(graph):
                chain(x)
            for _ in range(times):
                graph.replay()

        return about_s(run)

    assert replayed(11) < 2.5 * replayed(1)


def test_C4_products_of_one_row_stream_their_weights_where_inductor_is_tuned() -> None:
    def decode(**options: Any) -> float:
        def run() -> None:
            with torch.no_grad():
                layer = nn.Linear(8192, 8192, bias=False, device="cuda", dtype=torch.bfloat16)
                torch.compile(layer, **options)(torch.empty(1, 8192, device="cuda", dtype=torch.bfloat16))

        report = estimate(run)
        return next(row["about_s"] for row in report["ops"] if row["name"] == "aten::mm")

    weights = 2 * 8192**2 / A100.memory_bandwidth
    assert weights < decode(mode="max-autotune") < 1.3 * weights
    assert decode(mode="max-autotune") < decode(mode="reduce-overhead")
    assert decode(options={"coordinate_descent_tuning": True}) == decode(mode="max-autotune-no-cudagraphs")


def test_C4_inductor_pads_rows_that_begin_at_odd_addresses() -> None:
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    def run(compiled: bool) -> float:
        def multiply() -> None:
            kind = {"device": "cuda", "dtype": torch.bfloat16}
            function = torch.compile(product) if compiled else product
            function(torch.empty(16384, 50257, **kind), torch.empty(50257, 768, **kind))

        report = estimate(multiply)
        return next(row["about_s"] for row in report["ops"] if row["name"] == "aten::mm")

    assert run(True) < run(False) / 2


def test_C4_conversions_within_a_fused_kernel_move_nothing() -> None:
    def scores(x: torch.Tensor) -> torch.Tensor:
        return x.float().softmax(-1).to(torch.bfloat16)

    def halves() -> torch.Tensor:
        return torch.empty(1 << 17, 1024, device="cuda", dtype=torch.bfloat16)

    inputs = about_s(halves)
    whole = about_s(lambda: scores(halves())) - inputs
    softmax = about_s(lambda: torch.empty(1 << 17, 1024, device="cuda").softmax(-1)) - inputs
    fused = about_s(lambda: torch.compile(scores)(halves())) - inputs
    assert fused == pytest.approx(softmax / 2, rel=0.1) and fused < whole / 3
    back = about_s(lambda: torch.compile(lambda x: x.float().to(torch.bfloat16))(halves())) - inputs
    assert back > fused / 4  # nothing but conversions: it reads and writes
