"""C3: what torch's own FLOP counter has a formula for, over torch's operator database; and textbook algorithms."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from mindtorch.ops import count_flops, op_name

SAMPLES = 24
#: Entries of the database whose calls, or their gradients, reach an op that torch has a formula for.
REACHING = """
addmm addbmm baddbmm bmm mm matmul __rmatmul__ einsum tensordot linalg.multi_dot linalg.matrix_power
nn.functional.linear nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose1d
nn.functional.conv_transpose2d nn.functional.conv_transpose3d nn.functional.scaled_dot_product_attention
nn.functional.multi_head_attention_forward cholesky cholesky_solve lu qr pinverse linalg.inv linalg.svd linalg.solve
linalg.eigh linalg.householder_product linalg.lu_solve linalg.solve_triangular triangular_solve
""".split()
#: Removed from torch after some years of warnings: a later database has them no more.
REMOVED = {"cholesky", "lu", "qr", "triangular_solve"}


class Pairs(TorchDispatchMode):
    """(op, our count, torch's) of every call that torch has a formula for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, int | None, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(getattr(func, "_overloadpacket", func))
        if formula is not None:
            theirs = formula(*args, **(kwargs or {}), out_val=out)
            if func is torch.ops.aten.convolution_backward.default:
                # torch counts a grouped convolution's weight gradient `groups` times (2.13)
                mask = args[10]
                theirs = theirs * (mask[0] + mask[1]) // (mask[0] + args[9] * mask[1])
            counted = count_flops(func, args, kwargs, out)
            self.found.append((op_name(func), counted and counted.flops, theirs))
        return out


@pytest.mark.parametrize("name", REACHING)
def test_C3_equals_torch_counter_over_its_operator_database(name):
    pairs, refused = Pairs(), 0
    entries = [found for found in op_db if found.name == name and found.variant_test_name == ""]
    if not entries and name in REMOVED:
        with pytest.raises(RuntimeError, match="removed"):
            getattr(torch, name)(torch.eye(2))
        return
    for entry in entries:
        for sample in itertools.islice(entry.sample_inputs("meta", torch.float32, requires_grad=True), SAMPLES):
            call = (sample.input, sample.args, sample.kwargs)
            try:
                with pairs:
                    out = entry(sample.input, *sample.args, **sample.kwargs)
                    results = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
                    inputs = [t for t in tree_leaves(call) if isinstance(t, torch.Tensor) and t.requires_grad]
                    if results and inputs:
                        seeds = [torch.empty_like(t) for t in results]
                        torch.autograd.grad(results, inputs, seeds, allow_unused=True)
            except (RuntimeError, NotImplementedError) as error:  # no kernel on meta; what came before is compared
                refused += "now removed" in str(error)
    assert pairs.found or refused  # the database still has what some releases have no more
    assert [pair for pair in pairs.found if pair[1] != pair[2]] == []


@pytest.mark.parametrize(("heads", "heads_kv"), [(8, 8), (8, 2), (4, 1)])
def test_C3_llama_block_closed_form(heads, heads_kv):
    """RMS norms, rotary positions, grouped-query attention, a gated MLP: forward and backward, as on meta."""
    b, s, c, f = 2, 16, 64, 176
    d = c // heads
    with torch.device("meta"):
        q, o = nn.Linear(c, c, bias=False), nn.Linear(c, c, bias=False)
        k, v = (nn.Linear(c, heads_kv * d, bias=False) for _ in range(2))
        gate, up, down = nn.Linear(c, f, bias=False), nn.Linear(c, f, bias=False), nn.Linear(f, c, bias=False)
        norm, x = nn.RMSNorm(c), torch.zeros(b, s, c, requires_grad=True)
        cos, sin = torch.zeros(s, d), torch.zeros(s, d)

    def turn(t):
        left, right = t.chunk(2, -1)
        return t * cos + torch.cat((-right, left), -1) * sin

    def block():
        h = norm(x)
        query, key, value = (p(h).view(b, s, -1, d).transpose(1, 2) for p in (q, k, v))
        y = F.scaled_dot_product_attention(turn(query), turn(key), value, is_causal=True, enable_gqa=True)
        h = x + o(y.transpose(1, 2).reshape(b, s, c))
        h = norm(h)
        return h + down(F.silu(gate(h)) * up(h))

    linear = 2 * b * s * (2 * c * c + 2 * c * heads_kv * d + 3 * c * f)
    attention = 4 * b * s * s * c  # query heads, whatever the number of key heads; the causal half is not left out
    for run, times in ((block, 1), (lambda: block().sum().backward(), 3)):
        pairs = Pairs()
        with FlopCounterMode(display=False) as theirs:
            run()
        with pairs:
            run()
        ours = sum(count for _, count, _ in pairs.found)
        assert ours == theirs.get_total_flops() == times * (linear + attention)


def flops(func, *args, **kwargs) -> int:
    counted = count_flops(func, args, kwargs, func(*args, **kwargs))
    assert counted is not None, func
    return counted.flops


def kernels(run) -> int:
    """Sum of our counts of one category over what reaches the dispatcher."""

    class Count(TorchDispatchMode):
        total = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if "fft" in op_name(func) or "linalg" in op_name(func):
                self.total += count_flops(func, args, kwargs, out).flops
            return out

    with Count() as mode:
        run()
    return mode.total


@pytest.mark.parametrize(
    ("function", "args", "dtype", "count"),
    [
        (torch.fft.fft, (), torch.complex64, 5 * 6 * 16 * 4),
        (torch.fft.fft, (), torch.float32, 5 * 6 * 16 * 4 // 2),
        (torch.fft.fft, (32,), torch.complex64, 5 * 6 * 32 * 5),
        (torch.fft.rfft, (32,), torch.float32, 5 * 6 * 32 * 5 // 2),
        (torch.fft.rfft, (8, 0), torch.float32, 5 * 8 * 3 * 16 * 3 // 2),
        (torch.fft.irfft, (), torch.complex64, 5 * 6 * 30 * math.log2(30) / 2),
        (torch.fft.ifft2, (), torch.complex64, 5 * 6 * 16 * math.log2(48)),
        (torch.fft.fftn, (), torch.complex64, 5 * 6 * 16 * math.log2(96)),
        (torch.fft.rfftn, ((4, 8),), torch.float32, 5 * 2 * 4 * 8 * 5 / 2),
        (torch.fft.irfft2, (), torch.complex64, 5 * 6 * 30 * math.log2(90) / 2),
    ],
)
def test_C3_fourier_transforms(function, args, dtype, count):
    """5 N log2 N; the composite counts as the kernels that it consists of."""
    x = torch.zeros(2, 3, 16, dtype=dtype)
    assert flops(function, x, *args) == round(count)
    assert kernels(lambda: function(x, *args)) == pytest.approx(round(count), abs=1)


def test_C3_factorizations_and_solves():
    a, b, tall = torch.eye(6).expand(3, 6, 6), torch.ones(3, 6, 4), torch.randn(8, 6)
    assert flops(torch.linalg.cholesky, a) == 3 * 6**3 // 3
    assert flops(torch.linalg.lu_factor_ex, a) == flops(torch.linalg.det, a) == 3 * 2 * 6**3 // 3
    assert flops(torch.linalg.inv, a) == 3 * 2 * 6**3
    assert flops(torch.linalg.qr, tall) == 2 * flops(torch.linalg.qr, tall, mode="r") == 4 * (8 * 36 - 6**3 // 3)
    assert flops(torch.linalg.qr, tall, mode="complete") > flops(torch.linalg.qr, tall)
    assert flops(torch.linalg.solve_triangular, a, b, upper=True) == 3 * 6 * 6 * 4
    assert flops(torch.linalg.solve, a, b) == 3 * (2 * 6**3 // 3 + 2 * 6 * 6 * 4)
    assert flops(torch.cholesky_solve, b, a) == 3 * 2 * 6 * 6 * 4
    assert kernels(lambda: torch.linalg.solve(a, b)) == flops(torch.linalg.solve, a, b)


def test_C3_comparisons_count_as_elementwise_work_does():
    x = torch.zeros(3, 8)
    assert flops(torch.sort, x) == flops(torch.argsort, x, dim=-1) == 24 * 3
    assert flops(torch.sort, x, 0) == flops(torch.msort, x) == 24 * 2
    assert flops(torch.sort, x, stable=True, dim=0) == 24 * 2
    assert flops(torch.sort, torch.zeros(())) == 0
    assert flops(torch.topk, x, 2) == flops(torch.median, x) == 24
    assert flops(torch.searchsorted, torch.zeros(7), x) == flops(torch.bucketize, x, torch.zeros(7)) == 24 * 3


def test_C3_bags_distances_and_sampling():
    weight, indices, offsets = torch.randn(10, 4), torch.tensor([1, 2, 4, 5, 4]), torch.tensor([0, 3])
    assert flops(F.embedding_bag, indices, weight, offsets) == 5 * 4
    assert flops(F.embedding_bag, indices, weight, offsets, per_sample_weights=torch.ones(5), mode="sum") == 2 * 5 * 4
    assert flops(torch.ops.aten._embedding_bag, weight, indices, offsets) == 5 * 4
    assert flops(torch.cdist, torch.randn(2, 5, 3), torch.randn(2, 7, 3), 1.0) == 3 * 2 * 5 * 7 * 3
    assert flops(torch.linalg.cross, torch.randn(4, 3), torch.randn(4, 3)) == 3 * 12
    image, grid = torch.randn(2, 3, 8, 8), torch.zeros(2, 5, 5, 2)
    assert flops(torch.ops.aten.grid_sampler_2d, image, grid, 0, 0, False) == 8 * 2 * 3 * 25
    assert flops(torch.ops.aten.grid_sampler_2d, image, grid, 1, 0, False) == 0


def test_C3_fused_encoder_layer_counts_as_its_parts():
    layer = nn.TransformerEncoderLayer(16, 4, 40, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    expected = 2 * 10 * 16 * (4 * 16 + 2 * 40) + 4 * 2 * 5 * 5 * 16
    total = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            counted = count_flops(func, args, kwargs, out)
            assert counted is not None, func
            total.append(counted.macs * 2)
            return out

    with torch.no_grad(), Count():
        layer(x)
    assert sum(total) == max(total) == expected  # one fused kernel
    total.clear()
    layer.train()
    with Count():
        layer(x)
    assert sum(total) == expected
