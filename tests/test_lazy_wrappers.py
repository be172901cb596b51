"""Classes around tensors move to the device and back, by their own ``__torch_dispatch__`` (SPEC L3, L7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.testing._internal.logging_tensor import LoggingTensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map_only

import mindtorch

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


class Opaque(torch.Tensor):
    """Says nothing about what it holds: no ``__tensor_flatten__``."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, requires_grad: bool = False) -> Opaque:
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=requires_grad
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


class Telling(TwoTensor):
    """Notes the options of moves that it is asked for."""

    asked: ClassVar[list[dict[str, Any]]] = []

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            cls.asked.append({**kwargs, "device": str(kwargs.get("device"))})
        return super().__torch_dispatch__(func, types, args, kwargs)


def two(cls: Any = TwoTensor) -> Any:
    return cls(torch.arange(4.0).view(2, 2), torch.ones(2, 2))


MOVES: dict[str, Callable[[Any, str], Any]] = {
    "to": lambda t, d: t.to(d),
    "device by name": lambda t, d: t.to(device=torch.device(d)),
    "dtype": lambda t, d: t.to(d, torch.float64),
    "at once": lambda t, d: t.to(d, non_blocking=True),
    "layout": lambda t, d: t.to(d, memory_format=torch.contiguous_format),
}


@pytest.mark.parametrize("name", MOVES)
def test_L3_a_class_around_tensors_is_asked_to_move_them(name: str) -> None:
    """With what it is asked on the way to torch's own meta device."""
    t, seen = two(Telling), []
    for d in ("meta", LAZY):
        Telling.asked.clear()
        there = MOVES[name](t, d)
        assert type(there) is Telling and there.device == there.a.device == torch.device(d)
        seen.append([{**options, "device": options["device"].replace(d, "there")} for options in Telling.asked])
    assert seen[0] == seen[1] and len(seen[0]) == 1
    assert isinstance(there.a, mindtorch.LazyTensor) and isinstance(there.b, mindtorch.LazyTensor)
    for back in (there.cpu(), there.to("cpu"), there.to(torch.device("cpu")), there.to(two())):
        assert type(back) is Telling and type(back.a) is torch.Tensor and torch.equal(back.a, t.a.to(back.a.dtype))
        assert back.device == back.b.device == torch.device("cpu")
    assert there.to(LAZY) is there and type(there.to(LAZY, torch.float16)) is Telling
    assert there.to("remote_accelerator:1").b.device == torch.device("remote_accelerator:1")


def test_L7_gradients_come_back_to_where_a_class_around_tensors_was(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        x = two().requires_grad_()
        (x.to(d, torch.float64) * 3).square().sum().backward()
        assert type(x.grad) is TwoTensor and x.grad.a.device == x.grad.device == torch.device("cpu")
        y = two().to(d).requires_grad_()
        (y.cpu() * 3).sum().backward()
        assert type(y.grad) is TwoTensor and y.grad.a.device == y.grad.device == torch.device(d)
        return x.grad.a.to(d), x.grad.b.to(d), y.grad.a, y.grad.b

    same_as_eager(program)


def test_L7_modules_with_parameters_around_tensors_move(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        layer = nn.Linear(2, 2, bias=False)
        kept = layer.weight = nn.Parameter(two())
        layer.register_buffer("scale", two())
        optimizer = torch.optim.SGD(layer.parameters(), 0.5)
        layer.to(d)
        assert layer.weight is kept and isinstance(kept, nn.Parameter) and kept.device == torch.device(d)
        assert type(layer.scale) is TwoTensor and layer.scale.device == torch.device(d)
        (layer(torch.ones(2, 2, device=d)) * layer.scale).square().sum().backward()
        optimizer.step()
        there = kept.a * 1, kept.b * 1
        layer.cpu()
        assert layer.weight is kept and kept.device == kept.a.device == torch.device("cpu") and type(kept) is TwoTensor
        return *there, kept.a.to(d), kept.b.to(d)

    same_as_eager(program)


@pytest.mark.parametrize("make", [Opaque, LoggingTensor])
def test_L3_classes_that_say_nothing_of_what_they_hold_move_as_what_they_are(make: Any, same_as_eager: Same) -> None:
    def program(d: str) -> object:
        x = make(torch.arange(4.0))
        assert x.to("meta").device.type == "meta"  # as torch's own moves
        there = x.to(d)
        assert type(there) is type(there * 2) is type(there.to(d, torch.float64)) is make
        assert there.device == torch.device(d) and there.to(d) is there
        inside = getattr(there * 2, "inner" if make is Opaque else "elem")
        assert d == "cpu" or isinstance(inside, mindtorch.LazyTensor)
        back = (there * 2).cpu()
        assert type(back) is make and back.device.type == "cpu"
        other = there.to(d.replace("0", "1"))
        assert type(other) is make and other.device == torch.device(d.replace("0", "1"))
        return inside, back.sum().item()

    same_as_eager(program)


def test_L7_gradients_of_a_class_that_says_nothing_of_what_it_holds(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        x = Opaque(torch.arange(4.0), requires_grad=True)
        (x.to(d, torch.float64) * 3).square().sum().backward()
        assert type(x.grad) is Opaque and x.grad.device.type == "cpu" and x.grad.dtype is torch.float32
        layer = nn.Linear(2, 2, bias=False)
        kept = layer.weight = nn.Parameter(Opaque(torch.ones(2, 2)))
        layer.to(d)
        assert type(layer.weight.data) is Opaque and layer.weight.device == torch.device(d)
        layer(torch.ones(2, 2, device=d)).square().sum().backward()
        assert layer.weight.grad.device == torch.device(d)
        grad = layer.weight.grad.inner
        layer.cpu()
        assert layer.weight.device == layer.weight.grad.device == torch.device("cpu")
        return x.grad.inner.to(d), grad, kept.shape

    same_as_eager(program)


def test_L3_classes_within_classes_move() -> None:
    there = TwoTensor(two(), torch.ones(2, 2)).to(LAZY)
    assert type(there.a) is TwoTensor and isinstance(there.a.b, mindtorch.LazyTensor)
    back = there.cpu()
    assert type(back.a) is TwoTensor and torch.equal(back.a.a, two().a) and back.a.a.device.type == "cpu"


def test_L7_values_are_copied_across_devices_within_a_class(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        here, there = two(), (two() * 0).to(d)
        there.copy_(here)
        here.mul_(2)
        here.copy_(there * 3)
        return there.a, there.b, here.a.to(d), here.b.to(d)

    same_as_eager(program)
