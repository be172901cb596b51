"""Gradients, optimizers and moved modules: eager's bits (SPEC L7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import mindtorch

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


def leaf(d: str) -> torch.Tensor:
    return (torch.arange(12.0, device=d).reshape(3, 4) / 7).requires_grad_()


def backward(d: str) -> object:
    x = leaf(d)
    y = (x.sin() * x).sum()
    y.backward()
    return y, x.grad


def backward_twice_accumulates(d: str) -> object:
    x = leaf(d)
    y = (x**3).sum()
    y.backward(retain_graph=True)
    first = x.grad.clone()
    y.backward()
    return first, x.grad


def backward_with_a_gradient(d: str) -> object:
    x = leaf(d)
    (x @ x.t()).backward(torch.ones(3, 3, device=d) * 2)
    return x.grad


def backward_inputs(d: str) -> object:
    x, y = leaf(d), leaf(d)
    (x * y).sum().backward(inputs=[x])
    return x.grad, y.grad is None


def grad_function(d: str) -> object:
    x = leaf(d)
    y = (x.exp() * 2).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    return g, h, x.grad is None


def grad_of_a_grad_of_saved_outputs(d: str) -> object:
    x = leaf(d)
    y = (x.exp().tanh() * x.sigmoid()).sqrt().sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad((g * g.detach()).sum() + g.exp().sum(), x, create_graph=True)
    return g, h, torch.autograd.grad(h.sum(), x)


def grad_of_unused(d: str) -> object:
    x, y = leaf(d), leaf(d)
    g = torch.autograd.grad(x.sum(), [x, y], allow_unused=True)
    return g[0], g[1] is None


def gradient_through_views_and_writes(d: str) -> object:
    x = leaf(d)
    y = x * 2
    y[1] = x[0] * 3
    v = y[:, 1:]
    v.mul_(x[:, 1:])
    y.add_(1)
    (y * y).sum().backward()
    return y, x.grad


def retain_grad(d: str) -> object:
    x = leaf(d)
    y = x * 2
    y.retain_grad()
    (y**2).sum().backward()
    return y.grad, x.grad


def tensor_hooks(d: str) -> object:
    x = leaf(d)
    y = x * 2
    seen: list[torch.Tensor] = []

    def times_ten(g: torch.Tensor) -> torch.Tensor:
        seen.append(g)
        return g * 10

    y.register_hook(times_ten)
    handle = x.register_hook(lambda g: g + 1)
    (y**2).sum().backward(retain_graph=True)
    handle.remove()
    post: list[torch.Tensor] = []
    x.register_post_accumulate_grad_hook(lambda t: post.append(t.grad.clone()))
    (y**2).sum().backward()
    return seen, x.grad, post


def module_hooks(d: str) -> object:
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).to(d)
    seen: list[Any] = []
    m[0].register_forward_hook(lambda m, i, o: o * 2)
    m[2].register_forward_pre_hook(lambda m, i: (i[0] + 1,))
    m[0].register_full_backward_hook(lambda m, gi, go: seen.append(go[0]))
    out = m(torch.ones(5, 4, device=d))
    out.sum().backward()
    return out, seen, [p.grad for p in m.parameters()]


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x**3 * scale, x.detach() + 1

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, unused: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return g * 3 * x * x * ctx.scale, None


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return g * 2 * x


class AddsInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return g * 2


def custom_function(d: str) -> object:
    x = leaf(d)
    y, z = Cube.apply(x, 2.0)
    w = AddsInPlace.apply(x * 1)
    (y.sum() + w.sum()).backward()
    return y, z, w, x.grad


@pytest.mark.parametrize(
    "use",
    [
        torch.relu,
        torch.neg,
        lambda y: y * 2,
        lambda y: 2 - y,
        lambda y: y @ y.t(),
        lambda y: F.linear(y, y),
        lambda y: F.softmax(y, -1),
        torch.sum,
    ],
)
def test_L7_ops_on_the_result_of_a_custom_function(use: Callable[[Any], Any], same_as_eager: Same) -> None:
    def program(d: str) -> object:
        x = leaf(d)
        y = use(Square.apply(x))
        y.sum().backward()
        return y, x.grad

    same_as_eager(program)


@pytest.mark.parametrize("reentrant", [True, False])
def test_L7_checkpoint(reentrant: bool, same_as_eager: Same) -> None:
    def program(d: str) -> object:
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4)).to(d)
        x = leaf(d)
        torch.manual_seed(1)
        y = checkpoint(block, x, use_reentrant=reentrant)
        y = checkpoint(block, y, use_reentrant=reentrant)
        y.sum().backward()
        return y, x.grad, [p.grad for p in block.parameters()], torch.rand(2, device=d)

    same_as_eager(program)


def backward_of_many_ops(d: str) -> object:
    x = leaf(d)
    m = torch.randn(4, 4, device=d, requires_grad=True)
    outs = [
        x.softmax(-1),
        x.logsumexp(0),
        x.std(),
        x.var(1),
        x.norm(),
        x.cumsum(1),
        x.prod(),
        (x + 1).log(),
        x.abs().sqrt(),
        x.max(1).values,
        x.sort(descending=True).values,
        x.topk(2).values,
        x.gather(1, torch.ones(3, 1, dtype=torch.int64, device=d)),
        torch.einsum("ij,kj->ik", x, x),
        F.gelu(x),
        F.silu(x),
        F.layer_norm(x, (4,)),
        F.pad(x, (1, 1)),
        torch.where(x > 1, x, -x),
        torch.linalg.inv(m),
        torch.linalg.qr(m)[1],
        torch.linalg.solve(m, x.t()),
        m.det(),
        torch.cdist(x, x + 1),
        x.clamp(0.2, 1),
        x.roll(1),
        x.flip(0),
        x.repeat(2, 2),
        x.tril(),
        x.index_select(0, torch.tensor([0, 0], device=d)),
        x.unfold(1, 2, 1),
        torch.stack([x, x]),
        torch.cat([x, x * 2]),
        F.conv1d(x[None], torch.ones(2, 3, 2, device=d)),
        x.masked_fill(x > 1, 0),
        x.expand(2, 3, 4),
        x.permute(1, 0),
        x.to(torch.float64),
        x.lerp(x * 2, 0.3),
        torch.addcmul(x, x, x),
        x.atan2(x + 1),
        x[x > 0.5],
    ]
    total = sum((o.double() ** 2).sum() for o in outs)
    total.backward()
    return outs, total, x.grad, m.grad


def anomaly_free_saved_hooks(d: str) -> object:
    x = leaf(d)
    packed: list[int] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        packed.append(1)
        return t * 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = (x.exp() * x).sum()
    y.backward()
    return x.grad, len(packed)


def save_on_cpu(d: str) -> object:
    x = leaf(d)
    with torch.autograd.graph.save_on_cpu():
        y = (x.exp() * x).sum()
    y.backward()
    return x.grad


def crossing_devices_once(d: str) -> object:
    x = torch.ones(3, requires_grad=True)
    (x.to(d) * torch.arange(3.0, device=d)).sum().backward()
    return x.grad


def crossing_devices(d: str) -> object:
    x = torch.ones(3, requires_grad=True)
    y = x.to(d) * torch.arange(3.0, device=d)
    z = y.cpu() * 2
    z.sum().backward()
    return x.grad.cpu(), z.cpu()


def becomes_a_leaf_later(d: str) -> object:
    with torch.no_grad():
        x = torch.ones(3, device=d) * 2
        y = x + 1
    x.requires_grad_()
    y.requires_grad = True
    p = nn.Parameter(x.detach() * 3)
    ((x * 2) * (y * 3) * (p * 4)).sum().backward()
    return x.grad, y.grad, p.grad


def zero_grad_and_none(d: str) -> object:
    p = nn.Parameter(leaf(d).detach().clone())
    (p * 2).sum().backward()
    p.grad = None
    (p * 3).sum().backward()
    p.grad.zero_()
    (p * 4).sum().backward()
    p.grad.data.mul_(2)
    return p.grad


def detach_in_the_middle(d: str) -> object:
    x = leaf(d)
    y = x * 2
    z = y.detach() * x
    z.sum().backward()
    return x.grad, y.detach_().requires_grad


def double_use_of_leaf_views(d: str) -> object:
    p = nn.Parameter(leaf(d).detach().clone())
    (p[0] * p[1] + p.t()[:, 2]).sum().backward()
    return p.grad


def forward_mode(d: str) -> object:
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(leaf(d).detach(), torch.ones(3, 4, device=d))
        y = x.sin() * x
        out = torch.autograd.forward_ad.unpack_dual(y)
        return out.primal, out.tangent


PROGRAMS = [
    backward,
    backward_twice_accumulates,
    backward_with_a_gradient,
    backward_inputs,
    grad_function,
    grad_of_a_grad_of_saved_outputs,
    grad_of_unused,
    gradient_through_views_and_writes,
    retain_grad,
    tensor_hooks,
    module_hooks,
    custom_function,
    backward_of_many_ops,
    anomaly_free_saved_hooks,
    save_on_cpu,
    crossing_devices_once,
    crossing_devices,
    becomes_a_leaf_later,
    zero_grad_and_none,
    detach_in_the_middle,
    double_use_of_leaf_views,
    forward_mode,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_L7_autograd(program: Callable[[str], object], same_as_eager: Same) -> None:
    same_as_eager(program)


def test_L7_gradients_are_lazy_and_nothing_runs_before_a_read() -> None:
    ran = mindtorch.stats()["ops_executed"]
    x = leaf(LAZY)
    (x.sin() * x).sum().backward()
    assert isinstance(x.grad, mindtorch.LazyTensor) and x.grad.device == x.device
    assert mindtorch.stats()["ops_executed"] == ran


def test_L7_autograd_errors_are_eagers() -> None:
    def modified(d: str) -> None:
        x = leaf(d)
        y = x.sigmoid()
        y.mul_(2)
        y.sum().backward()

    def modified_view(d: str) -> None:
        x = leaf(d)
        b = x * 1
        y = b.exp()
        y[0] = 0
        y.sum().backward()

    def leaf_in_place(d: str) -> None:
        leaf(d).add_(1)

    def leaf_view_in_place(d: str) -> None:
        leaf(d)[0].add_(1)

    def freed(d: str) -> None:
        y = (leaf(d) ** 2).sum()
        y.backward()
        y.backward()

    def not_scalar(d: str) -> None:
        leaf(d).exp().backward()

    def no_graph(d: str) -> None:
        leaf(d).detach().sum().backward()

    def grad_shape(d: str) -> None:
        leaf(d).exp().backward(torch.ones(2, device=d))

    for program in (
        modified,
        modified_view,
        leaf_in_place,
        leaf_view_in_place,
        freed,
        not_scalar,
        no_graph,
        grad_shape,
    ):
        with pytest.raises(RuntimeError) as eager:
            program("cpu")
        with pytest.raises(RuntimeError) as lazy:
            program(LAZY)
        assert str(lazy.value).split("[")[0][:40] == str(eager.value).split("[")[0][:40], program.__name__
    assert (torch.ones(2, device=LAZY) + 1).tolist() == [2.0, 2.0]


def test_L7_version_counters_follow_writes() -> None:
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            x = torch.zeros(2, device=LAZY)
            v = x[0]
            x.add_(1)
            assert x._version == 1 and v._version == 1
            v.mul_(2)
            x += 1
            assert x._version == 3


@pytest.mark.parametrize("batch", [2, 300])  # the kernel is asked about small calls only
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("wanted", ["weight", "bias", "input", "input weight", "weight bias"])
@pytest.mark.parametrize("make", [
    lambda: nn.BatchNorm2d(4), lambda: nn.InstanceNorm2d(4, affine=True), lambda: nn.GroupNorm(2, 4),
    lambda: nn.LayerNorm(8), lambda: nn.Conv2d(4, 4, 3), lambda: nn.Linear(8, 8), lambda: nn.ConvTranspose2d(4, 4, 3),
])  # fmt: skip
def test_L7_gradients_of_some_operands_only(
    make: Callable, wanted: str, train: bool, batch: int, same_as_eager: Same
) -> None:
    def program(d: str) -> object:
        torch.manual_seed(0)
        net, x = make().train(train).to(d), torch.linspace(-1, 1, batch * 256).view(batch, 4, 8, 8).to(d)
        for name, p in net.named_parameters():
            p.requires_grad_(name in wanted)
        x.requires_grad_("input" in wanted)
        net(x).square().sum().backward()
        return x.grad, [p.grad for p in net.parameters()]

    same_as_eager(program)
