"""SPEC L3, L7: strides of large tensors, and with them the last bits, are eager's in every layout.

Calls of up to 16,384 elements are tried on the kernel as they are: all tensors here are larger.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mindtorch._ext import lazy as _core
from mindtorch.engine.record import shrink, trial

CHANNELS_LAST = torch.channels_last


def test_L7_dropout_of_a_shuffled_channels_last_image(same_as_eager: Callable[..., None]) -> None:
    def program(device: str) -> object:
        x = torch.randn(2, 16, 48, 48, device=device).contiguous(memory_format=CHANNELS_LAST)
        return F.dropout(F.pixel_shuffle(x, 2), 0.5), F.dropout(F.channel_shuffle(x, 4), 0.5)

    same_as_eager(program)


def test_L7_gradient_through_a_permuted_norm(same_as_eager: Callable[..., None]) -> None:
    def program(device: str) -> object:
        torch.manual_seed(0)
        conv, norm = nn.Conv2d(3, 32, 3).to(device), nn.LayerNorm(32).to(device)
        torch.manual_seed(1)  # the modules were made with the CPU's generator
        y = conv(torch.randn(2, 3, 40, 40, device=device)).permute(0, 2, 3, 1)
        out = norm(y).permute(0, 3, 1, 2)
        (out * torch.randn(out.shape, device=device)).sum().backward()
        return out, conv.bias.grad, conv.weight.grad, norm.weight.grad

    same_as_eager(program)


def test_L7_attention_then_group_norm_and_convolution(same_as_eager: Callable[..., None]) -> None:
    def program(device: str) -> object:
        torch.manual_seed(0)
        norm, conv = nn.GroupNorm(8, 64).to(device), nn.Conv2d(64, 32, 3, padding=1).to(device)
        torch.manual_seed(1)
        with torch.no_grad():
            q = torch.randn(2, 4, 24 * 24, 16, device=device)
            y = F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(2, 24 * 24, 64)
            y = norm(y.transpose(1, 2).reshape(2, 64, 24, 24))
            return y, conv(y), F.dropout(y, 0.5)

    same_as_eager(program)


def _image(device: str) -> torch.Tensor:
    return torch.randn(2, 24, 32, 32, device=device).contiguous(memory_format=CHANNELS_LAST)


def _rows(device: str) -> torch.Tensor:
    return torch.rand(200, 160, device=device).t()


CALLS: dict[str, Callable[[str], torch.Tensor]] = {
    "group_norm": lambda d: F.group_norm(_image(d), 4),
    "reflection pad": lambda d: F.pad(_image(d), (1, 2, 3, 4), mode="reflect"),
    "replication pad": lambda d: F.pad(_image(d), (1, 2, 3, 4), mode="replicate"),
    "replication pad of a volume": lambda d: F.pad(_image(d)[None], (1, 2, 3, 4, 1, 1), mode="replicate"),
    "pixel_shuffle": lambda d: F.pixel_shuffle(_image(d), 2),
    "pixel_unshuffle": lambda d: F.pixel_unshuffle(_image(d), 2),
    "channel_shuffle": lambda d: F.channel_shuffle(_image(d), 3),
    "roll": lambda d: _image(d).roll((1, 2), (2, 3)),
    "roll of all": lambda d: _rows(d).roll(3),
    "rrelu": lambda d: F.rrelu(_rows(d), training=True),
    "xlogy": lambda d: torch.xlogy(_rows(d), _rows(d).contiguous()),
    "copysign": lambda d: torch.copysign(_rows(d), _rows(d).contiguous()),
    "logaddexp of a row": lambda d: torch.logaddexp(_rows(d), _rows(d)[0]),
    "nll_loss": lambda d: F.nll_loss(_image(d), torch.zeros(2, 32, 32, dtype=torch.int64, device=d), reduction="none"),
    "nll_loss of permuted targets": lambda d: F.nll_loss(
        _image(d), torch.zeros(2, 32, 32, dtype=torch.int64, device=d).mT, reduction="none"
    ),
    "poisson": lambda d: torch.poisson(_rows(d)),
    "normal": lambda d: torch.normal(_rows(d), _rows(d)),
    "normal of means": lambda d: torch.normal(_rows(d), 1.0),
    "normal of deviations": lambda d: torch.normal(0.0, _rows(d)),
    "bernoulli": lambda d: torch.bernoulli(_rows(d)),
    "one_hot": lambda d: F.one_hot((_rows(d) * 5).long(), 5),
    "one_hot of few": lambda d: F.one_hot((_rows(d)[:4, :5] * 5).long(), 5),
    "conv1d": lambda d: F.conv1d(_rows(d)[None], torch.ones(3, 8, 160, device=d).mT),
    "log_sigmoid": lambda d: F.logsigmoid(_rows(d)),
    "ldexp": lambda d: torch.ldexp(_rows(d), _rows(d)[0]),
    "a power of two": lambda d: 2 ** _rows(d),
    "angle": lambda d: (_rows(d) + 1j).angle(),
    "gamma": lambda d: torch._standard_gamma(_rows(d) + 1),
    "max_pool1d": lambda d: F.max_pool1d(_rows(d)[None], 2),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("copies", [True, False], ids=["tried-on-copies", "predicted"])
def test_L3_strides_of_large_results(name: str, copies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "COPIES", copies)
    _core.forget_calls()
    torch.manual_seed(0)
    expected, got = CALLS[name]("cpu"), CALLS[name]("remote_accelerator:0")
    assert got.stride() == expected.stride()
    assert got.materialize().stride() == expected.stride()


GRADIENTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "layer_norm": lambda x, y: F.layer_norm(x, x.shape[-1:]),
    "log_softmax": lambda x, y: F.log_softmax(x, 1),
    "cross_entropy": lambda x, y: F.cross_entropy(x, torch.zeros_like(x[:, 0], dtype=torch.int64)),
    "huber_loss": lambda x, y: F.huber_loss(x, y),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(x, y),
    "mse_loss": lambda x, y: F.mse_loss(x, y),
    "glu": lambda x, y: F.glu(x, 1),
    "min": lambda x, y: x.min(),
    "max": lambda x, y: x.max(),
    "max of rows": lambda x, y: x.max(1).values,
    "median": lambda x, y: x.median(),
    "median of rows": lambda x, y: x.median(1).values,
    "reflection pad": lambda x, y: F.pad(x, (1, 1, 1, 1), mode="reflect") if x.dim() > 2 else x * 1,
    "replication pad": lambda x, y: F.pad(x, (1, 1, 1, 1), mode="replicate") if x.dim() > 2 else x * 1,
    "masked_select": lambda x, y: x.masked_select(y > 0.5),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("make", [_image, _rows], ids=["channels-last", "transposed"])
def test_L3_strides_of_large_gradients(name: str, make: Callable[[str], torch.Tensor]) -> None:
    def gradients(device: str) -> list[tuple[int, ...] | str]:
        torch.manual_seed(0)
        x, y = (make(device).detach().requires_grad_() for _ in range(2))
        try:
            out = GRADIENTS[name](x, y)
            found = torch.autograd.grad(out, (x, y), torch.ones_like(out), allow_unused=True)
        except RuntimeError as error:
            return [str(error)]
        return [() if g is None else g.stride() for g in found]

    assert gradients("remote_accelerator:0") == gradients("cpu")


NORMS: dict[str, Callable[..., object]] = {
    "rms_norm": lambda x, shape, weight: F.rms_norm(x, shape, weight),
    "_fused_rms_norm": lambda x, shape, weight: torch.ops.aten._fused_rms_norm(x, shape, weight, None),
    "layer_norm": lambda x, shape, weight: F.layer_norm(x, shape, weight),
    "native_layer_norm": lambda x, shape, weight: torch.native_layer_norm(x, shape, weight, None, 1e-5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_L3_norms_of_empty_tensors_and_of_odd_strides(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is empty, or has sizes of 1, passes for contiguous with strides that kernels hand on; nothing is tried."""
    monkeypatch.setattr(trial, "COPIES", False)
    monkeypatch.setattr(trial, "OWN_SIZE", -1)
    _core.forget_calls()

    def facts(device: str, size: tuple[int, ...], stride: tuple[int, ...], weighs: torch.dtype | None) -> object:
        x = torch.empty_strided(size, stride, dtype=dtype, device=device)
        weight = None if weighs is None else torch.ones(size[-1:], dtype=weighs, device=device)
        made = NORMS[name](x, size[-1:], weight)
        return [(t.shape, t.stride(), t.dtype) for t in (made if isinstance(made, tuple) else (made,))]

    wrong = []
    for size in itertools.product((0, 1, 3), repeat=3):
        for order in itertools.permutations(range(3)):
            stride = torch.empty([size[i] for i in order]).permute([order.index(i) for i in range(3)]).stride()
            for weighs in (None, dtype, torch.float32):
                eager, lazy = (facts(d, size, stride, weighs) for d in ("cpu", "remote_accelerator:0"))
                wrong += [(size, stride, weighs, lazy, eager)] if lazy != eager else []
    assert wrong == []


# ---- small copies of large calls -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("size", "stride", "new", "expected"), [
    ((200, 100), (100, 1), (8, 12), (12, 1)),
    ((200, 100), (1, 200), (8, 12), (1, 8)),
    ((2, 64, 32, 32), (65536, 1, 2048, 64), (2, 12, 8, 8), (768, 1, 96, 12)),
    ((200, 100), (100, 0), (8, 12), (1, None)),  # expanded, with a gap where the row was
    ((200, 100), (200, 2), (8, 12), (24, 2)),  # every second column
    ((1, 100, 7), (700, 7, 1), (1, 12, 7), (84, 7, 1)),
    ((100, 1, 7), (7, 1, 1), (12, 1, 7), (7, 1, 1)),  # channels last with one channel
    ((100, 100), (1, 1), (12, 12), None),  # windows: elements that share memory
])  # fmt: skip
def test_L9_copies_keep_the_order_of_strides(size: tuple, stride: tuple, new: tuple, expected: tuple | None) -> None:
    got = shrink.strides(size, stride, new)
    if expected is not None and None in expected:
        assert got is not None and got[1] == 0 and got[0] > 1
    else:
        assert got == expected


def test_L9_copies_keep_relations_between_sizes() -> None:
    fact = (torch.float32, torch.Size([32, 256, 14, 14]), None, 0, 0, 0)
    weight = (torch.float32, torch.Size([256]), None, 0, 0, 0)
    args, _kwargs, (x, w) = next(shrink.copies((32, 256, 196, 1e-5, True), {}, [fact, weight], 1 << 18))
    assert x[1].numel() < 20_000 and x[1][1] == w[1][0] and x[1][2] == x[1][3]
    assert args == (x[1][0], x[1][1], x[1][2] * x[1][3], 1e-5, True)


def test_L9_the_layout_of_a_dense_result_carries_over() -> None:
    small = torch.empty(2, 12, 8, 16).contiguous(memory_format=CHANNELS_LAST)
    large = torch.empty(2, 64, 30, 50).contiguous(memory_format=CHANNELS_LAST)
    assert shrink.dense(tuple(small.shape), small.stride(), tuple(large.shape)) == large.stride()
    assert shrink.dense((4, 6), (12, 2), (40, 60)) is None


def test_L3_strides_within_what_a_tensor_reaches_wait_and_those_beyond_do_not() -> None:
    """Whether there is more of the storage than a tensor shows is known where that is, not where calls are recorded."""
    for shown, waits in ((6, True), (5, False)):
        x = torch.arange(6.0, device="remote_accelerator:0") + 1
        y = x[:shown].as_strided((2, 3), (3, 1))
        assert y.materialized is not waits
        assert y.tolist() == [[1, 2, 3], [4, 5, 6]]
