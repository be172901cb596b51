"""SPEC L9: what eager refuses for its shapes and dtypes is refused at the call, in eager's words, at any size.

Small calls are tried on the kernel as they are. Here all tensors have 200 x 200 elements: more than that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import mindtorch

N = 200


class Inputs:
    """Tensors for mistakes, on one device."""

    def __init__(self, device: str) -> None:
        self.x = torch.linspace(0.1, 0.9, N * N, device=device).reshape(N, N)
        self.half = self.x[:, : N // 2]
        self.double = self.x.double()
        self.whole = torch.arange(N * N, device=device).reshape(N, N) % 7
        self.short = self.whole.int()
        self.truth = self.x > 0.5
        self.complex = self.x + 1j
        self.image = self.x.reshape(1, 4, 100, 100)
        self.row = torch.arange(N, device=device)
        self.weight = torch.ones(8, 4, 3, 3, device=device)


MISTAKES: dict[str, Callable[[Inputs], object]] = {
    # products
    "matmul of two dtypes": lambda m: m.x @ m.double,
    "matmul of two dtypes, in part": lambda m: m.half @ torch.ones_like(m.x)[:100, :5].double(),
    "matmul of floats and integers": lambda m: m.x @ m.whole,
    "matmul of booleans": lambda m: m.truth @ m.truth,
    "matmul of other sizes": lambda m: m.half @ m.x,
    "mm of other sizes": lambda m: torch.mm(m.half, m.half),
    "bmm of matrices": lambda m: torch.bmm(m.x, m.x),
    "bmm of two dtypes": lambda m: torch.bmm(m.x[None], m.double[None]),
    "addmm of two dtypes": lambda m: torch.addmm(m.x, m.x, m.double),
    "addmm of another bias": lambda m: torch.addmm(m.double, m.x, m.x),
    "linear of two dtypes": lambda m: F.linear(m.x, m.double),
    "linear with another bias": lambda m: F.linear(m.x, m.x, m.double[0]),
    "linear of other sizes": lambda m: F.linear(m.half, m.x),
    "linear with a long bias": lambda m: F.linear(m.x, m.x, m.x.reshape(-1)),
    "mv of a matrix": lambda m: torch.mv(m.x, m.x),
    "dot of two dtypes": lambda m: torch.dot(m.x.reshape(-1), m.double.reshape(-1)),
    "dot of other sizes": lambda m: torch.dot(m.x.reshape(-1), m.half.reshape(-1)),
    "outer of matrices": lambda m: torch.outer(m.x, m.x),
    "einsum of other sizes": lambda m: torch.einsum("ij,jk->ik", m.half, m.x),
    "einsum of two dtypes": lambda m: torch.einsum("ij,jk->ik", m.x, m.double),
    "baddbmm of two dtypes": lambda m: torch.baddbmm(m.x[None], m.x[None], m.double[None]),
    "addmv of two dtypes": lambda m: torch.addmv(m.x[0], m.x, m.double[0]),
    "addr of two dtypes in place": lambda m: m.whole.addr_(m.x[0], m.x[0]),
    "attention of two dtypes": lambda m: F.scaled_dot_product_attention(m.x[None], m.double[None], m.x[None]),
    # element by element
    "add of other sizes": lambda m: m.x + m.half,
    "mul_ of integers by a fraction": lambda m: m.whole.mul_(1.5),
    "add_ of a float to integers": lambda m: m.whole.add_(m.x),
    "div_ of integers": lambda m: m.whole.div_(2),
    "sub of booleans": lambda m: m.truth - m.truth,
    "neg of booleans": lambda m: -m.truth,
    "bitwise and of floats": lambda m: m.x & m.x,
    "bitwise not of floats": lambda m: ~m.x,
    "shift of floats": lambda m: m.x << 2,
    "pow of integers by a negative number": lambda m: m.whole**-1,
    "sqrt_ of integers": lambda m: m.whole.sqrt_(),
    "floor of complex numbers": lambda m: m.complex.floor(),
    "less than of complex numbers": lambda m: m.complex < m.complex,
    "maximum of complex numbers": lambda m: torch.maximum(m.complex, m.complex),
    "remainder of complex numbers": lambda m: torch.remainder(m.complex, 2),
    "clamp of complex numbers": lambda m: m.complex.clamp(0, 1),
    "clamp without limits": lambda m: m.x.clamp(),
    "lerp of two dtypes": lambda m: torch.lerp(m.x, m.double, 0.5),
    "where of other sizes": lambda m: torch.where(m.truth, m.x, m.half),
    "where with a float condition": lambda m: torch.where(m.x, m.x, m.x),
    "addcmul_ of integers": lambda m: m.whole.addcmul_(m.x, m.x),
    "copysign_ of integers": lambda m: m.whole.copysign_(m.x),
    "gcd of floats": lambda m: torch.gcd(m.x, m.x),
    "polar of integers": lambda m: torch.polar(m.whole, m.whole),
    "complex of two dtypes": lambda m: torch.complex(m.x, m.double),
    "relu of booleans": lambda m: torch.relu(m.truth),
    "gelu of integers": lambda m: F.gelu(m.whole),
    "silu of integers": lambda m: F.silu(m.whole),
    "glu of an odd size": lambda m: F.glu(m.x[:, :199]),
    "prelu of two dtypes": lambda m: F.prelu(m.x, m.double[0, :1]),
    "softplus of integers": lambda m: F.softplus(m.whole),
    # reductions
    "softmax of integers": lambda m: torch.softmax(m.whole, 0),
    "log_softmax of integers": lambda m: F.log_softmax(m.whole, 1),
    "mean of integers": lambda m: m.whole.mean(),
    "var of integers": lambda m: m.whole.var(),
    "norm of integers": lambda m: torch.linalg.norm(m.whole),
    "sum over a dimension too many": lambda m: m.x.sum(2),
    "max of complex numbers": lambda m: m.complex.max(),
    "argmax of complex numbers": lambda m: m.complex.argmax(),
    "sort of complex numbers": lambda m: m.complex.sort(),
    "topk of too many": lambda m: m.x.topk(N + 1),
    "median of complex numbers": lambda m: m.complex.median(),
    "kthvalue of too many": lambda m: m.x.kthvalue(N + 1),
    "cumsum over a dimension too many": lambda m: m.x.cumsum(2),
    "logcumsumexp of integers": lambda m: m.whole.logcumsumexp(0),
    "quantile of integers": lambda m: m.whole.quantile(0.5),
    "cross of other sizes": lambda m: torch.linalg.cross(m.x, m.x),
    "cdist of two dtypes": lambda m: torch.cdist(m.x, m.whole),
    # indices
    "gather by floats": lambda m: m.x.gather(0, m.x),
    "gather by short integers": lambda m: m.x.gather(0, m.truth),
    "scatter of two dtypes": lambda m: m.x.scatter(0, m.whole, m.double),
    "scatter_add of two dtypes": lambda m: m.x.scatter_add(0, m.whole, m.double),
    "index_select by floats": lambda m: m.x.index_select(0, m.x[0]),
    "index_select by a matrix": lambda m: m.x.index_select(0, m.whole),
    "index_add of other sizes": lambda m: m.x.index_add(0, m.row, m.half),
    "index_add of too few": lambda m: m.x.index_add(0, m.row[:10], m.x),
    "index_add of two dtypes": lambda m: m.x.index_add(0, m.row, m.double),
    "index_copy of two dtypes": lambda m: m.x.index_copy(0, m.row, m.double),
    "index_fill by floats": lambda m: m.x.index_fill(0, m.x[0], 1),
    "index_put of two dtypes": lambda m: m.x.index_put((m.row,), m.double),
    "index by floats": lambda m: m.x[m.x],
    "take by floats": lambda m: m.x.take(m.x),
    "take_along_dim by floats": lambda m: torch.take_along_dim(m.x, m.x, 0),
    "masked_fill by integers": lambda m: m.x.masked_fill(m.whole, 1.0),
    "masked_scatter of two dtypes": lambda m: m.x.masked_scatter(m.truth, m.double),
    "masked_scatter by integers": lambda m: m.x.masked_scatter(m.whole, m.x),
    "embedding by floats": lambda m: F.embedding(m.x, m.x),
    "one_hot of short integers": lambda m: F.one_hot(m.short, 7),
    "bucketize by complex numbers": lambda m: torch.bucketize(m.complex, m.x[0]),
    # losses
    "cross_entropy with short targets": lambda m: F.cross_entropy(m.x, m.short[0]),
    "cross_entropy with other sizes": lambda m: F.cross_entropy(m.x, m.whole[0, :100]),
    "cross_entropy with another weight": lambda m: F.cross_entropy(m.x, m.whole[0], m.x[0, :10]),
    "cross_entropy with a weight of another dtype": lambda m: F.cross_entropy(m.x, m.whole[0], m.double[0]),
    "nll_loss with float targets": lambda m: F.nll_loss(m.x, m.x[0]),
    "binary cross entropy with integer targets": lambda m: F.binary_cross_entropy(m.x, m.whole),
    "binary cross entropy of two dtypes": lambda m: F.binary_cross_entropy(m.x, m.double),
    "binary cross entropy with other sizes": lambda m: F.binary_cross_entropy(m.x, m.half),
    "logits with other sizes": lambda m: F.binary_cross_entropy_with_logits(m.x, m.half),
    "mse_loss of integers": lambda m: F.mse_loss(m.whole, m.whole),
    "mse_loss with other sizes": lambda m: F.mse_loss(m.x, m.half),
    "huber_loss with other sizes": lambda m: F.huber_loss(m.x, m.half),
    "smooth_l1_loss of integers": lambda m: F.smooth_l1_loss(m.whole, m.whole),
    "multi_margin_loss with short targets": lambda m: F.multi_margin_loss(m.x, m.short[0]),
    "multilabel_margin_loss with float targets": lambda m: F.multilabel_margin_loss(m.x, m.x),
    # layers
    "conv2d with other channels": lambda m: F.conv2d(m.image, m.weight[:, :3]),
    "conv2d of two dtypes": lambda m: F.conv2d(m.image, m.weight.double()),
    "conv2d with another bias": lambda m: F.conv2d(m.image, m.weight, m.x[0, :7]),
    "conv2d with a bias of another dtype": lambda m: F.conv2d(m.image, m.weight, m.double[0, :8]),
    "conv2d with a kernel too large": lambda m: F.conv2d(
        m.image, m.x.reshape(1, 4, 100, 100).expand(1, 4, 100, 100), dilation=2
    ),
    "conv_transpose2d with other channels": lambda m: F.conv_transpose2d(m.image, m.weight),
    "conv1d of an image": lambda m: F.conv1d(m.image, m.weight),
    "layer_norm of two dtypes": lambda m: F.layer_norm(m.x, (N,), m.double[0], m.double[0]),
    "layer_norm with other sizes": lambda m: F.layer_norm(m.x, (N // 2,)),
    "layer_norm with another weight": lambda m: F.layer_norm(m.x, (N,), m.x[0, :100]),
    "layer_norm of integers": lambda m: F.layer_norm(m.whole, (N,)),
    "group_norm in other groups": lambda m: F.group_norm(m.image, 3),
    "group_norm with another weight": lambda m: F.group_norm(m.image, 2, m.x[0, :3]),
    "batch_norm with other statistics": lambda m: F.batch_norm(m.image, m.x[0, :3], m.x[0, :3]),
    "batch_norm of integers": lambda m: F.batch_norm(m.whole, None, None, training=True),
    "max_pool2d of booleans": lambda m: F.max_pool2d(m.truth.reshape(1, 4, 100, 100), 2),
    "avg_pool2d with too much padding": lambda m: F.avg_pool2d(m.image, 2, padding=3),
    "avg_pool2d of booleans": lambda m: F.avg_pool2d(m.truth.reshape(1, 4, 100, 100), 2),
    "adaptive_avg_pool2d of integers": lambda m: F.adaptive_avg_pool2d(m.whole.reshape(1, 4, 100, 100), 5),
    "interpolate of integers": lambda m: F.interpolate(m.whole.reshape(1, 4, 100, 100), scale_factor=2, mode="bicubic"),
    "reflection pad too wide": lambda m: F.pad(m.image, (100, 100, 0, 0), mode="reflect"),
    "replication pad of booleans": lambda m: F.pad(m.truth.reshape(1, 4, 100, 100), (1, 1, 1, 1), mode="replicate"),
    "pixel_shuffle of other channels": lambda m: F.pixel_shuffle(m.image, 3),
    "channel_shuffle of other groups": lambda m: F.channel_shuffle(m.image, 3),
    "grid_sample of two dtypes": lambda m: F.grid_sample(m.image, m.double.reshape(1, 100, 200, 2)),
    "unfold of integers": lambda m: F.fold(m.x, (10, 10), 3),
    "dropout of integers": lambda m: F.dropout(m.whole, 0.5),
    # made of others
    "cat of other sizes": lambda m: torch.cat([m.x, m.half]),
    "stack of other sizes": lambda m: torch.stack([m.x, m.half]),
    "copy_ of other sizes": lambda m: m.x.copy_(m.half),
    "masked_fill_ of integers by a fraction": lambda m: m.truth.masked_fill_(m.whole, 1.5),
    "uniform_ of integers": lambda m: m.whole.uniform_(),
    "normal_ of integers": lambda m: m.whole.normal_(),
    "bernoulli of integers": lambda m: m.whole.bernoulli(),
    "exponential_ of integers": lambda m: m.whole.exponential_(),
    "multinomial of integers": lambda m: m.whole.multinomial(2),
    "normal_ in an expanded tensor": lambda m: m.x[:1].expand(N, N).normal_(),
    "add_ to an expanded tensor": lambda m: m.x[:1].expand(N, N).add_(1),
    "fft of short floats": lambda m: torch.fft.fft(m.x.bfloat16()),
    "renorm of integers": lambda m: m.whole.renorm(2, 0, 1.0),
    "bincount of floats": lambda m: torch.bincount(m.x.reshape(-1)),
    "out= of another dtype": lambda m: torch.add(m.x, m.x, out=m.whole),
}


def _refusal(mistake: Callable[[Inputs], object], device: str) -> Exception | None:
    inputs = Inputs(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            mistake(inputs)
        except Exception as error:
            return error
    return None


@pytest.mark.parametrize("name", MISTAKES)
def test_L9_mistakes_with_large_tensors_are_raised_at_the_call(name: str) -> None:
    eager = _refusal(MISTAKES[name], "cpu")
    assert eager is not None, "torch takes this call"
    lazy = _refusal(MISTAKES[name], "remote_accelerator:0")
    if isinstance(lazy, mindtorch.UnsupportedOperationError):  # SPEC L8
        assert isinstance(eager, NotImplementedError) and str(eager) in str(lazy)
    else:
        assert type(lazy) is type(eager), f"{lazy!r}, eager {eager!r}"
        assert str(lazy) == str(eager)


ENDLESS: dict[str, Callable[[list[object]], object]] = {
    "stack": lambda given: torch.stack(given),  # type: ignore[arg-type]
    "cat": lambda given: torch.cat(given),  # type: ignore[arg-type]
    "add": lambda given: torch.add(torch.ones(2, device=given[0].device), given),  # type: ignore[attr-defined, call-overload]
}


@pytest.mark.parametrize("inner", [list, tuple])
@pytest.mark.parametrize("call", ENDLESS)
def test_L9_a_list_that_is_in_itself_is_refused_in_eagers_words(call: str, inner: type) -> None:
    said = []
    for device in ("cpu", "remote_accelerator:0"):
        given: list[object] = [torch.ones(2, device=device)]
        if call != "add":
            ENDLESS[call](given), ENDLESS[call](given)  # from now on, torch's function is not asked first
        given.append(given if inner is list else (given,))
        with pytest.raises(TypeError) as refused:
            ENDLESS[call](given)
        said.append(str(refused.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("inner", [list, tuple])
def test_L9_a_list_of_nothing_but_itself_is_refused_in_eagers_words(inner: type) -> None:
    said = []
    for device in ("cpu", "remote_accelerator:0"):
        given: list[object] = []
        given.append(given if inner is list else (given,))
        with pytest.raises(TypeError) as refused:
            torch.add(torch.ones(2, device=device), given)  # type: ignore[call-overload]
        said.append(str(refused.value))
    assert said[0] == said[1]
