"""D4, N5: a program's own classes of tensors, of tensors on NPUs: as torch has them of those on the CPU."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor


class Named(torch.Tensor):
    extra = 3


class Counted(torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        Counted.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def facts(device: str, kind: type) -> list[Any]:
    leaf = torch.arange(3.0, requires_grad=True)
    plain = (leaf * 1).to(device)
    t = plain.as_subclass(kind)
    other = t + torch.ones(3, device=device)
    (other * other).sum().backward()
    pieces = torch.ones(2, 2, device=device).as_subclass(kind).unbind()
    named = [
        t,
        other,
        t.detach(),
        t[0],
        t.cpu(),
        t.to(torch.float16),
        t.to(device),
        *pieces,
        t.as_subclass(torch.Tensor),
    ]
    return [
        [isinstance(each, kind) for each in named], [type(each).__name__ for each in named if isinstance(each, kind)],
        leaf.grad.tolist(), other.tolist(), tuple(t.shape), getattr(other, "extra", None),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [Named, Counted])
def test_D4_as_subclass_of_an_npu_tensor(npu: ModuleType, kind: type) -> None:
    assert facts("npu:0", kind) == facts("cpu", kind)
    last = f"npu:{npu.device_count() - 1}"
    t = torch.ones(2, device=last).as_subclass(kind)
    view = t.view(2)
    assert str((t * 2).device) == last and t.untyped_storage() == view.untyped_storage()
    view.fill_(5)
    assert t.tolist() == [5.0, 5.0] and t.as_subclass(torch.Tensor).data_ptr() == t.data_ptr()


class Tagged(torch.Tensor):
    def __new__(cls, data: torch.Tensor, tag: int) -> Any:
        made = torch.Tensor._make_subclass(cls, data)  # type: ignore[attr-defined]
        made.tag = tag
        return made


def constructed(device: str) -> list[Any]:
    make: Any = torch.Tensor._make_subclass  # type: ignore[attr-defined]
    x = torch.ones(2, device=device)
    tagged, leaf, of_graph = Tagged(x, 3), make(Named, x, True), make(Named, x.clone().requires_grad_() * 2)
    named, parameter, plain = Named(x), make(torch.nn.Parameter, x, True), make(torch.Tensor, tagged)
    tagged.add_(1)
    return [
        [t.device.type == device for t in (tagged, leaf, of_graph, named, parameter, plain)],
        [isinstance(t, Tagged) for t in (tagged, tagged * 2, plain)], tagged.tag, x.tolist(), plain.tolist(),
        [(isinstance(t, Named), t.requires_grad, t.is_leaf) for t in (leaf, of_graph, named)],
        isinstance(parameter, torch.nn.Parameter), parameter.requires_grad,
    ]  # fmt: skip


def test_D4_classes_that_construct_themselves_of_an_npu_tensor(npu: ModuleType) -> None:
    assert constructed("npu") == constructed("cpu")
    with pytest.raises(TypeError, match=r"^\[_make_subclass\] expected no options .* got dispatch_device$"):
        torch.Tensor._make_subclass(Named, torch.ones(2, device="npu"), dispatch_device=True)  # type: ignore[attr-defined]


def test_D4_functions_of_a_class_see_the_calls_on_npus(npu: ModuleType) -> None:
    t = torch.ones(2, device="npu:0").as_subclass(Counted)
    Counted.calls = 0
    torch.add(t, 1)
    assert Counted.calls == 1
    with pytest.raises(TypeError, match=r"\[as_subclass\] expected a class of tensors, got <class 'int'>"):
        t.as_subclass(int)


def test_D5_a_class_that_holds_npu_tensors_is_where_they_are(npu: ModuleType) -> None:
    for device in (f"npu:{npu.device_count() - 1}", "npu:0", "remote_accelerator:0", "cpu"):
        held = torch.ones(2, device=device)
        assert str(TwoTensor(held, held).device) == str(held.device) == device


def test_N5_a_tensor_made_in_what_torch_func_transforms_may_be_written(library: Any) -> None:
    def loss(w: torch.Tensor) -> torch.Tensor:
        made = torch.ones(3, device=w.device).mul_(2)
        return (torch.nn.Parameter(torch.ones(3, device=w.device)) * made * w).sum()

    w = torch.ones(3)
    assert torch.equal(torch.func.grad(loss)(w.to("npu:0")).cpu(), torch.func.grad(loss)(w))
