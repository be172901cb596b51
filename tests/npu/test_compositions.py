"""N5: operators of torch_npu's that programs call most, against formulas written out, on the CPU and on an NPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.npu import compositions as named

X = torch.linspace(-3, 3, 24, dtype=torch.float64).view(2, 3, 4)
G = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def rms(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(-1, keepdim=True) / x.shape[-1] + 1e-6).sqrt() * G


def turned(x: torch.Tensor, neighbours: bool) -> torch.Tensor:
    a, b, c, d = x.unbind(-1)
    return torch.stack((-b, a, -d, c) if neighbours else (-c, -d, a, b), -1)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + (-x).exp())


CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "rms_norm": (lambda x, g: named.npu_rms_norm(x, g)[0], rms(X)),
    "rstd": (lambda x, g: named.npu_rms_norm(x, g)[1], (X.square().mean(-1, keepdim=True) + 1e-6).rsqrt()),
    "add_rms_norm": (lambda x, g: named.npu_add_rms_norm(x, 2 * x, g)[0], rms(3 * X)),
    "added": (lambda x, g: named.npu_add_rms_norm(x, 2 * x, g)[2], 3 * X),
    "swiglu": (lambda x, g: named.npu_swiglu(x), X[..., :2] * sigmoid(X[..., :2]) * X[..., 2:]),
    "rotary": (lambda x, g: named.npu_rotary_mul(x, g, 2 * g), X * G + turned(X, False) * 2 * G),
    "interleave": (lambda x, g: named.npu_rotary_mul(x, g, g, "interleave"), X * G + turned(X, True) * G),
    "fast_gelu": (lambda x, g: named.fast_gelu(x), X * sigmoid(1.702 * X)),
    "silu": (lambda x, g: named.npu_silu(x), X * sigmoid(X)),
    "mish": (lambda x, g: named.npu_mish(x), X * (1 + X.exp()).log().tanh()),
    "gelu": (lambda x, g: named.npu_gelu(x), X * (1 + torch.erf(X / math.sqrt(2))) / 2),
    "linear": (lambda x, g: named.npu_linear(x, x[0], g[:3]), X @ X[0].T + G[:3]),
    "bmm": (lambda x, g: named.npu_bmmV2(x, x.mT, [18]), (X @ X.mT).reshape(18)),
    "transpose": (lambda x, g: named.npu_transpose(x, (2, 0, 1)), X.permute(2, 0, 1)),
    "confusion": (lambda x, g: named.npu_confusion_transpose(x, (1, 0, 2), (3, 8), True), torch.cat((*X,), 1)),
    "confused": (lambda x, g: named.npu_confusion_transpose(x, (1, 0), (4, 6), False), X.reshape(4, 6).T),
    "reshape": (lambda x, g: named.npu_reshape(x, (4, 6)), X.reshape(4, 6)),
    "broadcast": (lambda x, g: named.npu_broadcast(g, (3, 4)), G.expand(3, 4)),
    "dtype": (lambda x, g: named.npu_dtype_cast(x, torch.float16).double(), X.half().double()),
    "format": (lambda x, g: named.npu_format_cast(x, named.Format.FRACTAL_NZ), X),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_N5_operators_of_torch_npu(npu: ModuleType, case: str) -> None:
    function, expected = CASES[case]
    for device in ("cpu", "npu:0"):
        out = function(X.to(device), G.to(device))
        assert out.device.type == device[:3] and out.is_contiguous()
        tolerance = 1e-6 if case in ("rms_norm", "add_rms_norm", "rstd") else 1e-12
        torch.testing.assert_close(out.cpu().double(), expected, rtol=tolerance, atol=tolerance)


def test_N5_a_format_is_always_the_plain_one() -> None:
    assert named.npu_format_cast_(X, 29) is X and named.get_npu_format(X) is named.Format.ND
    with pytest.raises(ValueError, match="1000 is not a valid Format"):
        named.npu_format_cast(X, 1000)


def attention(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    """Of one head: (S, D) each; True leaves out."""
    scores = (q @ k.T * 0.5).masked_fill(mask, float("-inf"))
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
@pytest.mark.parametrize("mode", [None, 0, 2, 3])
def test_N5_fused_attention(layout: str, mode: int | None) -> None:
    generator = torch.Generator().manual_seed(1)
    b, n, s, t, d = 2, 4, 3, 5, 8
    q = torch.randn(b, n, s, d, generator=generator, dtype=torch.float64)
    k, v = (torch.randn(b, 2, t, d, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.zeros(s, t, dtype=torch.bool)
    if mode == 0:
        mask[:, 1] = True
    elif mode:
        mask = torch.ones(s, t, dtype=torch.bool).triu(1 if mode == 2 else 1 + t - s)
    expected = torch.stack([
        torch.stack([attention(q[i, j], k[i, j // 2], v[i, j // 2], mask) for j in range(n)]) for i in range(b)
    ])  # fmt: skip

    def shaped(x: torch.Tensor) -> torch.Tensor:
        order = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3), "SBH": (2, 0, 1, 3)}[layout]
        return x.permute(order).flatten(2) if layout.endswith("H") else x.permute(order)

    given = {"atten_mask": mask} if mode == 0 else {"atten_mask": torch.ones(2048, 2048)} if mode else {}
    out = named.npu_fusion_attention(
        *map(shaped, (q, k, v)), n, layout, scale=0.5, sparse_mode=mode or 0, **given
    )  # fmt: skip
    assert len(out) == 7 and out[0].is_contiguous()
    torch.testing.assert_close(out[0], shaped(expected), rtol=1e-9, atol=1e-9)


def test_N5_fused_attention_says_what_it_does_not_do() -> None:
    q = torch.ones(1, 2, 3, 4)
    for wrong in (
        {"softmax_layout": "TND"},
        {"sparse_mode": 4},
        {"pse": q},
        {"actual_seq_qlen": [3]},
        {"pre_tockens": 2},
        {"unknown": 1},
    ):
        with pytest.raises(mindtorch.UnsupportedOperationError, match=r"^\[npu_fusion_attention\] expected .* got"):
            named.npu_fusion_attention(q, q, q, 2, "BNSD", **wrong)
    with pytest.raises(mindtorch.UnsupportedOperationError, match="got 'TND'"):
        named.npu_fusion_attention(q[0], q[0], q[0], 2, "TND")
    given = named.npu_fusion_attention(q, q, q, 2, "BNSD", softmax_layout="", sparse_mode=3, pre_tockens=3)
    assert torch.equal(given[0], q)
    for heads, layout in ((7, "BNSD"), (7, "BSND"), (3, "BSH"), (0, "BNSD")):
        x = q.flatten(2) if layout == "BSH" else q
        with pytest.raises(ValueError, match=rf"^\[npu_fusion_attention\] expected as many heads .* got {heads} for"):
            named.npu_fusion_attention(x[..., :4] if layout == "BSH" else x, x, x, heads, layout)


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH"])
@pytest.mark.parametrize(("masked", "window"), [(False, {}), (True, {}), (True, {"next_tokens": 65535}),
                                                (True, {"next_tokens": 1, "pre_tokens": 1})])  # fmt: skip
def test_N5_attention_of_a_prompt(layout: str, masked: bool, window: dict[str, int]) -> None:
    """Its defaults let a query with a mask see nothing after it; without a mask all."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, n, 4, 8, generator=generator, dtype=torch.float64) for n in (4, 2, 2))
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[:, 0] = masked
    mask[0, 0] = False
    for i in range(4):
        for j in range(4):
            after, before = window.get("next_tokens", 0), window.get("pre_tokens", 4)
            mask[i, j] |= masked and (j - i > after or i - j > before)
    expected = torch.stack([torch.stack([attention(q[i, j], k[i, j // 2], v[i, j // 2], mask) for j in range(4)])
                            for i in range(2)])  # fmt: skip

    def shaped(x: torch.Tensor) -> torch.Tensor:
        return x if layout == "BNSD" else x.transpose(1, 2) if layout == "BSND" else x.transpose(1, 2).flatten(2)

    given = torch.zeros(4, 4, dtype=torch.bool)
    given[1:, 0] = True
    out = named.npu_prompt_flash_attention(
        *map(shaped, (q, k, v)), num_heads=4, num_key_value_heads=2, input_layout=layout, scale_value=0.5,
        atten_mask=given if masked else None, **window,
    )  # fmt: skip
    torch.testing.assert_close(out, shaped(expected), rtol=1e-9, atol=1e-9)


def test_N5_attention_of_a_prompt_says_what_it_does_not_do() -> None:
    q = torch.ones(1, 2, 3, 4)
    with pytest.raises(mindtorch.UnsupportedOperationError, match="expected no pse_shift, quant_scale1"):
        named.npu_prompt_flash_attention(q, q, q, num_heads=2, input_layout="BNSD", pse_shift=q, quant_scale1=q)
    for of_keys in (1, 4):
        with pytest.raises(ValueError, match=f"expected {of_keys} heads in keys and values, got 2 in a key of"):
            named.npu_prompt_flash_attention(q, q, q, num_heads=2, num_key_value_heads=of_keys, input_layout="BNSD")
    for heads, layout in ((1, "BNSD"), (0, "BSH"), (5, "BSH"), (3, "BSH")):
        x = q[0] if layout == "BSH" else q
        with pytest.raises(ValueError, match=f"expected as many heads as the query has in {layout}, got {heads} for"):
            named.npu_prompt_flash_attention(x, x, x, num_heads=heads, input_layout=layout)
    with pytest.raises(mindtorch.UnsupportedOperationError, match="got 'TND'"):
        named.npu_prompt_flash_attention(q[0], q[0], q[0], num_heads=2, input_layout="TND")
