"""Operands that are no tensors, and that torch asks by ``__torch_function__``: recorded tensors give way to them as
plain ones do (SPEC L7, L3)."""

from __future__ import annotations

import inspect
import operator  # noqa: F401 - in FORMS, as the next
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: F401

from mindtorch.devices import mode

LAZY = "remote_accelerator:0"
FUNCTIONS = torch.overrides.get_testing_overrides()


class Duck:
    """Answers each call with what it was asked."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kinds = [getattr(t, "__name__", t) for t in types]
        return "asked", _name(func), kinds, _kinds(args), {k: _kinds(v) for k, v in (kwargs or {}).items()}


class Answering(Duck):
    """The same, with reflected operators of its own."""

    def __radd__(self, other: Any) -> Any:
        return "radd", _kinds(other)

    __rsub__ = __rmul__ = __rmatmul__ = __rand__ = __rpow__ = __eq__ = __lt__ = __rtruediv__ = __radd__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class Stranger:
    """Has reflected operators, and nothing that torch asks."""

    def __radd__(self, other: Any) -> Any:
        return "radd", _kinds(other)

    __rsub__ = __rmul__ = __rmatmul__ = __rand__ = __rpow__ = __eq__ = __lt__ = __rtruediv__ = __radd__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def _name(func: Any) -> str:
    return torch.overrides.resolve_name(func) or getattr(func, "__qualname__", repr(func))


def _kinds(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_kinds(item) for item in value]
    if isinstance(value, torch.Tensor):
        return "Tensor", value.tolist()
    return type(value).__name__ if type(value).__module__ == __name__ else repr(value)


def _outcome(call: Callable[..., Any], *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(7)
        try:
            made = call(*args)
            asked = isinstance(made, tuple) and made[:1] == ("asked",) and len(made) == 5
            return made if asked else ("made", _kinds(made))
        except Exception as error:  # what a call raises is an answer, too
            return "raised", type(error).__name__


def _of_ducks(func: Any, stand_in: Any, first: tuple) -> Any:
    parameters = inspect.signature(stand_in).parameters.values()
    wanted = sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    return func(*first, *(Duck() for _ in range(max(wanted - len(first), 1))))


def _differ(eager: Any, ours: Any, in_python: bool) -> bool:
    """Is a recorded tensor's answer another one than a plain tensor's?

    Torch tells a duck in front of a recorded tensor of that, too, as of any subclass. What eager asks within a function
    that is written in Python, is asked about the function.
    """
    if eager[0] == "raised":  # before anybody is asked, or after
        return bool(ours[0] == "made")
    if "asked" not in (eager[0], ours[0]) or eager[0] != ours[0]:
        return bool(eager != ours)
    told = [kind for kind in ours[2] if kind != "LazyTensor" or kind in eager[2]]
    inside = in_python and "Tensor" not in eager[2]
    return (*eager[1:2], eager[2], *eager[3:]) != (*ours[1:2], told, *ours[3:]) and not inside


def test_L7_every_function_asks_who_is_no_tensor() -> None:
    differ, asked = [], 0
    for func, stand_in in FUNCTIONS.items():
        for first in (lambda x: (x,), lambda x: ([x],), lambda x: (x, x)):
            given = [first(torch.tensor([0.25, 0.75]).to(device)) for device in ("cpu", LAZY)]
            said = [_outcome(_of_ducks, func, stand_in, each) for each in given]
            if said[0][0] == "asked":  # of other calls, most are wrong
                asked += 1
                if _differ(said[0], said[1], isinstance(func, FunctionType)):
                    differ.append(f"{_name(func)}\n  cpu:  {said[0]}\n  ours: {said[1]}")
    assert not differ, "\n".join(differ)
    assert asked > 900


FORMS = """
x + w; w + x; x - w; w - x; x * w; w * x; x / w; w / x; x // w; w // x; x % w; w % x; x ** w; w ** x; x @ w; w @ x
i & w; w & i; i | w; w | i; i ^ w; w ^ i; i << w; w << i; i >> w; w >> i; x == w; w == x; x != w; w != x; x < w; w < x
x <= w; w <= x; x > w; w > x; x >= w; w >= x; divmod(x, w); operator.iadd(x, w); operator.isub(x, w)
operator.imul(x, w); operator.itruediv(x, w); operator.ifloordiv(x, w); operator.imod(x, w); operator.ipow(x, w)
operator.imatmul(x, w); operator.iand(i, w); operator.ior(i, w); operator.ixor(i, w); operator.ilshift(i, w)
operator.irshift(i, w); torch.add(x, w); torch.add(w, x); x.add(w); x.add_(w); x.add(other=w); torch.add(x, other=w)
torch.where(x > 0, x, w); x.where(x > 0, w); torch.cat([x, w]); torch.cat((w, x)); torch.stack([x, w])
torch.cat([x, x], dim=w); x[w]; x[0, w]; x[w, 0]; x[[w]]; x[None, w]; x[w:]; operator.setitem(x, w, 1)
operator.setitem(x, 0, w); operator.setitem(x, (0, w), 1); operator.contains(x, w); x.copy_(w); torch.equal(x, w)
torch.clamp(x, w); torch.clamp(x, min=w); torch.add(x, x, alpha=w); torch.add(x, x, out=w); torch.full_like(x, w)
x.new_tensor(w); x.new_full((1,), w); x.to(w); x.sum(dim=w); x.view(w); x.sum(w); x.expand(w); x.reshape(w, -1)
x.split(w); torch.meshgrid(x, w); torch.broadcast_tensors(x, w); torch.einsum("i,i->i", x, w); torch.block_diag(x, w)
torch.atleast_1d(x, w); F.mse_loss(x, w); F.linear(x, w); F.relu(w); F.dropout(x, w); F.softmax(x, w)
F.pad(x, (w, 1)); F.embedding(i, w); F.cross_entropy(x, w); F.layer_norm(x, (2,), w); F.layer_norm(x, (2,), weight=w)
F.scaled_dot_product_attention(x, w, x); x.backward(w); torch.autograd.grad(x, w); x.register_hook(w)
x.masked_fill(x > 0, w); x.masked_fill_(w, 0); x.fill_(w); x.mul_(w); x.index_put_((i,), w); x.index_put_((w,), x)
x.scatter(0, i, w); x.gather(0, w); x.lerp(x, w); x.addcmul(x, w); torch.addcmul(x, x, w, value=1)
torch.addmm(x, w, w, beta=2); x.__add__(w); x.__radd__(w); x.__rsub__(w); x.__rpow__(w); x.__eq__(w); x.eq(w)
x.__rtruediv__(w); x.__rfloordiv__(w); x.__rmatmul__(w); x.__rmod__(w); i.__rand__(w); i.__rlshift__(w)
x.__getitem__(w); x.__setitem__(0, w); x.__contains__(w); x.__iadd__(w); x.type_as(w); x.view_as(w)
torch._foreach_add([x], w); torch._foreach_add([x], [w]); torch._foreach_mul_([x, x], [x, w]); x.map_(x, w)
x.apply_(w); x.set_(w); x.resize_as_(w); setattr(x, "data", w); setattr(x, "grad", w); setattr(x, "requires_grad", w)
x.requires_grad_(w); x.permute(w); x.transpose(0, w); x.size(w); x.stride(w); x.flatten(w); x.repeat(w); x.roll(w)
x.to(dtype=w); x.type(w); x.item(w); x.cpu(w); x.tolist(w); x.detach(w); x.clone(memory_format=w); torch.tensor(w)
torch.as_tensor(w); torch.zeros_like(x, device=w); torch.rand_like(x, generator=w); x.normal_(w); x.bernoulli_(w)
torch.normal(x, w); torch.maximum(x, w); torch.linalg.norm(x, w); torch.linalg.norm(x, ord=w); x.pow(w)
torch.pow(2, w); torch.pow(w, x); torch.bmm(x, w); torch.dot(x, w); x.dot(w); x.matmul(w); torch._assert(w, "m")
torch.overrides.has_torch_function((x, w)); torch.overrides.has_torch_function((w,)); torch.isclose(x, w)
torch.nn.functional.multi_head_attention_forward(x, x, x, 1, 1, w, None, None, None, False, 0.0, x, x)
"""
#: Asked about by torch within a function that is written in Python.
INSIDE = {"x.split(w)", "F.softmax(x, w)", "F.pad(x, (w, 1))", "F.dropout(x, w)", "F.embedding(i, w)"}


@pytest.mark.parametrize("kind", [Duck, Answering, Stranger])
def test_L7_every_form_of_a_call_asks_who_is_no_tensor(kind: type) -> None:
    differ = []
    for form in FORMS.replace(";", "\n").strip().splitlines():
        said = []
        for device in ("cpu", LAZY):
            x = torch.tensor([0.25, 0.75]).to(device)
            names = {"x": x, "i": torch.tensor([1, 2]).to(device), "w": kind()}
            said.append(_outcome(eval, form.strip(), {**globals(), **names}))
        if _differ(said[0], said[1], form.strip() in INSIDE):
            differ.append(f"{form.strip()}\n  cpu:  {said[0]}\n  ours: {said[1]}")
    assert not differ, "\n".join(differ)


def test_L7_traced_with_a_recorded_constant_and_with_dimensions_that_are_objects() -> None:
    from functorch.dim import dims

    def seen(device: str) -> Any:
        c, k = torch.arange(6.0).view(2, 3).to(device), torch.ones(3).to(device)

        def f(x: torch.Tensor) -> torch.Tensor:
            return torch.add(c, x) + c * x - torch.cat([c, x]).sum() + torch.where(c > 1, c, x)[0] + c.add(x) + (c == x)

        traced = torch.fx.symbolic_trace(f)
        i, j, n = dims(3)
        sums, products = (c[i, j] * k[j]).sum(j).order(i), (c[i, j] * c[n, j]).sum((j,)).order(i, n)
        return traced.code, traced(torch.ones(2, 3).to(device)).tolist(), sums.tolist(), products.tolist()

    assert seen(LAZY) == seen("cpu")


def test_L1_who_has_a_function_of_torchs() -> None:
    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return super().__torch_function__(func, types, args, kwargs or {})

    for device in ("cpu", LAZY):
        x = torch.ones(2).to(device)
        given = (x,), (x, Duck()), (Duck(),), (), (x.as_subclass(Sub),)
        has = [torch.overrides.has_torch_function(some) for some in given]
        assert has == [False, True, True, False, True]


@pytest.mark.parametrize("shape", [(), (0,), (2,), (0, 3), (2, 0), (2, 3)])
def test_L3_what_is_printed_names_what_torch_names(shape: tuple[int, ...]) -> None:
    """And the device, unless it is the default one, as torch does not name the CPU."""
    floats, others = (torch.float32, torch.float64, torch.complex64, torch.complex128), (torch.int64, torch.int32)
    for dtype in (*floats, *others, torch.bool):
        plain = torch.ones(shape, dtype=dtype)
        for default in (None, 0, 1):
            for index in (0, 1):
                place = f",device='remote_accelerator:{index}'"
                with mode.enter(default=default):
                    printed = "".join(repr(plain.to(f"remote_accelerator:{index}")).split())
                assert printed.count(place) == (index != default), (dtype, default)
                assert printed.replace(place, "") == "".join(repr(plain).split()), (dtype, default)


def test_L3_what_is_printed_names_how_it_was_made() -> None:
    x = torch.ones(2, requires_grad=True)
    for mine in (lambda t: t * 2, lambda t: t, lambda t: (t * 2).detach()):
        printed = repr(mine(x.detach().to(LAZY).requires_grad_()))
        assert printed.replace(f", device='{LAZY}'", "") == repr(mine(x))


def test_L3_the_class_of_a_tensor_makes_tensors_as_torchs_own(same_as_eager: Callable[..., None]) -> None:
    """Of a tensor it gives one on the same memory, through which gradients come back: its history was lost."""

    def program(device: str) -> Any:
        x = torch.arange(6.0).view(2, 3).to(device).requires_grad_()
        kind = type(x)
        shared = kind(x)
        with torch.no_grad():
            shared.add_(1)
        kind(x).square().sum().backward()
        made = [kind(2, 3), kind(torch.Size([2, 1])), kind(), kind([[1.0, 2.0]])]
        return [x, x.grad, shared, shared.requires_grad, str(shared.device) == device, kind([[1.0, 2.0]])], [
            (t.shape, t.dtype, t.requires_grad) for t in made
        ]

    same_as_eager(program)
