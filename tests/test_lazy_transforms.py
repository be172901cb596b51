"""torch.func on lazy tensors (SPEC L7): vmap, grad, jvp, vjp, Jacobians and their compositions, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._vmap_internals import _vmap
from torch.autograd import forward_ad as fw
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)  # fmt: skip
from torch.nn import functional as F
from torch.testing._internal.logging_tensor import LoggingTensor

import mindtorch
from mindtorch.engine.record import unwrapping

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


def randn(d: str, *size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size))).to(d)


# Of a matrix, giving a matrix, a vector or a number.
FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sin": torch.sin,
    "matmul": lambda a: a @ a.T,
    "softmax": lambda a: a.softmax(-1),
    "layer_norm": lambda a: F.layer_norm(a, (4,)),
    "in place": lambda a: a.sin().add_(1).mul_(a),
    "made inside": lambda a: torch.zeros(3, 4, device=a.device) + a.new_ones(3, 4) + torch.zeros_like(a) + a,
    "indexed": lambda a: torch.cat([a[0], a[torch.tensor([2, 1], device=a.device)].flatten()]),
    "gathered": lambda a: a.gather(0, torch.zeros(1, 4, dtype=torch.int64, device=a.device)),
    "where": lambda a: torch.where(a > 0, a, a * a),
    "conv": lambda a: F.conv1d(a[None], torch.ones(2, 3, 2, device=a.device)),
    "attention": lambda a: F.scaled_dot_product_attention(a[None], a[None], a[None]),
    "cross entropy": lambda a: F.cross_entropy(a, torch.zeros(3, dtype=torch.int64, device=a.device)),
    "sort": lambda a: a.sort().values.logsumexp(1),
    "solve": lambda a: torch.linalg.solve(a @ a.T + torch.eye(3, device=a.device), a),
    "scalar": lambda a: a * torch.tensor(2.0) + a.std(),
}


def forward(*calls: Callable[[], object]) -> list[object]:
    """What calls in forward mode give, or that torch refuses them: attention's kernel has no formula since 2.14."""
    found: list[object] = []
    for call in calls:
        try:
            found.append(call())
        except NotImplementedError:
            found.append("refused")
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_L7_transforms(name: str, same_as_eager: Same) -> None:
    f = FUNCTIONS[name]

    def total(a: torch.Tensor) -> torch.Tensor:
        return f(a).square().sum()

    def program(d: str) -> object:
        x, t, batch = randn(d, 3, 4), randn(d, 4, 3).T, randn(d, 5, 3, 4)
        out, pull = vjp(f, x)
        w = batch.clone().requires_grad_()
        vmap(f)(w).sum().backward()
        return (
            vmap(f)(batch), vmap(f, in_dims=2)(randn(d, 3, 4, 5)), vmap(vmap(f))(randn(d, 2, 2, 3, 4)), w.grad,
            grad(total)(x), grad_and_value(total)(x), vmap(grad(total))(batch),
            out, pull(torch.ones_like(out)), jacrev(f)(x),
            *forward(lambda: hessian(total)(x), lambda: jvp(f, (x,), (t,)), lambda: jacfwd(f)(x),
                     lambda: linearize(f, x)[1](t), lambda: vmap(lambda a, b: jvp(f, (a,), (b,)))(batch, batch)),
        )  # fmt: skip

    same_as_eager(program)


def test_L7_transforms_of_modules(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 2))
        models = [nn.Linear(4, 3).to(d) for _ in range(3)]
        parameters = {k: v.detach() for k, v in model.to(d).named_parameters()}
        x, y = randn(d, 6, 4), randn(d, 6, 2)

        def loss(p: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return (functional_call(model, p, (a,)) - b).square().mean()

        stacked, _ = stack_module_state(models)
        return (
            functional_call(model, parameters, (x,)), grad(loss)(parameters, x, y),
            vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x.view(3, 2, 4), y.view(3, 2, 2)),
            jacrev(lambda p: functional_call(model, p, (x,)))(parameters),
            jvp(lambda p: functional_call(model, p, (x,)), (parameters,), (parameters,)),
            vmap(lambda p, a: functional_call(models[0], p, (a,)), in_dims=(0, None))(stacked, x),
        )  # fmt: skip

    same_as_eager(program)


def test_L7_transforms_that_write(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        x, out, w = randn(d, 5, 4), torch.zeros(5, 4, device=d), randn(d, 4)
        view = x[1:]

        def write(a: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
            a.mul_(w)[0] = 3
            o.copy_(a)
            return a.sum()

        total = vmap(write)(view, out[1:])
        with pytest.raises(RuntimeError, match=r"broadcast shape|vmap"):
            vmap(lambda a: w.add_(a))(x)
        return x, view, out, total, w

    same_as_eager(program)


RANDOM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "like": lambda a: a + torch.rand_like(a),
    "dropout": lambda a: F.dropout(a, 0.5) + F.alpha_dropout(a, 0.5, True),
    "made where it is": lambda a: a + torch.randn(4, device=a.device),
    "in place": lambda a: torch.empty_like(a).normal_() + a.clone().uniform_(),
    "permuted": lambda a: a[torch.randperm(4, device=a.device)],
    "chosen": lambda a: torch.rand_like(a).argmax() + a,
}


@pytest.mark.parametrize("randomness", ["same", "different"])
@pytest.mark.parametrize("name", RANDOM)
def test_L7_random_numbers_under_vmap(name: str, randomness: str, same_as_eager: Same) -> None:
    def program(d: str) -> object:
        x = randn(d, 5, 4)
        f = vmap(RANDOM[name], randomness=randomness)
        chunks = vmap(RANDOM[name], randomness=randomness, chunk_size=2 if randomness == "different" else None)
        return torch.randn(2, device=d), f(x), torch.randn(2, device=d), chunks(x), torch.randn(2, device=d)

    same_as_eager(program)


def test_L7_random_creation_on_the_named_device_under_vmap() -> None:
    x, lazy = torch.ones(3, 4), torch.ones(3, 4, device=LAZY)

    def draw(d: str, randomness: str) -> Any:
        return vmap(lambda a: a + torch.randn(4, device=d), randomness=randomness)(x if d == "cpu" else lazy)

    for randomness in ("same", "different"):
        torch.manual_seed(3)
        expected = draw("cpu", randomness)
        torch.manual_seed(3)
        got = draw(LAZY, randomness)
        assert isinstance(got, mindtorch.LazyTensor) and torch.equal(got.cpu(), expected)
    for d in ("cpu", LAZY):
        with pytest.raises(RuntimeError, match="randomness error mode"):
            draw(d, "error")


def test_L7_the_cpus_generator_is_left_alone_by_vmap() -> None:
    state = torch.get_rng_state()
    vmap(lambda a: a + torch.rand_like(a) + F.dropout(a), randomness="different")(torch.ones(3, 4, device=LAZY))
    assert torch.equal(torch.get_rng_state(), state)


def test_L7_batched_gradients(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        x = randn(d, 4).requires_grad_()
        g = torch.autograd.grad(x.sin() * x.sum(), x, torch.eye(4, device=d), is_grads_batched=True)
        functional = torch.autograd.functional
        return (
            g, functional.jacobian(torch.sin, x, vectorize=True),
            functional.jacobian(torch.sin, x, vectorize=True, strategy="forward-mode"),
            functional.hessian(lambda a: (a.sin() * a).sum(), x, vectorize=True),
            functional.jvp(torch.sin, x, x), functional.vhp(lambda a: (a.sin() * a).sum(), x, x),
        )  # fmt: skip

    same_as_eager(program)


@pytest.mark.parametrize(
    "part",
    [
        lambda x: x[1:] * 2,
        lambda x: x.narrow(1, 0, 2) * x.sum(),
        lambda x: x.select(0, 1) + 1,
        lambda x: x.diagonal() * 3,
        lambda x: x.as_strided((2, 2), (3, 1), 1) * 2,
    ],
    ids=["slice", "narrow", "select", "diagonal", "as_strided"],
)
def test_L7_batched_gradients_of_parts_are_on_the_device(part: Callable, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x = torch.randn(4, 3).to(device).requires_grad_()
        y = part(x)
        basis = torch.eye(y.numel()).view(y.numel(), *y.shape).to(device)
        g = torch.autograd.grad(y, x, basis, is_grads_batched=True, create_graph=True)[0]
        jacobian = torch.autograd.functional.jacobian(part, x, vectorize=True)
        assert g.device == jacobian.device == x.device
        made = torch.zeros(2, device="cpu")  # what the program itself makes stays where it is
        kept = _vmap(lambda t: (t * 2, made + torch.zeros(2, device="cpu")))(x)[1]
        assert kept.device.type == "cpu"
        return g, jacobian, torch.autograd.gradcheck(part, (x.double(),), check_batched_grad=True)

    same_as_eager(program)


def test_D5_the_device_is_known_inside_transforms() -> None:
    seen = []

    def f(x: torch.Tensor) -> torch.Tensor:
        seen.append(str(x.device))
        return (x * torch.ones(2).to(x.device) + torch.zeros(2, device=x.device)).sum()

    x = torch.ones(2, device=LAZY)
    xs = torch.ones(3, 2, device=LAZY)
    grad(f)(x), vmap(f)(xs), vmap(grad(f))(xs), jvp(f, (x,), (x,)), vjp(f, x), jacrev(f)(x), jacfwd(f)(x), hessian(f)(x)
    torch.func.functionalize(f)(x)
    assert set(seen) == {LAZY}
    seen.clear()
    grad(f)(torch.ones(2)), vmap(f)(torch.ones(3, 2))
    assert set(seen) == {"cpu"} and torch.ones(2).device == torch.device("cpu")


def test_L7_draws_inside_transforms_are_the_devices() -> None:
    """``rand(device=x.device)`` draws where the tensor is, and leaves the CPU's generator alone."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * torch.rand(2, device=x.device)).sum()

    torch.manual_seed(3)
    expected = [grad(f)(torch.ones(2)).tolist(), torch.rand(2).tolist()]
    torch.manual_seed(3)
    first = grad(f)(torch.ones(2, device=LAZY)).tolist()
    untouched = torch.rand(2).tolist()
    assert [first, torch.rand(2, device=LAZY).tolist()] == expected and untouched == expected[0]


def at_the_inputs_device(d: str) -> object:
    """What code that is careful about devices says inside transforms."""

    def f(x: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
        there = torch.zeros_like(x, device=x.device) + torch.as_tensor(x, device=x.device)
        there = there + x.new_ones(2, device=x.device)
        mask = (torch.arange(2) < 1).to(x.device)
        counted = (x > 1).sum().to(x)
        return (torch.where(mask, x * x, x).to(x.device) + there * plain.to(x.device)).sum() * counted

    x, plain = torch.arange(6.0).view(3, 2).to(d), torch.arange(6.0).view(3, 2) + 1
    one, other = torch.arange(2.0).to(d), plain[1]
    return (
        grad(f)(one, other),
        vmap(f)(x, plain),
        vmap(grad(f))(x, plain),
        jacrev(f)(one, other),
        grad(f, argnums=1)(one, other).cpu(),
        vmap(grad(f, argnums=1))(x, plain).cpu(),
        jvp(f, (one, other), (one, other)),
        jacfwd(f, argnums=1)(one, other).cpu(),
        hessian(f)(one, other),
    )


def test_L7_transforms_of_what_is_made_or_moved_to_the_inputs_device(same_as_eager: Callable[..., None]) -> None:
    same_as_eager(at_the_inputs_device)


MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cpu": lambda x: x.cpu(),
    "to a name": lambda x: x.to("cpu"),
    "to a device": lambda x: x.to(torch.device("cpu")),
    "by keyword": lambda x: x.to(device="cpu", dtype=torch.float64),
    "to another tensor": lambda x: x.to(torch.ones(1, dtype=torch.float64)),
    "type_as": lambda x: x.type_as(torch.ones(1)),
    "as_tensor": lambda x: torch.as_tensor(x, device="cpu"),
    "copied": lambda x: torch.stack([x.cpu(), x.cpu()])[1].copy_(x),
    "like": lambda x: torch.ones_like(x, device="cpu") * x.cpu(),
    "new": lambda x: x.new_full((2,), 3.0, device="cpu") * x.cpu(),
    "there and back": lambda x: (x.cpu().sin().to(x.device) * x).cpu(),
    "to the other one": lambda x: x if x.is_cpu and x.device.type == "cpu" else x.to("remote_accelerator:1").cpu(),
}


@pytest.mark.parametrize("name", MOVES)
def test_L7_moving_to_the_cpu_inside_transforms(name: str, same_as_eager: Same) -> None:
    seen = set()

    def f(x: torch.Tensor) -> torch.Tensor:
        there = MOVES[name](x.sin())
        seen.add(str(there.device))
        return there + torch.arange(2)  # on the CPU, too

    def total(x: torch.Tensor) -> torch.Tensor:
        return f(x).square().sum()

    def program(d: str) -> object:
        x, xs, t = randn(d, 2), randn(d, 3, 2), randn(d, 2)
        out, pull = vjp(f, x)
        forward = (f(x), vmap(f)(xs), out, *jvp(f, (x,), (t,)), jacfwd(f)(x), torch.func.functionalize(f)(x))
        # Gradients are where the inputs are, and Jacobians where the outputs are, as torch has it.
        back = (*pull(torch.ones_like(out)), grad(total)(x), vmap(grad(total))(xs))
        assert {str(t.device) for t in back} == {d} and {str(t.device) for t in forward[:5]} == {"cpu"}
        moved = (*(t.cpu() for t in forward), *(t.cpu() for t in (*back, jacrev(f)(x), hessian(total)(x))))
        return tuple(t.to(d) for t in moved)

    same_as_eager(program)
    assert seen == {"cpu"}


def test_L3_type_as_moves_between_devices() -> None:
    there, here = torch.ones(2, device=LAZY), torch.ones(2, dtype=torch.float64)
    assert str(here.type_as(there).device) == LAZY and here.type_as(there).dtype is torch.float32
    assert there.type_as(here).device.type == "cpu" and there.type_as(here).dtype is torch.float64
    assert there.type_as(there.double()).dtype is torch.float64
    x = torch.ones(2, device=LAZY, requires_grad=True)
    x.type_as(here).sum().backward()
    assert x.grad is not None and str(x.grad.device) == LAZY and x.grad.tolist() == [1, 1]


def test_L7_batches_of_gradients_cross_devices(same_as_eager: Same) -> None:
    """``is_grads_batched`` and vectorized Jacobians, which torch's older vmap makes."""

    def up(x: torch.Tensor, d: str) -> torch.Tensor:
        return x.to(d) ** 3

    def program(d: str) -> object:
        x, there = torch.arange(3.0, requires_grad=True), torch.arange(3.0).to(d).requires_grad_()
        functional = torch.autograd.functional
        return (
            torch.autograd.grad(up(x, d), x, torch.eye(3).to(d), is_grads_batched=True),
            torch.autograd.grad((there * there).cpu(), there, torch.eye(3), is_grads_batched=True),
            functional.jacobian(lambda x: up(x, d), x.detach(), vectorize=True),
            functional.jacobian(lambda x: (x * x).cpu(), there.detach(), vectorize=True),
            functional.hessian(lambda x: up(x, d).sum(), x.detach(), vectorize=True),
        )

    same_as_eager(program)


def test_L7_batches_of_gradients_through_a_class_around_tensors(same_as_eager: Same) -> None:
    """C++ makes the zeros of a slice's gradient itself, where it takes the class to be."""

    def program(d: str) -> object:
        x = torch.arange(8.0).view(4, 2).to(d).requires_grad_()
        around, plain = LoggingTensor(x.detach(), requires_grad=True), LoggingTensor(x.detach())
        batch = LoggingTensor(torch.ones(2, device=d))
        found = (
            torch.autograd.grad(around.narrow(0, 0, 3).exp().sum(), around, batch, is_grads_batched=True)[0],
            torch.autograd.grad(x.narrow(0, 0, 3).exp().sum(), x, batch, is_grads_batched=True)[0],
            torch.autograd.grad((x[:3] * plain[:3]).sum(), x, batch, is_grads_batched=True)[0],
        )
        assert {str(t.device) for t in found} == {d}
        return found

    same_as_eager(program)


def complex_numbers(d: str) -> torch.Tensor:
    return torch.complex(torch.arange(6.0), torch.arange(1.0, 7.0)).view(2, 3).to(d)


BITS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "neither": lambda x: x,
    "conjugated": lambda x: x.conj(),
    "negated": lambda x: x._neg_view(),
    "both": lambda x: x.conj()._neg_view(),
}


@pytest.mark.parametrize("of_the_tangent", BITS)
@pytest.mark.parametrize("of_the_primal", BITS)
def test_L7_tangents_of_conjugated_and_negated_primals(
    of_the_primal: str, of_the_tangent: str, same_as_eager: Same
) -> None:
    def program(d: str) -> object:
        seen = []
        primal, tangent = BITS[of_the_primal](complex_numbers(d)), BITS[of_the_tangent](complex_numbers(d) * 2)
        with fw.dual_level():
            dual = fw.make_dual(primal, tangent)
            seen.append(fw.unpack_dual(dual).tangent is tangent)
            for out in (dual, dual[1:], torch.view_as_real(dual.resolve_conj().resolve_neg()), dual * 2, dual.abs()):
                t = fw.unpack_dual(out).tangent
                seen.append((t.is_conj(), t.is_neg(), t.stride(), t.resolve_conj().resolve_neg()))
        return seen

    same_as_eager(program)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_L7_tangents_go_along_to_another_device(requires_grad: bool, same_as_eager: Same) -> None:
    def program(d: str) -> object:
        here, there = torch.arange(3.0, requires_grad=requires_grad), torch.arange(3.0).to(d)
        fw, out = torch.autograd.forward_ad, []
        with fw.dual_level():
            dual = fw.make_dual(here, torch.ones(3)).to(d) * 2
            out += [dual, fw.make_dual(there, torch.ones(3, device=d)).cpu().exp().to(d)]
            out += [dual.to("cpu", torch.float64).to(d), dual.to(d.replace("0", "1")).square().to(d)]
            return [(t.detach() * 1, fw.unpack_dual(t).tangent.detach() * 1) for t in out]

    same_as_eager(program)


def test_L7_dual_tensors_in_inference_mode(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        normal, seen = torch.arange(3.0).to(d), []
        with torch.inference_mode(), fw.dual_level():
            for x, tangent in ((normal * 1, normal * 2), (normal, normal * 2), (normal * 3, normal)):
                dual = fw.make_dual(x, tangent)
                dual += 1
                primal, found = fw.unpack_dual(dual)
                seen.append((dual._is_view(), dual.is_inference(), found is None, x * 1, primal * 2))
        return [(*facts, x.clone(), y.clone()) for *facts, x, y in seen]

    same_as_eager(program)


def test_L1_what_hides_a_recorded_tensor_is_around_it() -> None:
    told = []

    def look(inner: torch.Tensor) -> torch.Tensor:
        told.extend([unwrapping.hides(inner), unwrapping.hides(x), unwrapping.hides(torch.ones(2))])
        return inner

    x = torch.ones(2, 3, device=LAZY)
    torch.vmap(look)(x)
    assert told == [True, False, False]
    assert not unwrapping.hides(x) and not unwrapping.hides(torch.ones(2)) and not unwrapping.hides(None)


def test_L1_only_what_another_transform_needs_is_differentiated_again() -> None:
    told = []

    def look(x: torch.Tensor) -> torch.Tensor:
        told.append(unwrapping.differentiates([x * 2]))
        return (x * x).sum()

    x = torch.ones(3, device=LAZY)
    torch.func.grad(look)(x)
    torch.func.grad(lambda x: torch.func.grad(look)(x).sum())(x)
    torch.func.grad(look)(x.clone().requires_grad_())
    assert told == [False, True, True] and unwrapping.differentiates([x]) and not unwrapping.differentiates([])
