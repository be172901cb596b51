"""Methods that are recorded without the detour over `__torch_function__` do what torch's own do (S1, L7)."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch.overrides import TorchFunctionMode

from mindtorch._ext import function_entries, intercept
from mindtorch.engine.execute import tensors
from mindtorch.engine.tensor.recorded import RecordedTensor

LAZY = "remote_accelerator:0"
METHODS = tensors._METHODS
TWO = ("add", "sub", "mul", "div", "mm", "pow")
CALLS: dict[str, Any] = {
    **{name: lambda t, n=name: getattr(t, n)() for name in METHODS if name not in (*TWO, "bmm")},
    **{name: lambda t, n=name: getattr(t, n)(t) for name in TWO},
    "bmm": lambda t: t.view(1, 3, 3).bmm(t.view(1, 3, 3)),
    "softmax": lambda t: t.softmax(-1),
    "log_softmax": lambda t: t.log_softmax(dim=0, dtype=torch.float64),
}


def data() -> torch.Tensor:
    return torch.linspace(0.5, 2.5, 9).reshape(3, 3)


@pytest.mark.parametrize("name", METHODS)
def test_S1_a_method_is_recorded_whole_and_as_eager(name: str) -> None:
    lazy, call = data().to(LAZY), CALLS[name]
    call(lazy), call(lazy)
    whole, apart = intercept.counts()
    found = call(lazy)
    assert intercept.counts() == (whole + (3 if name == "bmm" else 1), apart)  # with its views
    expected = call(data())
    assert torch.equal(found.cpu(), expected) and found.dtype == expected.dtype and found.stride() == expected.stride()


@pytest.mark.parametrize("name", METHODS)
def test_L7_a_method_with_a_gradient_is_as_eager(name: str) -> None:
    told = []
    for device in ("cpu", LAZY):
        t = data().to(device).requires_grad_()
        out = CALLS[name](t)
        out.sum().backward()
        told.append((type(out.grad_fn).__name__, out.tolist(), t.grad.tolist()))  # type: ignore[union-attr]
    assert told[0] == told[1]


def test_L7_a_method_takes_keywords_and_refuses_as_torch_does() -> None:
    for device in ("cpu", LAZY):
        t = data().to(device)
        assert torch.equal(t.add(t, alpha=2).cpu(), 3 * data())
        assert torch.equal(t.add(other=t).cpu(), 2 * data())
        assert torch.equal(t.div(2, rounding_mode="floor").cpu(), data().div(2, rounding_mode="floor"))
        assert t.sum(dim=1, keepdim=True).shape == (3, 1) and t.sum(dtype=torch.float64).dtype is torch.float64
    said = []
    for device in ("cpu", LAZY):
        for wrong in (lambda t: t.add(), lambda t: t.add("a"), lambda t: t.relu(1), lambda t: t.mm(t[0])):
            with pytest.raises((TypeError, RuntimeError)) as error:
                wrong(data().to(device))
            said.append((type(error.value), str(error.value).splitlines()[0]))
    assert said[:4] == said[4:]


def test_L7_a_method_beside_a_plain_tensor_is_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        data().to(LAZY).add(data())


class Seeing(TorchFunctionMode):
    """Notes the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_L7_a_mode_sees_a_method() -> None:
    t = data().to(LAZY)
    with Seeing() as mode:
        out = t.add(t)
    assert mode.seen == [torch.Tensor.add] and torch.equal(out.cpu(), 2 * data())


class Mine(torch.Tensor):
    seen: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("first", [True, False])
def test_L7_a_class_of_the_program_is_asked_about_a_method(first: bool) -> None:
    t = data().to(LAZY)
    mine = t.as_subclass(Mine)
    Mine.seen.clear()
    out = mine.mul(t) if first else t.mul(mine)
    assert Mine.seen[0] is torch.Tensor.mul and isinstance(out, Mine)
    assert torch.equal(out.cpu(), data() * data())


def test_L7_a_method_under_autocast_is_as_eager() -> None:
    told = []
    for device in ("cpu", LAZY):
        t = data().to(device)
        with torch.autocast("cpu" if device == "cpu" else "remote_accelerator", dtype=torch.bfloat16):
            told.append([t.mm(t).dtype, t.add(t).dtype, t.softmax(0).dtype, t.mm(t).tolist()])
    assert told[0] == told[1]


def test_S1_a_method_says_what_it_is() -> None:
    for name in METHODS:
        ours, torchs = getattr(RecordedTensor, name), getattr(torch.Tensor, name)
        assert (ours.__name__, ours.__doc__) == (torchs.__name__, torchs.__doc__)


def test_S1_a_method_that_is_not_recorded_as_it_is_is_refused() -> None:
    with pytest.raises(ValueError, match=r"recorded as it is, got aten::view"):
        function_entries.make_method(torch.Tensor.view)
    with pytest.raises(ValueError, match=r"recorded as it is, got aten::add_"):
        function_entries.make_method(torch.Tensor.add_)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_D4_whole_numbers_are_counted_in_bins_as_on_accelerators(dtype: torch.dtype) -> None:
    """The CPU's kernel refuses them. Beside a model in plain Python."""

    def model(numbers: list[int], bins: int, low: int, high: int) -> list[int]:
        low, high = (min(numbers), max(numbers)) if low == high and numbers else (low, high)
        low, high = (low - 1, high + 1) if low == high else (low, high)
        found = [0] * bins
        for n in numbers:
            if low <= n <= high:
                found[min((n - low) * bins // (high - low), bins - 1)] += 1
        return found

    draw = torch.Generator().manual_seed(0)
    for size in ((0,), (1,), (3, 4), (50,)):
        x = torch.randint(0, 12, size, generator=draw).to(dtype)
        lazy, numbers = x.to(LAZY), x.flatten().tolist()
        for low, high in ((0, 0), (4, 4), (0, 5), (2, 11), (3, 4), (0, 12)):
            for bins in (1, 2, 3, 7):
                for found in (torch.histc(lazy, bins, low, high), lazy.histc(bins=bins, min=low, max=high)):
                    assert found.dtype == dtype and found.tolist() == model(numbers, bins, low, high)
        assert torch.histc(input=lazy).tolist() == model(numbers, 100, 0, 0)
        for bad, why in (((0,), "bins must be > 0"), ((-1,), "bins must be > 0"), ((3, 2, 1), "max must be larger")):
            with pytest.raises(RuntimeError, match=why):
                torch.histc(lazy, *bad)
