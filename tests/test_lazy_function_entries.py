"""Torch's functions record at once what is known of their calls (SPEC S1, S2), and are torch's in all else."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mindtorch._ext.intercept import counts
from mindtorch.engine.execute import tensors

from .test_lazy_methods import Seeing

LAZY = "remote_accelerator:0"


def pair() -> tuple[Tensor, Tensor]:
    x = torch.linspace(-2, 2, 16).reshape(4, 4)
    return x, x.to(LAZY)


def same_mistake(wrong: Callable[[Tensor], object], x: Tensor, y: Tensor) -> None:
    """A recorded tensor is refused in torch's words."""
    with pytest.raises(TypeError) as ours:
        wrong(y)
    with pytest.raises(TypeError) as torchs:
        wrong(x)
    assert str(ours.value).replace("LazyTensor", "Tensor") == str(torchs.value)


FUNCTIONS = {
    "add": lambda t: torch.add(t, t),
    "alpha": lambda t: torch.add(t, t, alpha=2.0),
    "input by name": lambda t: torch.relu(input=t),
    "matmul": lambda t: torch.matmul(t, t),
    "cat": lambda t: torch.cat([t, t], dim=1),
    "where": lambda t: torch.where(t > 0, t, 0.5),
    "linear": lambda t: torch._C._nn.linear(t, t),
    "max": lambda t: torch.max(t, 1).values,
    "unpacked": lambda t: torch.add(*(t, t), **{"alpha": 3}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_S1_a_function_that_was_recorded_goes_no_detour(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = pair()
    program = FUNCTIONS[name]
    type("Another", (type(y),), {"__torch_function__": classmethod(refuse)})  # asks first, and is not among them
    program(y)  # by torch's way
    monkeypatch.setattr(tensors.LazyTensor, "__torch_function__", refuse, raising=False)
    for cls in type(y).__mro__:
        if "__torch_function__" in vars(cls):
            monkeypatch.setattr(cls, "__torch_function__", classmethod(refuse))
            break
    out = program(y)
    monkeypatch.undo()
    assert out.cpu().equal(program(x))


def refuse(*_: Any) -> Any:
    raise AssertionError("by the detour")


@pytest.mark.parametrize("name", ["is_complex", "is_floating_point"])
def test_S15_what_an_optimizer_asks_of_each_parameter_goes_no_detour(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = getattr(torch, name)
    dtypes = [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool]
    plain = [torch.ones(2, dtype=dtype) for dtype in dtypes]
    asked = [*(t.to(LAZY) for t in plain), torch.nn.Linear(2, 2).to(LAZY).weight]
    ask(asked[0])  # by torch's way
    for cls in {type(t) for t in asked}:
        assert "__torch_function__" in vars(cls)  # torch looks for it by name: it is found in the first class
        monkeypatch.setattr(cls, "__torch_function__", classmethod(refuse))
    found = [ask(t) for t in asked]
    monkeypatch.undo()
    assert found == [*map(ask, plain), ask(torch.ones(1))]
    assert all(type(each) is bool for each in found)


def test_S15_questions_are_torchs_in_all_else() -> None:
    x, y = pair()
    torch.is_complex(y)
    with Seeing() as mode:
        assert not torch.is_complex(y)
    assert mode.seen == [torch.is_complex]

    class Another(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return (
                "its own" if func is torch.is_complex else super().__torch_function__(func, types, args, kwargs or {})
            )

    other = x.as_subclass(Another)
    assert torch.is_complex(other.to(LAZY)) == torch.is_complex(other) == "its own"  # type: ignore[comparison-overlap]
    assert torch.is_complex(input=y) is torch.is_complex(x) is False
    for wrong in (lambda t: torch.is_complex(), lambda t: torch.is_complex(t, t), lambda t: torch.is_complex(t, of=1)):
        same_mistake(wrong, x, y)


def test_S1_an_entry_leaves_the_function_torchs_own() -> None:
    x, y = pair()
    before = torch.add
    torch.add(y, y), torch.add(y, y)
    assert torch.add is before is torch._C._VariableFunctions.add and hash(torch.add) == hash(before)
    assert torch.add(x, x).equal(x + x) and type(torch.add(x, x)) is Tensor
    assert torch.overrides.resolve_name(torch.add) == "torch.add"
    for wrong in (lambda t: torch.add(t), lambda t: torch.add(t, "1"), lambda t: torch.add(t, t, beta=2)):
        same_mistake(wrong, x, y)
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.add(y, torch.ones(5).to(LAZY))


def test_S1_gradients_modes_and_classes_are_seen() -> None:
    x, y = pair()
    torch.relu(y), torch.relu(y)
    p = y.clone().requires_grad_()
    torch.relu(p).sum().backward()
    assert p.grad is not None and p.grad.cpu().equal((x > 0).float())
    with Seeing() as mode:
        torch.relu(y)
    assert mode.seen == [torch.relu]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.matmul(y, y.t()).dtype is torch.bfloat16
    assert torch.matmul(y, y.t()).dtype is torch.float32

    class Stranger(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return "its own"

    assert torch.add(y, x.as_subclass(Stranger)) == "its own"
    out = torch.empty(4, 4).to(LAZY)
    assert torch.add(y, y, out=out) is out
    assert out.cpu().equal(x + x)


def test_S1_what_is_known_of_a_function_is_counted() -> None:
    _x, y = pair()
    torch.relu(y), torch.relu(y)
    whole, dispatched = counts()
    torch.relu(y)
    assert counts() == (whole + 1, dispatched)


def test_S3_rules_of_classes_are_asked() -> None:
    _x, y = pair()
    find = torch._library.simple_registry.find_torch_dispatch_rule

    class Ruled(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return torch.zeros(2)

    with torch.library._scoped_library("mindtorch_tests", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda t: t * 2, "CompositeExplicitAutograd")
        op = torch.ops.mindtorch_tests.twice.default
        ruled = torch.Tensor._make_wrapper_subclass(Ruled, (2,))
        assert op(ruled).tolist() == [0, 0] and find(op, Ruled) is None
        for cls in (Ruled, type(y)):
            torch.library.register_torch_dispatch(
                "mindtorch_tests::twice", cls, lambda *given: torch.ones(2), lib=library
            )
            assert find(op, cls)().tolist() == [1, 1]
        assert op(ruled).tolist() == [1, 1]
    assert find(torch.ops.aten.add.Tensor, type(y)) is None


def test_S1_lists_may_be_empty_and_arguments_none_at_all(after_torch: Callable[..., Any]) -> None:
    x, y = pair()
    code = """
        import torch
        for function in (torch.cat, torch.stack):
            try:
                function()
            except TypeError as e:
                print(str(e).splitlines()[0])
    """
    for function, missing in zip((torch.cat, torch.stack), after_torch(code).stdout.splitlines(), strict=True):
        assert function([y]).cpu().equal(function([x])) and function((y, y)).cpu().equal(function((x, x)))
        emptied = [y]
        emptied.pop()
        for given in (([],), ([], 0), (emptied,), ((),)):
            with pytest.raises((RuntimeError, ValueError), match="non-empty"):
                function(*given)
        for given, why in ((([None],), "element 0 in argument 0, but got NoneType"), ((), re.escape(missing))):
            with pytest.raises(TypeError, match=why):
                function(*given)


def test_L7_a_function_that_was_recorded_is_right_within_an_estimate_and_after_it(
    after_a_step: Callable[..., Any],
) -> None:
    """An estimate describes some functions anew, which have entries of their own by then."""
    code = """
        import torch, mindtorch
        from mindtorch.profile.estimate.estimating import estimating
        x = torch.arange(5.0)
        def both(t):
            return torch.quantile(t, 0.5).item(), torch.quantile(t, q=0.5, dim=0).item(), t.quantile(0.5).item()
        print(both(x.to("remote_accelerator")))
        with estimating():
            print(both(torch.arange(5.0)))
        print(both(x.to("remote_accelerator")), both(x))
    """
    two = "(2.0, 2.0, 2.0)"
    assert after_a_step(code).stdout.splitlines() == [two, two, f"{two} {two}"]
