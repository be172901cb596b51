"""C4, S9: a call that was made before is not taken apart again, unless what it comes to may have changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from mindtorch._ext import intercept
from mindtorch.profile.estimate.estimator import Estimator


def ops_of(run: Callable[[], Any]) -> Counter[str]:
    with Estimator() as estimator:
        run()
    return Counter({row["name"]: row["calls"] for row in estimator.report()["ops"]})


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize(
    ("call", "views"),
    [(lambda x: F.linear(x, x), 0), (lambda x: x + 1, 0), (lambda x: -x, 0), (lambda x: x.to(torch.float64), 0),
     (lambda x: x.t().contiguous(), 1), (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]), 3)],
    ids=["linear", "add", "neg", "to", "contiguous", "attention"],
)  # fmt: skip
def test_S9_the_second_call_is_one_record(mode: Any, call: Callable[[torch.Tensor], Any], views: int) -> None:
    with Estimator(), mode():
        x = torch.randn(64, 64)
        call(x)
        for _ in range(3):
            whole, dispatched = intercept.counts()
            call(x)
            assert intercept.counts() == (whole + 1, dispatched + views)


def test_C4_repeated_calls_count_like_the_first() -> None:
    def run(times: int) -> Callable[[], None]:
        def calls() -> None:
            with torch.no_grad():
                x, w = torch.randn(2, 8, 16), torch.randn(32, 16, requires_grad=True)
                for _ in range(times):
                    F.silu(F.linear(x, w)).softmax(-1).mean().pow(2)

        return calls

    once, often = ops_of(run(1)), ops_of(run(5))
    made = {"aten::randn"}
    assert {name: n for name, n in often.items() if name not in made} == {
        name: 5 * n for name, n in once.items() if name not in made
    }


def test_C4_a_mode_that_changes_what_a_call_comes_to_is_seen() -> None:
    def run() -> None:
        q = torch.randn(1, 4, 32, 16)
        for _ in range(2):
            F.scaled_dot_product_attention(q, q, q)
        with sdpa_kernel(SDPBackend.MATH):
            for _ in range(2):
                F.scaled_dot_product_attention(q, q, q)

    ops = ops_of(run)
    assert ops["aten::_scaled_dot_product_flash_attention_for_cpu"] == 2
    assert ops["aten::bmm"] == 4 or ops["aten::_scaled_dot_product_attention_math"] == 2


def test_C4_whether_a_gradient_is_required_counts_where_torch_asks() -> None:
    def run(first: bool) -> Callable[[], None]:
        def calls() -> None:
            x, plain = torch.randn(3, 8, 16), torch.randn(16, 4)
            tracked = torch.randn(16, 4).requires_grad_()
            with torch.no_grad():
                for w in (plain, tracked) if first else (tracked, plain):
                    torch.matmul(x, w)
                    torch.matmul(x, w)

        return calls

    assert ops_of(run(True)) == ops_of(run(False))


def test_C4_known_values_are_computed_each_time() -> None:
    with Estimator():
        ids = torch.arange(6)
        doubled = [(ids * 2).tolist() for _ in range(3)]
        assert doubled == [[0, 2, 4, 6, 8, 10]] * 3
        ids = torch.arange(1, 7)
        assert (ids * 2).tolist() == [2, 4, 6, 8, 10, 12]
