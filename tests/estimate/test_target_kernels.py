"""C4: attention, dropout and autocast are those of the target's kernels, not of the CPU's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.profile.estimate.estimator import Estimator


def estimate(run: Callable[[], None], target: str = "h100") -> tuple[Counter[str], int]:
    """(calls by op, peak bytes) of a program on the target."""
    with Estimator(target=targets.find(target)) as estimator:
        run()
    report = estimator.report()
    return Counter({row["name"]: row["calls"] for row in report["ops"]}), report["memory"]["peak_bytes"]


def encoder(dropout: float, padded: bool = False, train: bool = True) -> Callable[[], None]:
    def run() -> None:
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout, batch_first=True, dtype=torch.bfloat16)
        model = nn.TransformerEncoder(layer, 4).cuda().train(train)
        x = torch.randn(2, 1024, 256, dtype=torch.bfloat16, device="cuda")
        mask = None
        if padded:
            mask = torch.zeros(2, 1024, dtype=torch.bool, device="cuda")
            mask[:, 900:] = True
        with torch.set_grad_enabled(train):
            out = model(x, src_key_padding_mask=mask)
        if train:
            out.sum().backward()

    return run


def test_C4_attention_with_dropout_holds_no_scores() -> None:
    ops, with_dropout = estimate(encoder(0.1))
    _, without = estimate(encoder(0.0))
    assert ops["aten::_scaled_dot_product_flash_attention"] == 4
    assert ops["aten::_scaled_dot_product_flash_attention_backward"] == 4
    assert without < with_dropout < 1.8 * without  # on the CPU, with scores: 8 times
    assert ops["aten::native_dropout"] == 12 and not ops["aten::bernoulli_"]  # a mask of one byte each


@pytest.mark.whole
def test_C4_padding_masks_go_to_the_kernel_that_takes_them() -> None:
    ops, padded = estimate(encoder(0.1, padded=True))
    assert ops["aten::_scaled_dot_product_efficient_attention"] == 4
    assert padded < 1.3 * estimate(encoder(0.1))[1]
    assert estimate(encoder(0.1, padded=True, train=False))[1] > 0  # where torch would make nested tensors


def _shape(size: int = 64, heads: int = 4, length: int = 32, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(2, heads, length, size, dtype=dtype, device="cuda")


@pytest.mark.parametrize(
    ("kernel", "target", "call"),
    [
        ("flash", "h100", lambda: F.scaled_dot_product_attention(*[_shape()] * 3)),
        ("flash", "h100", lambda: F.scaled_dot_product_attention(*[_shape()] * 3, dropout_p=0.1, is_causal=True)),
        ("flash", "h100", lambda: F.scaled_dot_product_attention(*[_shape(60)] * 3)),
        ("flash", "h100", lambda: F.scaled_dot_product_attention(_shape(heads=8), *[_shape()] * 2, enable_gqa=True)),
        ("efficient", "h100", lambda: F.scaled_dot_product_attention(*[_shape(dtype=torch.float32)] * 3)),
        (
            "efficient",
            "h100",
            lambda: F.scaled_dot_product_attention(*[_shape()] * 3, torch.ones(32, 32).bool().cuda()),
        ),
        ("efficient", "h100", lambda: F.scaled_dot_product_attention(*[_shape(264)] * 3)),
        ("math", "h100", lambda: F.scaled_dot_product_attention(*[_shape(dtype=torch.float64)] * 3)),
        ("math", "h100", lambda: F.scaled_dot_product_attention(*[_shape(30, dtype=torch.float32)] * 3)),
    ],
)
def test_C4_the_kernel_is_the_one_that_torch_chooses_on_the_target(
    kernel: str, target: str, call: Callable[[], Any]
) -> None:
    ops, _ = estimate(call, target)
    assert ops[f"aten::_scaled_dot_product_{kernel}_attention"] == (kernel != "math")
    assert bool(ops["aten::_softmax"] + ops["aten::_safe_softmax"]) == (kernel == "math")


def test_C4_older_chips_have_other_kernels() -> None:
    with estimating(Accelerator("Turing", 10**9, capability=(7, 5))):
        from mindtorch.profile.estimate.fused_attention import chosen

        q = _shape()
        assert chosen(q, q, q, None, 0.0, False, False) == "efficient"
        assert chosen(*[_shape(dtype=torch.bfloat16)] * 3, None, 0.0, False, False) == "math"


@pytest.mark.parametrize(
    "backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
)
def test_C4_the_program_may_choose_the_kernel(backend: SDPBackend) -> None:
    def run() -> None:
        q = _shape().requires_grad_()
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, q, q).sum().backward()

    name = backend.name.removesuffix("_ATTENTION").lower()
    assert estimate(run)[0][f"aten::_scaled_dot_product_{name}_attention_backward"] == 1


def test_C4_autocast_is_cudas() -> None:
    with estimating(Accelerator("Test GPU", 10**9)):
        x, half = torch.ones(4, 4, device="cuda"), torch.ones(4, 4, device="cuda").half()
        with torch.autocast("cuda"):
            assert torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") is torch.float16
            shorter = (x @ x, F.linear(x, x), F.gelu(half), nn.BatchNorm1d(4).cuda()(half))
            longer = (
                half.softmax(-1),
                F.layer_norm(half, (4,)),
                half.exp(),
                half.sum(),
                half.pow(2),
                F.mse_loss(half, half),
            )
        assert {t.dtype for t in shorter} == {torch.float16} and {t.dtype for t in longer} == {torch.float32}
        assert half.softmax(-1).dtype is torch.float16 and not torch.is_autocast_enabled("cuda")
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::softmax.int", "AutocastCPU")


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION])
def test_C4_a_boolean_mask_is_made_one_of_numbers_as_torch_does(backend: SDPBackend) -> None:
    """The products of `math` added a mask of booleans to the scores; the kernels took three ops to convert it."""

    def run() -> None:
        q, mask = _shape(), torch.ones(32, 32, dtype=torch.bool, device="cuda")
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    calls = estimate(run)[0]
    assert calls["aten::where"] == 1 and not calls["aten::masked_fill_"] and not calls["aten::logical_not"]
