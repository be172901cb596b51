"""SPEC L3, L7, S6: views of views of views are what they are in eager, and each costs the same.

With a view of a tensor that has a ``__torch_dispatch__``, torch keeps the steps that lead to it from its base, and all
tensors on the way. What is counted here is those steps, by having them done again, and those tensors.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import mindtorch
from mindtorch._ext import view_chains

DEVICE = "remote_accelerator:0"
FEW = 8  # steps from a base to a view; a call may be made of several
Same = Callable[..., None]
View = Callable[[torch.Tensor], torch.Tensor]
VIEWS: dict[str, tuple[View, tuple[int, ...]]] = {
    "view": (lambda v: v.view(v.shape[::-1]), (4, 6)),
    "view by keyword": (lambda v: v.view(size=v.shape[::-1]), (4, 6)),
    "reshape": (lambda v: v.reshape(24).reshape(4, 6), (4, 6)),
    "reshape_as": (lambda v: v.reshape_as(v), (4, 6)),
    "view_as": (lambda v: v.view_as(v), (4, 6)),
    "t": (lambda v: v.t(), (4, 6)),
    "t by keyword": (lambda v: torch.t(input=v), (4, 6)),
    "T": (lambda v: v.T, (4, 6)),
    "mT": (lambda v: v.mT, (4, 6)),
    "H": (lambda v: v.H, (4, 6)),
    "transpose": (lambda v: v.transpose(0, 1), (4, 6)),
    "swapaxes": (lambda v: v.swapaxes(0, 1), (4, 6)),
    "movedim": (lambda v: v.movedim(0, 1), (4, 6)),
    "permute": (lambda v: v.permute(1, 0), (4, 6)),
    "operator": (lambda v: torch.ops.aten.permute.default(v, [1, 0]), (4, 6)),
    "unsqueeze, squeeze": (lambda v: v.unsqueeze(0).squeeze(0), (4, 6)),
    "squeeze": (lambda v: v.squeeze(), (4, 6)),
    "expand": (lambda v: v.expand(4, 6), (4, 6)),
    "expand_as": (lambda v: v.expand_as(v), (4, 6)),
    "broadcast_to": (lambda v: torch.broadcast_to(v, (4, 6)), (4, 6)),
    "narrow": (lambda v: v.narrow(0, 0, 4), (4, 6)),
    "slice": (lambda v: v[1:], (50,)),
    "index": (lambda v: v[None, 0:, ..., 0:6][0], (4, 6)),
    "select": (lambda v: v.unsqueeze(0).select(0, 0), (4, 6)),
    "diagonal": (lambda v: v.diagonal(0, 0, 1).unsqueeze(0).expand(4, 4), (4, 6)),
    "unfold": (lambda v: v.unfold(0, 4, 1)[0].t(), (4, 6)),
    "as_strided": (lambda v: v.as_strided((4, 6), (6, 1)), (4, 6)),
    "flatten, unflatten": (lambda v: v.flatten().unflatten(0, (4, 6)), (4, 6)),
    "ravel": (lambda v: v.ravel().view(4, 6), (4, 6)),
    "split": (lambda v: v.split(4)[0], (4, 6)),
    "torch.split": (lambda v: torch.split(v, 4)[0], (4, 6)),
    "chunk": (lambda v: v.chunk(1)[0], (4, 6)),
    "tensor_split": (lambda v: v.tensor_split(1)[0], (4, 6)),
    "unbind": (lambda v: v.unsqueeze(0).unbind()[0], (4, 6)),
    "alias": (lambda v: torch.ops.aten.alias(v), (4, 6)),
    "atleast_2d": (lambda v: torch.atleast_2d(v).t(), (4, 6)),
    "complex": (lambda v: v.t(), (4, 6)),
}
DEPTH = 40


def chain(view: View, start: torch.Tensor, depth: int = DEPTH) -> list[torch.Tensor]:
    made = [start]
    for _ in range(depth):
        made.append(view(made[-1]))
    return made


def start_of(name: str, device: str, requires_grad: bool = False) -> torch.Tensor:
    shape = VIEWS[name][1]
    dtype = torch.complex64 if name == "complex" else torch.float32
    count = torch.Size(shape).numel()
    given = torch.arange(float(count)).reshape(shape).to(dtype).clone().to(device)
    return given.requires_grad_() * 2 if requires_grad else given


class Steps(TorchDispatchMode):
    """Counts the operators that come to the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def steps(view: torch.Tensor) -> int:
    """How many steps torch takes to make the view again from its base."""
    base = view._base
    assert base is not None
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        base = base.detach()
        with Steps() as counted:
            view._view_func_unsafe(base)  # type: ignore[attr-defined]
    return counted.count


@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("name", VIEWS)
def test_S6_a_view_of_views_is_a_few_steps_from_its_base(name: str, requires_grad: bool) -> None:
    made = chain(VIEWS[name][0], start_of(name, DEVICE, requires_grad))
    assert max(steps(v) for v in made[1:] if v._is_view()) <= FEW
    assert steps(made[-1]) == view_chains.steps(made[-1])
    assert made[-1]._base is made[0]


def test_S6_each_fifth_view_of_a_chain_is_made_from_the_base() -> None:
    made = chain(VIEWS["operator"][0], start_of("operator", DEVICE), 12)
    assert [view_chains.steps(v) for v in made] == [0, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]


def test_S6_a_torch_that_lacks_what_short_chains_rest_on_is_told_apart() -> None:
    assert view_chains.init(SimpleNamespace(_C=SimpleNamespace())) is False


def test_S6_a_few_steps_without_gradients_too() -> None:
    start = start_of("t", DEVICE)
    with torch.no_grad():
        made = chain(lambda v: v.t()[0:], start)
    assert max(steps(v) for v in made[1:]) <= FEW


@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "grad"])
def test_S6_views_in_between_go_when_the_program_lets_go_of_them(requires_grad: bool) -> None:
    v = start_of("t", DEVICE, requires_grad)
    seen = []
    for _ in range(DEPTH):
        v = v.t()
        seen.append(weakref.ref(v))
    gc.collect()
    assert sum(r() is not None for r in seen) <= FEW


@pytest.mark.parametrize("mode", ["", "grad", "no_grad", "inference"])
@pytest.mark.parametrize("name", VIEWS)
def test_L7_long_chains_of_views_are_as_in_eager(name: str, mode: str, same_as_eager: Same) -> None:
    """Bases, history, versions, values, and what a write through the last one does to all."""

    def program(device: str) -> object:
        start = start_of(name, device, mode == "grad")
        modes = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
        with modes.get(mode, torch.enable_grad)():
            made = chain(VIEWS[name][0], start, 13)
        facts: list[object] = [
            (v._is_view(), v._base is start, str(torch._C._autograd._get_creation_meta(v)) if v._is_view() else None)  # type: ignore[attr-defined]
            for v in made[1:]
        ]
        facts += [(history(v), v.is_leaf, v.stride(), v.storage_offset(), v.is_inference()) for v in made]
        last = made[-1]
        try:
            last.select(0, 0).mul_(-3)
        except RuntimeError as error:
            facts.append(str(error).replace("remote_accelerator:0", "cpu"))
        try:
            last.add_(1)
        except RuntimeError as error:
            facts.append(str(error))
        facts += [(v._version if not v.is_inference() else None, written(v)) for v in (start, made[1], last)]
        return facts, [v.detach() for v in made]

    same_as_eager(program)


def history(v: torch.Tensor) -> list[str]:
    """Names of the operators that a tensor comes from, along first inputs."""
    found, node = [], v.grad_fn
    while node is not None:
        found.append(node.name().rstrip("0123456789"))
        node = node.next_functions[0][0] if node.next_functions else None
    return [n for n in found if n != "ToCopyBackward"]


def written(v: torch.Tensor) -> object:
    """Of a view whose base was written, torch makes the history anew: by the steps that it keeps of it, or one."""
    found = history(v)
    return found[found.index("torch::autograd::CopySlices") :] if "torch::autograd::CopySlices" in found else found


@pytest.mark.parametrize("create_graph", [False, True], ids=["", "create_graph"])
@pytest.mark.parametrize("name", VIEWS)
def test_L7_gradients_through_long_chains_are_as_in_eager(name: str, create_graph: bool, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        start = start_of(name, device).requires_grad_()
        made = chain(VIEWS[name][0], start, 21)
        seen: list[torch.Tensor] = []
        made[9].register_hook(lambda g: seen.append(g.detach()))
        made[4].retain_grad()
        out = (made[-1].abs() ** 3).sum()
        (g,) = torch.autograd.grad(out, start, create_graph=create_graph, retain_graph=True)
        out.backward(retain_graph=True)
        if create_graph:
            (g * g.conj()).real.sum().backward()
        return g.detach(), start.grad, made[4].grad, seen

    same_as_eager(program)


@pytest.mark.parametrize("create_graph", [False, True], ids=["", "create_graph"])
@pytest.mark.parametrize("view", [lambda v: v.t(), lambda v: (v + 1).t(), lambda v: v.reshape(-1).view(4, 6)])
def test_S6_gradients_are_a_few_steps_from_their_base(view: View, create_graph: bool) -> None:
    start = start_of("t", DEVICE).requires_grad_()
    made = chain(view, start)
    seen: list[int] = []
    for v in made:
        v.register_hook(lambda g: seen.append(view_chains.steps(g)))
    torch.autograd.grad(made[-1].sum(), start, create_graph=create_graph)
    assert len(seen) == DEPTH + 1
    assert max(seen) <= 18  # making one anew is an op that eager has not: rarely, so that models see none


def test_C4_a_chain_as_long_as_models_have_adds_no_op_to_the_backward_pass() -> None:
    """What is made anew is an op of its own, which profiles and estimates would count."""

    def backward_ops(depth: int) -> int:
        start = torch.ones(4, 4, device=DEVICE, requires_grad=True)
        out = chain(lambda v: v.t(), start, depth)[-1].sum()
        before = mindtorch.stats()["ops_recorded"]
        out.backward()
        return mindtorch.stats()["ops_recorded"] - before

    assert backward_ops(12) - backward_ops(3) == 12 - 3


def test_L7_a_backward_pass_that_fails_leaves_nothing_behind(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        start = start_of("t", device).requires_grad_()
        made = chain(lambda v: v.t(), start, 20)
        fails = [True]

        def hook(g: torch.Tensor) -> None:
            if fails.pop():
                raise ValueError("no")

        made[5].register_hook(hook)
        out = made[-1].sum()
        with pytest.raises(ValueError, match="no"):
            out.backward(retain_graph=True)
        fails.append(False)
        out.backward()
        return start.grad

    same_as_eager(program)


def test_L7_a_view_that_torch_refuses_leaves_the_layer_of_views_on(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        last = chain(lambda v: v.t(), start_of("t", device), 9)[-1]
        for wrong in (lambda: last.view(5, 5), lambda: last.split("x"), lambda: last[0, 0, 0], lambda: last.t(1)):
            with pytest.raises((RuntimeError, TypeError, IndexError)):
                wrong()
        plain = torch.arange(4.0)
        return plain[1:]._base is plain, last.t()._base is last._base, plain[1:].add_(1)._base is plain, plain._version

    same_as_eager(program)


@pytest.mark.parametrize("step", [
    lambda z: z.conj(), lambda z: z.mH, lambda z: torch.view_as_complex(torch.view_as_real(z)),
    lambda z: z.real.unsqueeze(0)[0], lambda z: z.imag.T, lambda z: z.view(torch.int64).view(torch.complex64),
    lambda z: z._neg_view(), lambda z: z.adjoint().t(),
], ids=lambda _: "")  # fmt: skip
def test_L7_views_of_another_kind_in_a_long_chain(step: View, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        start = start_of("complex", device)
        made = chain(lambda v: v.t(), start, 12)
        other = step(made[-1])
        after = chain(lambda v: v.t(), other, 11)
        after[-1].mul_(2)
        return [(v._base is start, v._version, v.is_conj(), v.is_neg()) for v in after], after, made

    same_as_eager(program)


def test_L7_long_chains_under_modes_and_transforms(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        start = start_of("t", device)
        with Steps() as counted:
            made = chain(lambda v: v.t(), start, 11)
        made = chain(lambda v: v.t(), made[-1], 11)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(start, start * 2)
            tangent = forward_ad.unpack_dual(chain(lambda v: v.t(), dual, 11)[-1]).tangent + 0
        long = made[-1]
        mapped = torch.vmap(lambda row: chain(lambda v: v[None][0], row, 11)[-1] * 2)(long)
        turned = torch.func.grad(lambda x: (chain(lambda v: v.t(), x, 11)[-1] ** 2).sum())(long)
        return counted.count, made[-1]._base is start, tangent, mapped, turned

    same_as_eager(program)


def test_L7_data_assigned_below_a_long_chain(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        start = start_of("t", device)
        made = chain(lambda v: v.t(), start, 11)
        start.data = torch.zeros(4, 6).to(device)
        after = chain(lambda v: v.t(), made[-1], 11)
        after[-1].add_(1)
        return [v._base is start for v in after[1:]], after[-1], made[3], start

    same_as_eager(program)


def test_M3_long_chains_without_data() -> None:
    made = chain(lambda v: v.t()[0:], mindtorch.zeros(4, 6, device="meta"))
    assert max(steps(v) for v in made[1:]) <= FEW
    assert made[-1]._base is made[0]


def test_L7_operators_called_by_name_write_and_view_each_time(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x, y, op = torch.ones(2, 3).to(device), torch.ones(2, 3).to(device), torch.ops.aten
        facts = []
        for _ in range(3):
            op.add_.Tensor(x, y)
            facts.append((x._version, op.t.default(x)._base is x, op.split.Tensor(x, 1)[0]._base is x))
        return facts, x

    same_as_eager(program)


# ---- views that torch refuses ----------------------------------------------------------------------------------------
_REFUSED = """
import sys
if {no_catching}:
    sys.modules["mindtorch._ext.catching"] = None
import torch, mindtorch

FORMS = {{
    "view": lambda a: a.view(2, 2), "reshape": lambda a: a.reshape(2, 2), "t": lambda a: a.t(), "T": lambda a: a.T,
    "transpose": lambda a: a.transpose(0, 0), "permute": lambda a: a.permute(0), "expand": lambda a: a.expand(2, 4),
    "squeeze": lambda a: a.squeeze(), "squeeze.dim": lambda a: a.squeeze(0), "unsqueeze": lambda a: a.unsqueeze(0),
    "function": lambda a: torch.unsqueeze(a, 0), "select": lambda a: a.select(0, 1), "int": lambda a: a[1],
    "slice": lambda a: a[1:], "narrow": lambda a: a.narrow(0, 1, 2), "None": lambda a: a[None], "unfold":
    lambda a: a.unfold(0, 2, 1), "as_strided": lambda a: a.as_strided((2,), (1,)), "alias": lambda a: a.view_as(a),
    "split": lambda a: a.split(2)[0], "unbind": lambda a: a.unbind(0)[0], "add_": lambda a: a.add_(1),
    "detach": lambda a: a.detach(), "add": lambda a: a + 1, "none": lambda a: a,
}}

def said(device, form):
    for _ in range(3):  # so that whatever is remembered of such calls is
        for a in (torch.zeros(4), torch.zeros(3, 4)[1], torch.zeros(3, 4).unbind(0)[1]):
            form(a.to(device))
        form(torch.zeros(3, 4).to(device).unbind(0)[1])
    base, weight = torch.zeros(3, 4).to(device), torch.ones(3, 4).to(device).requires_grad_()
    with torch.no_grad():
        a, *_ = base.unbind(0)
    base.mul_(weight)
    try:
        return tuple(form(a).shape)
    except RuntimeError as error:
        return str(error)

for name, form in FORMS.items():
    expected, found = said("cpu", form), said("remote_accelerator:0", form)
    assert found == expected, (name, found, expected)
    print(name, type(found).__name__)
"""


@pytest.mark.parametrize("no_catching", [False, True])
def test_L9_a_view_that_torch_refuses_is_an_error_and_no_abort(no_catching: bool, after_torch: Any) -> None:
    """Torch throws where the base of a view was written to: a C++ exception, which no Python has called for."""
    lines = after_torch(_REFUSED.format(no_catching=no_catching)).stdout.splitlines()
    assert len(lines) == 25 and sum(line.endswith(" str") for line in lines) >= 20
