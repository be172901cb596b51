"""C3: FLOPs are honest. Matrix work equals torch's counter where that is right, and closed forms everywhere."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from mindtorch.ops import count_flops, op_name, row

aten = torch.ops.aten


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def flops(func, *args, **kwargs) -> int:
    counted = count_flops(func, args, kwargs, func(*args, **kwargs))
    assert counted is not None, func
    return counted.flops


class Counter(TorchDispatchMode):
    """Sum of our counts over everything that reaches the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = self.other = self.macs = 0
        self.uncounted: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        counted = count_flops(func, args, kwargs, out)
        if counted is None:
            self.uncounted.add(op_name(func))
        elif counted.category in ("matmul", "attention", "conv", "rnn"):
            self.matrix += counted.flops
            self.macs += counted.macs
        else:
            assert counted.macs == 0
            self.other += counted.flops
        return out


def both(run) -> tuple[Counter, int]:
    theirs = FlopCounterMode(display=False)
    with theirs:
        run()
    with Counter() as ours:
        run()
    return ours, theirs.get_total_flops()


def test_C3_products_of_complex_numbers_equal_torch_counter():
    a, b = torch.empty(5, 8, dtype=torch.complex64), torch.empty(8, 3, dtype=torch.complex64)
    ours, theirs = both(lambda: (a @ b, torch.bmm(a[None], b[None])))
    assert ours.matrix == theirs == 2 * 2 * 5 * 8 * 3


def test_C3_products_equal_torch_counter():
    rng = random.Random(0)
    for _ in range(60):
        b, m, k, n = (rng.choice((0, 1, 2, 3, 7, 16)) for _ in range(4))
        for func, args in (
            (aten.mm, (meta(m, k), meta(k, n))),
            (aten.bmm, (meta(b, m, k), meta(b, k, n))),
            (aten.addmm, (meta(n), meta(m, k), meta(k, n))),
            (aten.baddbmm, (meta(b, m, n), meta(b, m, k), meta(b, k, n))),
        ):
            assert flops(func, *args) == flop_registry[func](*args, out_val=func(*args))


def test_C3_composites_equal_their_decomposition():
    """What is recorded whole (`linear`, `matmul`, `einsum` ...) counts as the products it consists of."""
    cases = [
        (F.linear, (meta(2, 5, 8), meta(3, 8), meta(3))),
        (F.linear, (meta(8), meta(3, 8))),
        (F.linear, (meta(0, 8), meta(3, 8))),
        (torch.matmul, (meta(2, 5, 8), meta(8, 3))),
        (torch.matmul, (meta(4, 1, 5, 8), meta(2, 8, 3))),
        (torch.matmul, (meta(5, 8), meta(2, 8, 3))),
        (torch.matmul, (meta(2, 5, 8), meta(8, 0))),
        (torch.Tensor.matmul, (meta(5, 8), meta(8, 3))),
        (torch.Tensor.__matmul__, (meta(5, 8), meta(8, 3))),
        (torch.Tensor.__rmatmul__, (meta(8, 3), meta(5, 8))),
        (torch.tensordot, (meta(2, 5, 8), meta(5, 8, 3))),
        (torch.inner, (meta(2, 5, 8), meta(3, 8))),
        (torch.einsum, ("bij,bjk->bik", meta(2, 5, 8), meta(2, 8, 3))),
        (torch.einsum, ("bij,bjk", meta(2, 5, 8), meta(2, 8, 3))),
        (torch.einsum, ("...ij,jk->...ik", meta(4, 2, 5, 8), meta(8, 3))),
        (torch.einsum, ("bhqd,bhkd->bhqk", meta(2, 3, 5, 8), meta(2, 3, 7, 8))),
        (torch.chain_matmul, (meta(2, 5), meta(5, 8))),
    ]
    for func, args in cases:
        with FlopCounterMode(display=False) as theirs:
            out = func(*args)
        if func is torch.chain_matmul:
            args = (args,)
        counted = count_flops(func, args, {}, out)
        assert counted is not None, func
        assert counted.flops == theirs.get_total_flops(), (func, [getattr(a, "shape", a) for a in args])


def test_C3_vectors():
    assert flops(torch.mv, meta(5, 8), meta(8)) == 2 * 5 * 8
    assert flops(torch.dot, meta(8), meta(8)) == 2 * 8
    assert flops(torch.addmv, meta(5), meta(5, 8), meta(8)) == 2 * 5 * 8
    assert flops(torch.addr, meta(5, 8), meta(5), meta(8)) == 2 * 5 * 8
    assert flops(torch.linalg.vecdot, meta(3, 1, 8), meta(1, 4, 8)) == 2 * 12 * 8
    assert flops(torch.addbmm, meta(5, 3), meta(2, 5, 8), meta(2, 8, 3)) == 2 * 2 * 5 * 8 * 3
    assert flops(torch.matmul, input=meta(5, 8), other=meta(8)) == 2 * 5 * 8


def test_C3_no_formula_is_not_zero():
    assert count_flops(torch.linalg.svd, (meta(3, 3),), {}, None) is None
    assert count_flops("aten::no_such_op", (), {}, None) is None
    assert count_flops(torch.mm, (), {}, None) is None  # a call the rule does not understand
    three = ("ab,bc,cd", meta(2, 2), meta(2, 2), meta(2, 2))
    assert count_flops(torch.einsum, three, {}, meta(2, 2)) is None  # the order is the library's choice
    for func, args in ((torch.reshape, (meta(2, 3), (6,))), (torch.cat, ([meta(2), meta(2)],)), (torch.rand, (3,))):
        assert flops(func, *args) == 0
    x, some = torch.zeros(100, 3), torch.zeros(4, dtype=torch.long)
    for func, places in ((torch.index_add, some), (torch.scatter_add, some.new_zeros(4, 3))):  # as many as are added
        assert flops(func, x, 0, places, torch.zeros(4, 3)) == 4 * 3
    assert flops(torch.index_reduce, x, 0, some, torch.zeros(4, 3), "prod") == 4 * 3
    assert flops(F.embedding, torch.zeros(4, dtype=torch.long), torch.zeros(5, 3)) == 0


def test_C3_elementwise_reduction_and_layers():
    assert flops(torch.add, meta(3, 1), meta(1, 4)) == 12
    assert flops(torch.exp, meta(3, 4)) == 12
    assert flops(torch.Tensor.add_, meta(3, 4), 1) == 12
    assert flops(torch.sum, meta(3, 4), 0) == 12
    assert flops(torch.var, meta(3, 4)) == 48
    assert flops(F.softmax, meta(3, 4), -1) == 5 * 12
    assert flops(F.layer_norm, meta(3, 4), (4,)) == 5 * 12
    assert flops(F.max_pool2d, meta(1, 2, 8, 8), 2) == 2 * 4 * 4 * 4
    assert flops(torch.max_pool1d, meta(1, 2, 8), [2]) == 2 * 4 * 2
    assert flops(aten._foreach_mul.Scalar, [meta(3), meta(4)], 2.0) == 7
    assert flops(aten._foreach_add_.Scalar, [meta(3), meta(4)], 2.0) == 7  # returns nothing
    fused = [[meta(3, 2)] for _ in range(4)]
    args = (*fused, [], [meta()])
    kwargs = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    counted = count_flops(aten._fused_adamw_.default, args, kwargs, None)
    assert counted == (13 * 6, 0, "optimizer")


CONV_CASES = [
    # (batch, channels in, channels out, spatial, kernel, stride, padding, dilation, groups, transposed)
    (2, 4, 6, (9,), (3,), 1, 0, 1, 1, False),
    (2, 4, 6, (9, 7), (3, 2), 2, 1, 1, 1, False),
    (1, 4, 6, (5, 6, 7), (2, 2, 2), 1, 0, 1, 1, False),
    (2, 4, 6, (9, 9), (3, 3), 1, 2, 2, 2, False),
    (2, 8, 8, (9, 9), (3, 3), 1, 1, 1, 8, False),
    (2, 4, 6, (5, 7), (3, 3), 2, 1, 1, 1, True),
    (2, 4, 6, (5, 7), (3, 3), 2, 1, 1, 2, True),
    (0, 4, 6, (5, 7), (3, 3), 1, 1, 1, 1, False),
]


@pytest.mark.parametrize("case", CONV_CASES)
def test_C3_convolution_equals_torch_counter(case):
    n, cin, cout, space, kernel, stride, padding, dilation, groups, transposed = case
    ndim = len(space)
    x = meta(n, cin, *space)
    w = meta(cin, cout // groups, *kernel) if transposed else meta(cout, cin // groups, *kernel)
    rest = ([stride] * ndim, [padding] * ndim, [dilation] * ndim, transposed, [0] * ndim, groups)
    out = aten.convolution(x, w, None, *rest)
    count = flop_registry[aten.convolution](x, w, None, *rest, out_val=out)
    assert count_flops(aten.convolution, (x, w, None, *rest), {}, out).flops == count
    function = getattr(F, f"conv_transpose{ndim}d" if transposed else f"conv{ndim}d")
    if transposed:
        args = (x, w, None, stride, padding, 0, groups, dilation)
    else:
        args = (x, w, None, stride, padding, dilation, groups)
    assert flops(function, *args) == count
    if n:
        one = (x[0], *args[1:])
        assert flops(function, *one) * n == count  # without a batch dimension
    for mask in ([True, True, True], [True, False, False], [False, True, False], [False, False, True]):
        args = (out, x, w, [cout], *rest, mask)
        grads = aten.convolution_backward(*args)
        ours = count_flops(aten.convolution_backward, args, {}, grads).flops
        assert ours == count * (mask[0] + mask[1])  # each gradient is as much work as the forward
        theirs = flop_registry[aten.convolution_backward](*args, out_val=grads)
        # torch's weight gradient of a grouped convolution is `groups` times too high (torch 2.13)
        assert theirs == count * (mask[0] + groups * mask[1])


@pytest.mark.parametrize("heads_kv", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_C3_attention_counted_on_every_backend(heads_kv, causal):
    """The state convention: a causal mask does not reduce the count."""
    b, h, s, t, d, dv = 2, 4, 5, 7, 8, 6
    q, k, v = meta(b, h, s, d), meta(b, heads_kv, t, d), meta(b, heads_kv, t, dv)
    expected = 2 * b * h * s * t * (d + dv)
    gqa = heads_kv != h
    assert flops(F.scaled_dot_product_attention, q, k, v, is_causal=causal, enable_gqa=gqa) == expected
    assert flops(F.scaled_dot_product_attention, query=q, key=k, value=v, enable_gqa=gqa) == expected
    grad = meta(b, h, s, dv)
    for name in ("flash", "efficient", "cudnn"):
        forward = getattr(aten, f"_scaled_dot_product_{name}_attention")
        backward = getattr(aten, f"_scaled_dot_product_{name}_attention_backward")
        assert flop_registry[forward](q, k, v) == expected == count_flops(forward, (q, k, v), {}, None).flops
        ours = count_flops(backward, (grad, q, k, v), {}, None).flops
        assert ours == flop_registry[backward](grad, q, k, v) == 2 * b * h * s * t * (3 * d + 2 * dv)
    for name in ("_for_cpu", "_for_cpu_backward"):
        assert row(f"aten::_scaled_dot_product_flash_attention{name}").flops is not None
    for name in ("higher_order::flex_attention", "aten::_scaled_dot_product_fused_attention_overrideable"):
        assert count_flops(name, (q, k, v), {}, None).flops == expected


def test_C3_attention_cpu_kernel_that_torch_misses():
    """torch's counter sees nothing of the CPU attention kernels before 2.15; we count them as on meta."""
    q, k, v = (torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3))
    ours, theirs = both(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward())
    assert theirs in (0, ours.matrix)
    assert ours.matrix == 2 * 2 * 3 * 5 * 5 * (8 + 8) + 2 * 2 * 3 * 5 * 5 * 5 * 8
    assert not ours.uncounted


def test_C3_attention_length_first_layouts():
    b, s, t, h, d = 2, 5, 7, 3, 8
    q, k, v = meta(b, s, h, d), meta(b, t, h, d), meta(b, t, h, d)
    expected = 4 * b * h * s * t * d
    assert count_flops("aten::_flash_attention_forward", (q, k, v, None, None, s, t), {}, None).flops == expected
    args = (q, k, v, None, None, None, None, None)
    assert count_flops("aten::_efficient_attention_forward", args, {}, None).flops == expected
    packed = meta(b * s, h, d), meta(b * t, h, d), meta(b * t, h, d)
    lengths = meta(b + 1, dtype=torch.int32)
    args = (*packed, lengths, lengths, s, t)
    assert count_flops("aten::_flash_attention_forward", args, {}, None).flops == expected
    assert count_flops("aten::_flash_attention_forward", args, {}, None).flops == (
        flop_registry[aten._flash_attention_forward](*args)
    )
    grad = meta(b * s, h, d)
    back = (grad, *packed, grad, meta(h, b * s), lengths, lengths, s, t)
    assert count_flops("aten::_flash_attention_backward", back, {}, None).flops == (
        flop_registry[aten._flash_attention_backward](*back)
    )


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(
    "convert",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        torch.Tensor.to_sparse_csc,
        lambda m: m.to_sparse_bsr((2, 2)),
    ],
)
def test_C3_products_with_sparse_matrices_count_stored_numbers(convert):
    dense = torch.zeros(6, 4)
    dense[0, 1] = dense[5, 3] = dense[3, 3] = 1.0
    matrix, x = convert(dense), torch.ones(4, 5)
    stored = 12 if matrix.layout == torch.sparse_bsr else 3  # three blocks of four, one number in each

    def flops(name, *args):
        return count_flops(name, args, {}, None).flops

    assert flops("aten::mm", matrix, x) == flops("aten::_sparse_mm", matrix, x) == 2 * stored * 5
    assert flops("aten::addmm", torch.ones(6, 5), matrix, x) == 2 * stored * 5
    assert flops("aten::mv", matrix, torch.ones(4)) == 2 * stored
    assert flops("aten::mm", torch.ones(2, 6), matrix) == 2 * stored * 2
    assert count_flops("aten::mm", (matrix, convert(dense.T.contiguous())), {}, None) is None


def test_C3_isin_compares_pairs_or_sorts():
    assert flops(torch.isin, meta(1000), meta(3)) == 3000
    assert flops(torch.isin, meta(1000), meta(1048)) == 2048 * 11
    assert flops(torch.isin, meta(1000), 3) == 1000


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("layers,bidirectional,proj", [(1, False, 0), (2, True, 0), (2, True, 3)])
def test_C3_rnn_matrix_work(kind, layers, bidirectional, proj):
    if proj and kind != "LSTM":
        pytest.skip("projections are the LSTM's")
    extra = {"proj_size": proj} if proj else {}
    model = getattr(nn, kind)(5, 4, layers, bidirectional=bidirectional, **extra)
    x = torch.randn(6, 3, 5)
    tokens = 6 * 3
    expected = 2 * tokens * sum(p.numel() for p in model.parameters() if p.ndim == 2)
    zeros = torch.zeros(layers * (1 + bidirectional), 3, proj or 4)
    hx = [zeros, torch.zeros(layers * (1 + bidirectional), 3, 4)] if kind == "LSTM" else zeros
    function = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}[kind]
    weights = model._flat_weights
    assert flops(function, x, hx, weights, True, layers, 0.0, False, bidirectional, False) == expected
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([6, 6, 6]))
    assert flops(function, packed.data, packed.batch_sizes, hx, weights, True, layers, 0.0, False, bidirectional) == (
        expected
    )


def test_C3_lstm_on_cpu_reaches_a_counted_kernel():
    model = nn.LSTM(5, 4)
    x = torch.randn(6, 3, 5)
    expected = 2 * 18 * sum(p.numel() for p in model.parameters() if p.ndim == 2)
    with torch.no_grad(), Counter() as fused:
        model(x)
    with Counter() as decomposed:
        model(x)
    assert {fused.matrix, decomposed.matrix} == {expected}


class Block(nn.Module):
    """A GPT-2 block."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, c = x.shape
        parts = self.qkv(self.ln_1(x)).chunk(3, -1)
        q, k, v = (t.view(b, s, self.heads, c // self.heads).transpose(1, 2) for t in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, c))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("causal", [True, False])
def test_C3_transformer_block_closed_form(device, causal):
    b, s, c, h = 2, 16, 32, 4
    with torch.device(device):
        block = Block(c, h, causal)
        x = torch.zeros(b, s, c, requires_grad=True)
    linear = 2 * b * s * 12 * c * c
    attention = 4 * b * s * s * c
    ours, theirs = both(lambda: block(x))
    assert ours.matrix == linear + attention
    assert ours.macs == ours.matrix // 2
    assert not ours.uncounted
    if device == "meta":
        assert theirs == ours.matrix

    def step():
        block(x).sum().backward()

    ours, theirs = both(step)
    fused = device == "cpu"  # meta decomposes into products: no scores are computed twice
    assert ours.matrix == 3 * linear + attention * (1 + (2.5 if fused else 2))
    assert not ours.uncounted
    if device == "meta":
        assert theirs == ours.matrix


def test_C3_vit_patch_embedding_and_block_closed_form():
    b, side, patch, c = 2, 32, 8, 16
    tokens = (side // patch) ** 2
    embed = nn.Conv2d(3, c, patch, stride=patch, device="meta")
    block = Block(c, 2, causal=False).to("meta")
    image = meta(b, 3, side, side)

    def run():
        out = block(embed(image).flatten(2).transpose(1, 2)).mean()
        out.backward()

    ours, theirs = both(run)
    conv = 2 * b * tokens * c * 3 * patch * patch
    assert ours.matrix == 2 * conv + 3 * 2 * b * tokens * 12 * c * c + 3 * 4 * b * tokens * tokens * c
    assert ours.matrix == theirs
    assert not ours.uncounted


def test_C3_training_step_of_a_convnet_is_fully_counted():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 5),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(2, 3, 16, 16), torch.tensor([1, 2])

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    ours, theirs = both(step)
    assert ours.matrix == theirs
    assert not ours.uncounted


def test_C3_works_on_anything_with_a_shape():
    class Shape:
        dtype = torch.float32

        def __init__(self, *shape):
            self.shape = shape

    counted = count_flops("aten::mm", (Shape(2, 3), Shape(3, 4)), None, Shape(2, 4))
    assert counted == (48, 24, "matmul")
    assert count_flops("aten::add", (Shape(2, 3), 1), None, Shape(2, 3)) == (6, 0, "elementwise")
    assert math.prod(()) == count_flops("aten::add", (Shape(), 1), None, Shape()).flops
