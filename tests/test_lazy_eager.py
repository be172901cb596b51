"""The same answer as eager, bit for bit (SPEC L7): writes, views, random numbers, modes.

Every program runs on the CPU and on the lazy device from the same seed; see ``same_as_eager`` in conftest.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mindtorch

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


def base(d: str) -> torch.Tensor:
    return torch.arange(12.0, device=d).reshape(3, 4) + 1


# ---- in place and through views --------------------------------------------------------------------------------------
def write_base_read_view(d: str) -> object:
    x = base(d)
    v = x[1]
    x.mul_(2)
    return v, x


def write_view_read_base(d: str) -> object:
    x = base(d)
    v = x.t()[1:]
    v.add_(100)
    return x, v, x.sum()


def write_view_of_view(d: str) -> object:
    x = base(d)
    a = x.view(2, 6)
    b = a[:, ::2]
    c = b.reshape(-1)  # a copy
    b.zero_()
    return x, a, b, c


def old_value_kept(d: str) -> object:
    x = base(d)
    before = x + 0
    x.add_(1)
    after = x + 0
    x.mul_(3)
    return before, after, x


def view_read_between_writes(d: str) -> object:
    x = base(d)
    v = x[0]
    first = v.sum()
    x[0] = 5
    second = v.sum()
    v.fill_(7)
    return first, second, x


def clone_then_write(d: str) -> object:
    x = base(d)
    y = x.clone()
    z = x.detach()
    z.add_(1)
    return x, y, z


def data_assignment(d: str) -> object:
    x = base(d)
    y = base(d) * 10
    x.data = y
    y.add_(1)
    x.data.mul_(2)
    return x, y


def data_of_a_parameter(d: str) -> object:
    p = nn.Parameter(base(d))
    p.data.mul_(2)
    p.data = p.data + 1
    p.data[0] = 0
    return p, p.data


def data_with_another_shape(d: str) -> object:
    x = base(d)
    x.data = torch.ones(2, device=d)
    return x, x.shape, (x * 2)


def out_argument(d: str) -> object:
    x, o = base(d), torch.zeros(3, 4, device=d)
    v = o[1]
    r = torch.add(x, x, out=o)
    assert r is o
    s = torch.sum(x, dim=0, out=torch.empty(4, device=d))
    return o, v, s


def out_is_resized(d: str) -> object:
    o = torch.empty(0, device=d)
    torch.mul(base(d), 2, out=o)
    return o


def out_of_several(d: str) -> object:
    v, i = torch.empty(3, device=d), torch.empty(3, dtype=torch.int64, device=d)
    torch.max(base(d), 1, out=(v, i))
    return v, i


def in_place_family(d: str) -> object:
    x = base(d)
    x += 1
    x -= 0.5
    x *= 2
    x /= 3
    x **= 2
    x %= 7
    x.clamp_(1, 6).sqrt_().neg_().abs_()
    x.addmm_(base(d), torch.ones(4, 4, device=d))
    x.masked_fill_(x > 20, 1.5)
    x.index_fill_(0, torch.tensor([1], device=d), 3)
    x.scatter_(1, torch.zeros(3, 1, dtype=torch.int64, device=d), 9)
    x.index_add_(0, torch.tensor([0, 2], device=d), torch.ones(2, 4, device=d))
    x.copy_(x.flip(0))
    return x


def in_place_view_ops(d: str) -> object:
    x = base(d)
    x.t_()
    y = base(d)
    y.unsqueeze_(0).squeeze_(0)
    z = base(d)
    z.transpose_(0, 1)
    return x, x.shape, y, z, x + 1


def resize_and_set(d: str) -> object:
    x = base(d)
    x.resize_(2, 2)
    y = torch.zeros(2, device=d)
    y.set_(base(d))
    return x, y


def overlapping_copy(d: str) -> object:
    x = base(d)
    x[1:].copy_(x[:-1].clone())
    x[0], x[1] = x[1].clone(), x[0].clone()
    return x


def expand_and_write(d: str) -> object:
    x = torch.ones(1, 4, device=d)
    e = x.expand(3, 4)
    x.add_(1)
    return e, x


def unsafe_views(d: str) -> object:
    parts = base(d).split(2, dim=1)
    chunks = base(d).chunk(2)
    rows = base(d).unbind()
    parts[0].add_(1)
    return parts, chunks, rows, torch.stack(rows), torch.cat(parts, 1)


def as_strided_write(d: str) -> object:
    x = base(d)
    x.as_strided((2, 2), (5, 1), 1).mul_(-1)
    x.diagonal().fill_(0)
    return x


def view_dtype(d: str) -> object:
    x = base(d)
    v = x.view(torch.int32)
    v.add_(1)
    return x, v


def complex_views(d: str) -> object:
    z = torch.complex(base(d), base(d) * 2)
    z.real.mul_(2)
    w = z.conj()
    return z, w.resolve_conj(), z.imag, torch.view_as_real(z), (z * w).real


def write_dead_view(d: str) -> object:
    x = base(d)
    x[0].add_(5)
    x[1].view(2, 2)[0].mul_(3)
    return x


def write_after_reader_died(d: str) -> object:
    x = base(d)
    y = x * 2
    del y
    x.add_(1)
    y = x * 2
    x.add_(1)
    return y


def detach_shares(d: str) -> object:
    x = base(d).requires_grad_()
    y = x.detach()
    y.add_(1)
    return x.detach(), y


def inplace_chain_of_names(d: str) -> object:
    x = base(d)
    names = [x.detach() for _ in range(300)]
    x.add_(1)
    return names[0], names[-1], x.detach_()


WRITES = [
    write_base_read_view,
    write_view_read_base,
    write_view_of_view,
    old_value_kept,
    view_read_between_writes,
    clone_then_write,
    data_assignment,
    data_of_a_parameter,
    data_with_another_shape,
    out_argument,
    out_is_resized,
    out_of_several,
    in_place_family,
    in_place_view_ops,
    resize_and_set,
    overlapping_copy,
    expand_and_write,
    unsafe_views,
    as_strided_write,
    view_dtype,
    complex_views,
    write_dead_view,
    write_after_reader_died,
    detach_shares,
    inplace_chain_of_names,
]


@pytest.mark.parametrize("program", WRITES, ids=lambda p: p.__name__)
@pytest.mark.parametrize("grad", [True, False], ids=["grad_mode", "no_grad"])
def test_L7_writes(program: Callable[[str], object], grad: bool, same_as_eager: Same) -> None:
    with torch.set_grad_enabled(grad):
        same_as_eager(program)


@pytest.mark.parametrize("program", WRITES, ids=lambda p: p.__name__)
def test_L7_writes_in_inference_mode(program: Callable[[str], object], same_as_eager: Same) -> None:
    if program in (data_of_a_parameter, detach_shares):
        pytest.skip("needs grad mode in eager, too")

    def inside(d: str) -> object:
        with torch.inference_mode():
            return program(d)

    same_as_eager(inside)


# ---- random numbers --------------------------------------------------------------------------------------------------
def dropouts(d: str) -> object:
    x = torch.ones(50, device=d)
    return (
        F.dropout(x, 0.5),
        F.dropout(x, 0.3, training=False),
        F.alpha_dropout(x, 0.5, training=True),
        F.dropout1d(torch.ones(4, 5, 6, device=d)),
        F.feature_alpha_dropout(torch.ones(4, 5, 6, device=d), training=True),
    )


def in_place_draws(d: str) -> object:
    x = torch.empty(20, device=d)
    return (
        x.normal_().clone(),
        x.uniform_().clone(),
        x.exponential_().clone(),
        x.bernoulli_(0.3).clone(),
        x.random_(10).clone(),
        x.cauchy_().clone(),
        x.geometric_(0.5).clone(),
        x.log_normal_().clone(),
    )


def drawing_functions(d: str) -> object:
    w = torch.ones(6, device=d)
    return (
        torch.bernoulli(w / 2),
        torch.multinomial(w, 3),
        torch.multinomial(w, 9, replacement=True),
        torch.poisson(w * 3),
        torch.normal(w, 2.0),
        torch.rand_like(w),
        torch.randn_like(w),
        torch.randint_like(w, 9),
        torch.randperm(6, device=d),
        F.gumbel_softmax(w),
        torch.rrelu(w - 2, training=True),
        F.rrelu(w - 2, training=True),
        torch.distributions.Normal(w, w).sample(),
        torch.distributions.Categorical(probs=w / 6).sample((4,)),
    )


def initializers(d: str) -> object:
    out = [torch.empty(4, 6, device=d) for _ in range(7)]
    for t, init in zip(
        out,
        (
            nn.init.xavier_uniform_,
            nn.init.kaiming_normal_,
            nn.init.orthogonal_,
            nn.init.normal_,
            nn.init.trunc_normal_,
            nn.init.uniform_,
            nn.init.constant_,
        ),
    ):
        init(t, 0.5) if init is nn.init.constant_ else init(t)
    return out


def seeds_in_the_middle(d: str) -> object:
    a = torch.randn(3, device=d)
    torch.manual_seed(5)
    b = torch.randn(3, device=d)
    c = F.dropout(torch.ones(9, device=d))
    torch.manual_seed(5)
    e = torch.randn(3, device=d)
    return c, a, e, b


def draws_read_out_of_order(d: str) -> object:
    a = torch.randn(3, device=d)
    b = torch.randn(3, device=d)
    read_b = b.tolist()
    c = torch.randn(3, device=d)
    return c, read_b, a


def dead_draws_still_count(d: str) -> object:
    torch.randn(7, device=d)
    F.dropout(torch.ones(5, device=d))
    return torch.randn(3, device=d)


def dropout_with_gradient(d: str) -> object:
    x = torch.ones(40, device=d, requires_grad=True)
    y = F.dropout(x, 0.4)
    z = F.dropout(y * 2, 0.2)
    z.sum().backward()
    return z, x.grad


def attention_dropout(d: str) -> object:
    q = torch.randn(1, 2, 5, 4, device=d)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3), nn.functional.dropout(q)


@pytest.mark.parametrize(
    "program",
    [
        dropouts,
        in_place_draws,
        drawing_functions,
        initializers,
        seeds_in_the_middle,
        draws_read_out_of_order,
        dead_draws_still_count,
        dropout_with_gradient,
        attention_dropout,
    ],
    ids=lambda p: p.__name__,
)
def test_L7_random_numbers(program: Callable[[str], object], same_as_eager: Same) -> None:
    same_as_eager(program)


def test_L7_the_device_has_its_own_generator(same_bits: Same) -> None:
    """CPU draws in between change nothing on the device, and the other way round (as with CUDA)."""
    torch.manual_seed(1)
    cpu = [torch.randn(3) for _ in range(3)]
    torch.manual_seed(1)
    expected_later = [torch.randn(3) for _ in range(3)]
    torch.manual_seed(1)
    mixed_cpu, mixed_lazy = [], []
    for _ in range(3):
        mixed_lazy.append(torch.randn(3, device=LAZY))
        mixed_cpu.append(torch.randn(3))
        mixed_lazy[-1].tolist() if len(mixed_lazy) == 2 else None
    for got, expected in zip((*mixed_cpu, *mixed_lazy), (*cpu, *expected_later)):
        same_bits(got, expected)


def test_L7_functions_that_draw_inside_use_the_devices_generator(same_bits: Same) -> None:
    x = torch.randn(2, 4, 9, 9)
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: F.fractional_max_pool2d(t, 2, 4),
        lambda t: F.fractional_max_pool3d(t[None], 2, 2),
        lambda t: F.gumbel_softmax(t),
        lambda t: F.dropout2d(t),
        lambda t: F.rrelu(t, training=True),
    ]
    for call in calls:
        torch.manual_seed(1)
        expected = call(x)
        torch.manual_seed(1)
        torch.randn(5)  # the CPU's generator is elsewhere
        state = torch.get_rng_state()
        got = call(x.to(LAZY))
        same_bits(got, expected)
        assert torch.equal(torch.get_rng_state(), state), "the CPU's generator moved"


def test_L7_a_segment_that_runs_later_draws_the_same(same_bits: Same) -> None:
    torch.manual_seed(2)
    pending = torch.randn(4, device=LAZY)
    state = torch.get_rng_state()
    pending.cpu()
    assert torch.equal(torch.get_rng_state(), state), "running a segment moved the CPU's generator"
    torch.manual_seed(2)
    same_bits(pending, torch.randn(4))


def test_L7_an_eager_fallback_draws_in_program_order(same_bits: Same) -> None:
    torch.manual_seed(3)
    expected = [
        torch.randn(3),
        torch.multinomial(torch.ones(5), 2),
        torch.randn(3),
        torch.randn(2, generator=None),
        torch.rand(2),
    ]
    torch.manual_seed(3)
    got = [torch.randn(3, device=LAZY), torch.multinomial(torch.ones(5, device=LAZY), 2), torch.randn(3, device=LAZY)]
    packed = torch.nonzero(got[0])
    got += [torch.randn(2, device=LAZY), torch.rand(2, device=LAZY)]
    for g, e in zip(got, expected):
        same_bits(g, e)
    assert packed.shape == (3, 1)


# ---- modules ---------------------------------------------------------------------------------------------------------
def batch_norm_statistics(d: str) -> object:
    torch.manual_seed(0)
    m = nn.BatchNorm2d(3).to(d)
    x = torch.randn(4, 3, 5, 5).to(d)
    outs = [m(x), m(x * 2 + 1)]
    m.eval()
    outs.append(m(x))
    return outs, dict(m.named_buffers()), dict(m.named_parameters())


def other_norms(d: str) -> object:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 5, 5).to(d)
    i = nn.InstanceNorm2d(6, affine=True, track_running_stats=True).to(d)
    s = nn.utils.spectral_norm(nn.Linear(5, 5)).to(d)
    return (
        i(x),
        i.running_mean,
        nn.GroupNorm(3, 6).to(d)(x),
        nn.LocalResponseNorm(2)(x),
        F.normalize(x),
        nn.RMSNorm(5).to(d)(x),
        s(x),
        s.weight_u,
    )


def losses(d: str) -> object:
    x, y = torch.randn(5, 7, device=d), torch.arange(5, device=d)
    p, q = torch.sigmoid(x), torch.rand(5, 7, device=d)
    return (
        F.cross_entropy(x, y, label_smoothing=0.1),
        F.nll_loss(F.log_softmax(x, -1), y),
        F.mse_loss(x, q),
        F.l1_loss(x, q),
        F.smooth_l1_loss(x, q),
        F.huber_loss(x, q),
        F.binary_cross_entropy(p, q),
        F.binary_cross_entropy_with_logits(x, q),
        F.kl_div(F.log_softmax(x, -1), q),
        F.cosine_similarity(x, q),
        F.cross_entropy(x, y, ignore_index=2, reduction="none"),
        F.ctc_loss(
            F.log_softmax(torch.randn(9, 2, 4, device=d), -1),
            torch.tensor([[1, 2], [1, 3]], device=d),
            torch.tensor([9, 9]),
            torch.tensor([2, 2]),
        ),
    )


def recurrent(d: str) -> object:
    torch.manual_seed(0)
    x = torch.randn(3, 5, 4).to(d)
    kinds = [
        m.to(d)
        for m in (
            nn.LSTM(4, 6),
            nn.GRU(4, 6, 2, bidirectional=True),
            nn.RNN(4, 6),
            nn.LSTM(4, 6, proj_size=2),
            nn.LSTM(4, 6, 2, dropout=0.5),
        )
    ]
    torch.manual_seed(1)  # initial weights come from the CPU's generator, dropout from the device's
    out = [m(x) for m in kinds]
    torch.manual_seed(2)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 3, 2, 1, 1]))
    unpacked, lengths = nn.utils.rnn.pad_packed_sequence(nn.LSTM(4, 6).to(d)(packed)[0])
    return out, unpacked, lengths, nn.LSTMCell(4, 6).to(d)(x[0]), nn.GRUCell(4, 6).to(d)(x[0])


def convolutions(d: str) -> object:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 9, 9).to(d)
    return (
        [
            m.to(d)(x)
            for m in (
                nn.Conv2d(4, 6, 3),
                nn.Conv2d(4, 8, 3, stride=2, groups=2, padding="valid"),
                nn.ConvTranspose2d(4, 3, 3, 2),
                nn.MaxPool2d(2),
                nn.AvgPool2d(3),
                nn.AdaptiveMaxPool2d(3),
                nn.Upsample(scale_factor=2, mode="bilinear"),
                nn.PixelShuffle(2),
                nn.ReflectionPad2d(1),
                nn.Unfold(3),
                nn.LPPool2d(2, 3),
            )
        ],
        nn.MaxPool2d(2, return_indices=True)(x),
        F.grid_sample(x, torch.zeros(2, 3, 3, 2, device=d), align_corners=False),
        F.interpolate(x, size=5),
        x.to(memory_format=torch.channels_last).contiguous(memory_format=torch.channels_last),
    )


def embeddings(d: str) -> object:
    i = torch.tensor([[0, 1], [2, 2]]).to(d)
    e, b = nn.Embedding(5, 3, padding_idx=0).to(d), nn.EmbeddingBag(5, 3, mode="sum").to(d)
    m = nn.Embedding(5, 3, max_norm=0.5).to(d)
    return e(i), b(i), m(i), m.weight, F.one_hot(i, 5)


def attention(d: str) -> object:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8).to(d)
    m = nn.MultiheadAttention(8, 2, batch_first=True).to(d)
    mask = nn.Transformer.generate_square_subsequent_mask(5, device=d)
    t = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True).to(d)
    return (
        m(x, x, x),
        m(x, x, x, attn_mask=mask, need_weights=False),
        t(x, x, tgt_mask=mask),
        F.scaled_dot_product_attention(x, x, x, is_causal=True),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        .to(d)
        .eval()(x, src_key_padding_mask=torch.tensor([[False] * 5, [False] * 3 + [True] * 2]).to(d)),
    )


@pytest.mark.parametrize(
    "program",
    [batch_norm_statistics, other_norms, losses, recurrent, convolutions, embeddings, attention],
    ids=lambda p: p.__name__,
)
@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference"])
def test_L7_modules(program: Callable[[str], object], mode: str, same_as_eager: Same) -> None:
    context = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}[mode]

    def inside(d: str) -> object:
        with context():
            return program(d)

    same_as_eager(inside)


# ---- modes -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("device_type", ["remote_accelerator", "cpu"])
def test_L7_autocast_bfloat16(device_type: str, same_bits: Same) -> None:
    """``torch.autocast("remote_accelerator", …)`` does on the device what ``torch.autocast("cpu", …)`` does there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x), F.softmax(model(x), -1), x @ x.t(), torch.cat([x @ x.t(), x[:, :3]])
    expected[0].sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model = model.to(LAZY)
    x = x.to(LAZY)
    with torch.autocast(device_type, dtype=torch.bfloat16):
        got = model(x), F.softmax(model(x), -1), x @ x.t(), torch.cat([x @ x.t(), x[:, :3]])
    got[0].sum().backward()
    assert [g.dtype for g in got] == [e.dtype for e in expected]
    for g, e in zip((*got, *[p.grad for p in model.parameters()]), (*expected, *grads)):
        same_bits(g, e)


def test_L7_inference_tensors_stay_so() -> None:
    with torch.inference_mode():
        x = torch.ones(2, device=LAZY) + 1
        assert x.is_inference() and not x.requires_grad
        w = torch.ones(2, device=LAZY, requires_grad=True)
    assert x.tolist() == [2.0, 2.0] and (x + 1).tolist() == [3.0, 3.0]
    assert w.tolist() == [1.0, 1.0]


def test_L7_no_grad_results_do_not_require_grad() -> None:
    w = torch.ones(2, device=LAZY, requires_grad=True)
    with torch.no_grad():
        y = w * 2
        assert not y.requires_grad and y.is_leaf
        w.add_(1)
    assert w.requires_grad and w.tolist() == [2.0, 2.0] and (w * 2).requires_grad
    with torch.set_grad_enabled(False):
        assert not torch.relu(w).requires_grad


def test_L7_func_transforms(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        w, x = torch.randn(3, 4, device=d), torch.randn(5, 4, device=d)
        loss = lambda w, x: (w @ x).sin().sum()  # noqa: E731
        return (
            torch.func.grad(loss)(w, x[0]),
            torch.func.vmap(lambda v: w @ v)(x),
            torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x),
            torch.func.jacrev(lambda v: w @ v * v.sum())(x[0]),
            torch.func.hessian(lambda v: (v**3).sum())(x[0]),
            torch.func.jvp(torch.sin, (x,), (x,)),
        )

    same_as_eager(program)


def test_L7_threads_record_at_once(same_bits: Same) -> None:
    expected = [torch.full((8, 8), float(k)) for k in range(4)]
    got: list[torch.Tensor | None] = [None] * 4
    errors: list[BaseException] = []

    def work(k: int) -> None:
        try:
            x = torch.zeros(8, 8, device=LAZY)
            step = torch.full((8, 8), float(k), device=LAZY) / 400
            keep = []
            for i in range(400):
                x = x + step * (i % 3 + 1) - step * (i % 3)
                keep.append(x[0] * k)
                if i % 97 == 0:
                    x.sum().item()
                    keep.clear()
            got[k] = x
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    for g, e in zip(got, expected):
        assert g is not None
        torch.testing.assert_close(g.cpu(), e, rtol=1e-5, atol=1e-4)


def test_L7_one_thread_reads_what_another_recorded() -> None:
    x = torch.ones(4, device=LAZY) * 3
    results: list[float] = []
    threads = [threading.Thread(target=lambda: results.append(x.sum().item())) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [12.0] * 8
    assert mindtorch.stats()["ops_pending"] >= 0


def test_L7_fork_inherits_computed_and_pending_values() -> None:
    import multiprocessing

    x = torch.arange(3.0, device=LAZY)
    y = x + 1
    x.cpu()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def child() -> None:
        queue.put((y * 2).tolist())

    p = context.Process(target=child)
    p.start()
    p.join(120)
    assert p.exitcode == 0
    assert queue.get() == [2.0, 4.0, 6.0] and y.tolist() == [1.0, 2.0, 3.0]
