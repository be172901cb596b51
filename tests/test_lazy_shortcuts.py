"""Views and writes that are done at once, as they came to the same before, are as torch makes them (S14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mindtorch._ext import intercept, shortcuts

LAZY = "remote_accelerator:0"
pytestmark = pytest.mark.usefixtures("no_call_remembered")


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda t: t.view(-1),
    "view of a list": lambda t: t.view([2, 2, 3]),
    "view of sizes": lambda t: t.view(size=(2, 6)),
    "reshape": lambda t: t.reshape(6, 2),
    "flatten": lambda t: t.flatten(),
    "t": lambda t: t.t(),
    "t by keyword": lambda t: torch.t(input=t),
    "T": lambda t: t.T,
    "transpose": lambda t: t.transpose(0, -1),
    "torch.transpose": lambda t: torch.transpose(t, 0, 1),
    "swapaxes": lambda t: t.swapaxes(0, 1),
    "movedim": lambda t: t.movedim(0, 1),
    "permute": lambda t: t.permute(1, 0),
    "unsqueeze": lambda t: t.unsqueeze(-1),
    "squeeze": lambda t: t[None].squeeze(0),
    "expand": lambda t: t.expand(2, -1, -1),
    "expand_as": lambda t: t[:, :1].expand_as(t),
    "view_as": lambda t: t.view_as(t),
    "select": lambda t: t.select(1, 2),
    "narrow": lambda t: t.narrow(1, 1, 2),
    "diagonal": lambda t: t.diagonal(1),
    "unfold": lambda t: t.unfold(1, 2, 1),
    "one index": lambda t: t[1],
    "the last index": lambda t: t[-1],
    "two indices": lambda t: t[1, 2],
    "slices": lambda t: t[1:, 1:3],
    "steps": lambda t: t[::2, ::3],
    "None and Ellipsis": lambda t: t[None, ..., 1],
    "everything": lambda t: t[:],
    "as_strided": lambda t: t.as_strided((2, 2), (4, 1), 1),
    "alias": lambda t: torch.ops.aten.alias(t),
}
BASES: dict[str, Callable[[str], torch.Tensor]] = {
    "contiguous": lambda on: torch.linspace(0, 11, 12, device=on).reshape(3, 4).clone(),
    "of another": lambda on: torch.arange(24.0, device=on).view(6, 4)[2:5],
    "integers": lambda on: torch.arange(12, device=on).reshape(3, 4).clone(),
}


def looks(found: torch.Tensor, base: torch.Tensor) -> tuple[Any, ...]:
    """What a program sees of a view of the base."""
    return (
        found.shape, found.stride(), found.storage_offset(), found.dtype, found._is_view(), found._version,
        found._base is base or found._base is base._base,
        found.requires_grad, found.is_leaf, type(found.grad_fn).__name__,
        torch._C._autograd._get_creation_meta(found) if found._is_view() else None,
        found.is_contiguous(), found.tolist(),
    )  # fmt: skip


@pytest.mark.parametrize("gradient", [None, "no_grad", "grad"])
@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize("form", VIEWS)
def test_S14_a_view_is_as_torch_makes_it(form: str, kind: str, gradient: str | None) -> None:
    view, make = VIEWS[form], BASES[kind]
    if gradient and kind == "integers":
        return
    plain, lazy = make("cpu"), make(LAZY)
    if gradient:
        plain, lazy = plain.requires_grad_(), lazy.requires_grad_()
    with torch.set_grad_enabled(gradient != "no_grad"):
        expected = looks(view(plain), plain)
        for _ in range(4):
            assert looks(view(lazy), lazy) == expected


@pytest.mark.parametrize("form", [name for name in VIEWS if name not in ("squeeze", "expand_as", "view_as")])
def test_S14_the_third_view_is_made_at_once(form: str) -> None:
    lazy, view = BASES["contiguous"](LAZY), VIEWS[form]
    known = shortcuts.remembered()[0]
    view(lazy)
    assert shortcuts.remembered()[0] == known
    view(lazy)
    whole, apart = intercept.counts()
    view(lazy)
    if form in ("alias", "t by keyword", "T"):
        return  # torch's way: called by the operator's name, without a first argument, an attribute
    assert shortcuts.remembered()[0] == known + 1
    assert intercept.counts() == (whole + 1, apart)


WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor, float], Any]] = {
    "add_": lambda t, u, f: t.add_(u),
    "add_ a float": lambda t, u, f: t.add_(f),
    "add_ an int": lambda t, u, f: t.add_(2),
    "add_ alpha": lambda t, u, f: t.add_(u, alpha=f),
    "sub_": lambda t, u, f: t.sub_(u),
    "mul_": lambda t, u, f: t.mul_(f),
    "div_": lambda t, u, f: t.div_(f + 2),
    "+=": lambda t, u, f: t.__iadd__(u),
    "*=": lambda t, u, f: t.__imul__(f),
    "zero_": lambda t, u, f: t.zero_(),
    "fill_": lambda t, u, f: t.fill_(f),
    "clamp_": lambda t, u, f: t.clamp_(-f, f),
    "clamp_ by keyword": lambda t, u, f: t.clamp_(max=f),
    "addcmul_": lambda t, u, f: t.addcmul_(u, u, value=f),
    "addcdiv_": lambda t, u, f: t.addcdiv_(u, u + 1, value=-f),
    "lerp_": lambda t, u, f: t.lerp_(u, f),
    "sqrt_": lambda t, u, f: t.abs_().sqrt_(),
    "masked_fill_": lambda t, u, f: t.masked_fill_(u > 1, f),
    "of a part": lambda t, u, f: t[1:].mul_(f),
}


@pytest.mark.parametrize("gradient", [None, "no_grad"])
@pytest.mark.parametrize("form", WRITES)
def test_S14_a_write_is_as_torch_makes_it(form: str, gradient: str | None) -> None:
    write = WRITES[form]
    plain, lazy = (torch.linspace(-2, 2, 12).view(3, 4).to(device) for device in ("cpu", LAZY))
    if gradient:
        plain, lazy = plain.requires_grad_(), lazy.requires_grad_()
    with torch.set_grad_enabled(gradient is None):
        others = torch.linspace(0, 3, 12).view(3, 4), torch.linspace(0, 3, 12).view(3, 4).to(LAZY)
        parts = plain[1:], lazy[1:]
        for f in (0.5, 0.25, 1.5, 0.125, 0.75):
            results = [write(t, u, f) for t, u in zip((plain, lazy), others, strict=True)]
            if form != "of a part":
                assert results[1] is lazy
            assert torch.equal(lazy.detach().cpu(), plain.detach())
            assert torch.equal(parts[1].detach().cpu(), parts[0].detach())
            assert lazy._version == plain._version == parts[1]._version
            assert (lazy.requires_grad, lazy.grad_fn, lazy.is_leaf) == (plain.requires_grad, None, True)


@pytest.mark.parametrize("form", ["add_ an int", "zero_"])
def test_S14_a_remembered_write_takes_a_hundred_bytes_at_most(form: str) -> None:
    x = torch.ones(3, device=LAZY)
    WRITES[form](x, x, 1.0), WRITES[form](x, x, 1.0)
    calls, size = shortcuts.remembered()
    assert calls == 1 and 0 < size <= 100  # what makes views takes more


def test_S14_what_is_remembered_of_one_call_stays_when_another_is() -> None:
    x = torch.ones(2, 3, device=LAZY)
    forms: list[Callable[[], object]] = [lambda: x.view(6), lambda: x.mul_(2), lambda: x[1], x.double]
    for form in forms:
        form(), form()
    assert shortcuts.remembered()[0] >= 2  # by chance, one may take another's place


@pytest.mark.parametrize("draw", ["uniform_", "normal_", "exponential_", "random_"])
def test_S14_random_numbers_are_drawn_by_torch_each_time(draw: str) -> None:
    drawn = []
    for device in ("cpu", LAZY):
        torch.manual_seed(3)
        x = torch.ones(3, device=device)
        whole = intercept.counts()[0]
        for _ in range(4):
            getattr(x, draw)()
        assert intercept.counts()[0] == whole
        drawn.append(x.tolist())
    assert drawn[0] == drawn[1]


def test_S14_an_index_that_is_called_wrongly_is_refused() -> None:
    x = torch.arange(6.0, device=LAZY)
    for args, kwargs in (((x,), {}), ((x, 1, 2), {}), ((x, 1), {"index": 2})):
        for _ in range(3):
            with pytest.raises(TypeError):
                type(x).__torch_function__(torch.Tensor.__getitem__, (type(x),), args, kwargs)
    assert shortcuts.remembered()[0] == 0


def test_S14_the_third_write_is_made_at_once_with_another_float() -> None:
    x, y = torch.ones(3, device=LAZY), torch.ones(3, device=LAZY)
    x.addcdiv_(y, y, value=-0.5), x.addcdiv_(y, y, value=-0.25)
    whole, apart = intercept.counts()
    known = shortcuts.remembered()[0]
    for k in range(20):
        x.addcdiv_(y, y, value=-0.001 * (k + 1))
    assert shortcuts.remembered()[0] == known
    assert intercept.counts() == (whole + 20, apart)
    one = torch.ones(3)
    plain = torch.ones(3).addcdiv_(one, one, value=-0.5).addcdiv_(one, one, value=-0.25)
    for k in range(20):
        plain.addcdiv_(one, one, value=-0.001 * (k + 1))
    assert torch.equal(x.cpu(), plain)


COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t.contiguous(),
    "contiguous of what is not": lambda t: t.t().contiguous(),
    "channels last": lambda t: t[None, None].contiguous(memory_format=torch.channels_last),
    "float": lambda t: t.float(),
    "double": lambda t: t.double(),
    "half": lambda t: t.half(),
    "to": lambda t: t.to(torch.float16),
    "to what it is": lambda t: t.to(torch.float32),
    "bfloat16": lambda t: t.bfloat16(),
    "long": lambda t: t.long(),
    "bool": lambda t: t.bool(),
    "reshape with a copy": lambda t: t.t().reshape(-1),
    "flatten with a copy": lambda t: t.t().flatten(),
}


@pytest.mark.parametrize("gradient", [None, "no_grad", "grad"])
@pytest.mark.parametrize("form", COPIES)
def test_S14_a_copy_is_made_where_torch_makes_one(form: str, gradient: str | None) -> None:
    copy = COPIES[form]
    plain, lazy = (torch.linspace(-2, 2, 12).view(3, 4).clone().to(device) for device in ("cpu", LAZY))
    if gradient:
        plain, lazy = plain.requires_grad_(), lazy.requires_grad_()
    with torch.set_grad_enabled(gradient != "no_grad"):
        for k in range(4):
            expected, found = copy(plain), copy(lazy)
            assert (found is lazy) == (expected is plain)
            assert looks(found, lazy) == looks(expected, plain)
            if found is not lazy and not found._is_view() and gradient != "grad":
                found.zero_()  # it is nobody else's
            with torch.no_grad():
                lazy.add_(k), plain.add_(k)
    assert torch.equal(lazy.detach().cpu(), plain.detach())


def test_S14_the_third_copy_is_made_at_once() -> None:
    x = torch.ones(3, 4, device=LAZY)
    for copy in (torch.Tensor.double, torch.Tensor.float, torch.Tensor.contiguous):
        for _ in range(2):
            getattr(x, copy.__name__)()
        whole, apart = intercept.counts()
        getattr(x, copy.__name__)()
        assert intercept.counts() == (whole + 1, apart)


@pytest.mark.parametrize("call", (lambda x: x.to(torch.float16), lambda x: x**2), ids=("to", "pow"))
def test_S14_conversions_and_powers_are_calls_of_one_step(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.ones(3, 4, device=LAZY)
    for _ in range(2):
        call(x)
    whole, apart = intercept.counts()
    call(x)
    assert intercept.counts() == (whole + 1, apart)


def test_S14_one_float_more_or_on_the_other_side_of_one_is_another_call() -> None:
    """What a kernel is asked about a number: its sign, whether it exceeds one."""
    x = torch.ones(3, dtype=torch.float16, device=LAZY)
    for f in (0.5, 1.0, 1.0000001, -1.0, -1.5, 100.0, 100.1, 65504.0):
        x.fill_(f)
        assert torch.equal(x.cpu(), torch.ones(3, dtype=torch.float16).fill_(f))
    with pytest.raises(RuntimeError, match="overflow"):
        x.masked_fill_(x > 0, 1e9)


def test_S14_a_leaf_is_written_to_without_gradients_alone() -> None:
    p = torch.ones(3, device=LAZY, requires_grad=True)
    for _ in range(3):
        with torch.no_grad():
            p.add_(1)
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            p.add_(1)
    assert p.tolist() == [4.0] * 3


def test_S14_a_view_made_without_gradients_is_not_written_to_with_them() -> None:
    p = torch.ones(3, device=LAZY, requires_grad=True) * 2
    for _ in range(3):
        with torch.no_grad():
            v = p.view(3, 1)
        with pytest.raises(RuntimeError, match="no_grad"):
            v.add_(1)


def test_S14_writes_with_gradients_have_a_history() -> None:
    for _ in range(3):
        p = torch.ones(3, device=LAZY, requires_grad=True)
        x = p * 2
        v = x.view(3, 1)
        x.mul_(3)
        assert type(x.grad_fn).__name__ == "MulBackward0" and v.grad_fn is not None
        v.sum().backward()
        assert p.grad is not None and p.grad.tolist() == [6.0] * 3


def test_S14_memory_that_overlaps_is_refused_where_torch_refuses_it() -> None:
    x, y = torch.arange(6.0, device=LAZY), torch.arange(5.0, device=LAZY)
    for _ in range(3):
        x[1:].add_(y)
    with pytest.raises(RuntimeError, match=r"overlap|single memory location"):
        x[1:].add_(x[:-1])
    x.add_(x)
    expected = torch.arange(6.0)
    for _ in range(3):
        expected[1:].add_(torch.arange(5.0))
    assert torch.equal(x.cpu(), expected.add_(expected))


def test_S14_a_tensor_as_index_or_number_is_read_each_time() -> None:
    x = torch.arange(6.0, device=LAZY)
    at = torch.tensor(1, device=LAZY)
    for k in range(1, 4):
        assert x[at].item() == float(k)
        assert x.narrow(0, at.item(), 2).tolist() == [float(k), k + 1.0]
        at.add_(1)


def test_S14_what_gives_several_tensors_or_begins_with_a_list_is_as_ever() -> None:
    x = torch.arange(12.0, device=LAZY).view(3, 4)
    for _ in range(3):
        assert [t.tolist() for t in x.unbind()] == x.tolist()
        assert [t.shape for t in x.chunk(2, 1)] == [(3, 2), (3, 2)]
        assert torch.broadcast_tensors(x, x[0])[1].shape == (3, 4)
        assert [t.shape for t in torch.meshgrid(x[0], x[1], indexing="ij")] == [(4, 4)] * 2
        assert torch.atleast_2d([x[0]])[0].shape == (1, 4)  # type: ignore[call-overload]
