"""The same answer as eager, bit for bit (SPEC L7): modules, modes, threads, fork."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import mindtorch

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


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
@pytest.mark.parametrize("device_type", ["remote_accelerator", "remote_accelerator:0", "cpu"])
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
        assert torch.is_autocast_enabled(device_type) and torch.get_autocast_dtype(device_type) is torch.bfloat16
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


@pytest.mark.only_on("local", "loopback", reason="a process that was forked has no worker")
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


def test_L7_gradients_that_somebody_holds_move_with_their_module() -> None:
    """Torch sets their data: they stay the same objects."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    net(torch.ones(3, 2)).square().sum().backward()
    parameters, gradients = list(net.parameters()), [p.grad for p in net.parameters()]
    values = [g.clone() for g in gradients]  # type: ignore[union-attr]
    for d in (LAZY, "remote_accelerator:1", "cpu", "remote_accelerator:1", LAZY, "cpu"):
        net.to(d)
        for p, old, g, value in zip(net.parameters(), parameters, gradients, values, strict=True):
            assert p is old and p.grad is g and g is not None and g.device == p.device == torch.device(d)
            assert isinstance(g, mindtorch.LazyTensor) == (d != "cpu") and torch.equal(g.cpu(), value)
    net.to(LAZY)
    torch.optim.SGD(net.parameters(), 1.0).step()
    assert torch.equal(net[0].bias.cpu(), (parameters[0 + 1] * 1).cpu())


def test_L7_gradients_that_a_graph_holds_are_replaced() -> None:
    net = torch.nn.Linear(2, 2)
    (net(torch.ones(1, 2)).square().sum()).backward(create_graph=True)
    first = net.weight.grad
    assert first is not None and first.requires_grad
    value = first.detach().clone()
    net.to(LAZY)
    assert net.weight.grad is not None and net.weight.grad.device == torch.device(LAZY)
    assert torch.equal(net.weight.grad.cpu(), value) and torch.equal(first.detach().cpu(), value)


def test_L7_to_takes_a_dtype_that_is_none(same_as_eager: Callable[..., None]) -> None:
    def program(d: str) -> object:
        return torch.ones(2).to(d, None, True), torch.ones(2, device=d).to("cpu", None, True).to(d)

    same_as_eager(program)


def test_L1_a_plain_module_is_converted_once() -> None:
    converted = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            converted.append(func._overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    module[1].bias = module[0].bias  # tied
    before = [id(p) for p in module.parameters()]
    with Watch():
        module.double()
    assert converted.count("_to_copy") == 3 + 2  # the batch norm's running statistics, too; its counter is an integer
    assert [id(p) for p in module.parameters()] == before
    assert all(p.dtype is torch.float64 for p in module.parameters())
