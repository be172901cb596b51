"""The same answer as eager, bit for bit (SPEC L7): writes, views, random numbers, modes.

Every program runs on the CPU and on the lazy device from the same seed; see ``same_as_eager`` in conftest.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from mindtorch.engine.record import eager

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


def test_L8_between_a_call_and_its_kernel_stands_whatever_asks_for_each_op() -> None:
    class Looks(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    assert eager._alone()
    for stands in (Looks(), torch.autocast("cpu", torch.bfloat16), forward_ad.dual_level()):
        with stands:
            assert not eager._alone()
        assert eager._alone()
    within = []
    torch.func.vmap(lambda x: within.append(eager._alone()) or x)(torch.ones(2))
    assert within == [False]
