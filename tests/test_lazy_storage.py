"""Raw memory under lazy tensors (SPEC L6, L7): storages, pointers, and calls that would reach for them in C++.

A lazy tensor has no memory on its C++ side. Whatever reads it there must get the computed value's, or an error; each
of these calls once ended the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.base import torch_facts

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


def made() -> torch.Tensor:
    return torch.arange(6.0, device=LAZY).reshape(2, 3) + 1


STORAGES: dict[str, Callable[[], Any]] = {
    "untyped": lambda: torch.UntypedStorage(4, device=LAZY),  # type: ignore[call-overload]
    "untyped, torch.device": lambda: torch.UntypedStorage(4, device=torch.device(LAZY)),
    "untyped, data": lambda: torch.UntypedStorage([1, 2], device=LAZY),  # type: ignore[call-overload]
    "typed": lambda: torch.TypedStorage(4, dtype=torch.float32, device=LAZY),
    "moved": lambda: torch.UntypedStorage(4).to(device=torch.device(LAZY)),
    "moved, typed": lambda: torch.ones(2).storage().to(device=LAZY),  # type: ignore[attr-defined]
    "shared": lambda: torch.UntypedStorage._new_shared(4, device=LAZY),
}


@pytest.mark.parametrize("how", STORAGES)
def test_L8_storages_are_not_made_on_the_lazy_device(how: str) -> None:
    made()  # the first use: torch knows the device's name from then on
    with pytest.raises(mindtorch.UnsupportedOperationError, match=r"\[UntypedStorage\] .* got remote_accelerator:0"):
        STORAGES[how]()


def test_L1_storages_elsewhere_are_made_as_before() -> None:
    assert torch.UntypedStorage(4).nbytes() == torch.UntypedStorage(4, device="cpu").nbytes() == 4
    assert torch.UntypedStorage([1, 2]).tolist() == [1, 2] and torch.UntypedStorage().nbytes() == 0
    assert torch.UntypedStorage(4, device="meta").device.type == "meta"  # type: ignore[call-overload]
    assert torch.TypedStorage([1, 2], dtype=torch.int64).tolist() == [1, 2]
    assert torch.ones(2).share_memory_().untyped_storage().is_shared()


@pytest.mark.only_on("local", reason="what is elsewhere has no address here")
def test_L6_pointers_are_those_of_the_computed_value() -> None:
    x = made()
    pointers = {x.data_ptr(), torch.Tensor.data_ptr(x), *(f(x) for f in torch_facts.data_pointers())}
    assert len(pointers) == 1
    assert list((ctypes.c_float * 6).from_address(pointers.pop())) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert torch.Tensor.untyped_storage(x).nbytes() == x.untyped_storage().nbytes() == 24
    x.untyped_storage().copy_(torch.zeros(6).untyped_storage())
    assert x.tolist() == [[0.0] * 3] * 2, "what is written there is what the tensor holds"


def test_L7_functions_applied_element_by_element(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        x, y = torch.arange(6.0, device=d).reshape(2, 3) + 1, torch.ones(2, 3, device=d) * 2
        view, before = x[1], x * 2  # not computed yet when its operand is written
        assert x.apply_(lambda v: v * v) is x
        x.map_(y, lambda a, b: a + b)
        z = x.t().clone().map2_(x.t(), y.t(), lambda a, b, c: a * b - c)  # type: ignore[attr-defined]
        return x, view, z, view + 1, before

    same_as_eager(program)
    with pytest.raises(RuntimeError, match="Can't call apply_\\(\\) on Variable that requires grad"):
        made().requires_grad_().apply_(lambda v: v)
    with pytest.raises(RuntimeError, match="same device"):
        made().map_(torch.ones(2, 3), lambda a, b: a)


@pytest.mark.parametrize("name", ["as_tensor", "asarray"])
def test_L2_data_of_a_lazy_tensor_moves_where_it_is_asked_to(name: str) -> None:
    x = made()
    out = getattr(torch, name)(x, device="cpu", dtype=torch.float64)
    assert type(out) is torch.Tensor and out.tolist() == x.tolist() and out.dtype is torch.float64
    assert str(getattr(torch, name)(x, device="remote_accelerator:1").device) == "remote_accelerator:1"
    assert getattr(torch, name)(x, device=LAZY) is x
    assert getattr(torch, name)(x, device="meta").device.type == "meta"


def test_L2_data_of_a_lazy_tensor_and_the_graph() -> None:
    x = made().requires_grad_()
    torch.as_tensor(x, device="cpu").sum().backward()
    torch.as_tensor(x, device=LAZY, dtype=torch.float64).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[2.0] * 3] * 2
    y = made()
    copied = torch.asarray(y, device=LAZY, copy=True)
    copied.zero_()
    assert y.sum().item() == 21.0
    with pytest.warns(UserWarning, match="copy construct"):
        assert type(torch.tensor(x, device="cpu")) is torch.Tensor


SPARSE_AND_QUANTIZED: dict[str, Callable[[str], torch.Tensor]] = {
    "csc": lambda d: torch.sparse_csc_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2), device=d),
    "bsr": lambda d: torch.sparse_bsr_tensor([0, 1], [0], [[[1.0, 2.0], [3.0, 4.0]]], (2, 2), device=d),
    "bsc": lambda d: torch.sparse_bsc_tensor([0, 1], [0], [[[1.0, 2.0], [3.0, 4.0]]], (2, 2), device=d),
    "quantized": lambda d: torch._empty_affine_quantized(
        [3], scale=0.5, zero_point=0, dtype=torch.quint8, device=d
    ).fill_(1.0),
}


@pytest.mark.parametrize("name", SPARSE_AND_QUANTIZED)
def test_L8_other_layouts_stay_torchs_own(name: str) -> None:
    got, expected = SPARSE_AND_QUANTIZED[name](LAZY), SPARSE_AND_QUANTIZED[name]("cpu")
    assert got.layout is expected.layout and got.dtype is expected.dtype
    assert (got.dequantize() if got.is_quantized else got.to_dense()).tolist() == (
        (expected.dequantize() if expected.is_quantized else expected.to_dense()).tolist()
    )


def test_L2_the_old_constructor(same_as_eager: Same) -> None:
    """``x.new(...)`` takes sizes, data and tensors by position and by name."""

    def program(d: str) -> object:
        x = torch.ones(2, device=d, dtype=torch.int32)
        sizes = x.new(size=(3, 4)), x.new(3, 4, device=d), x.new(torch.Size([2])), x.new()
        return [s.shape for s in sizes], x.new([1.0, 2.0]), x.new(data=[3]), x.new(other=x + 1), x.new(x)

    same_as_eager(program)
    with pytest.raises(RuntimeError, match="device type: remote_accelerator but device type: cpu was passed"):
        made().new(2, device="cpu")
    with pytest.raises(TypeError, match=r"expected TensorOptions\(dtype=float.*got TensorOptions\(dtype=int"):
        made().new(made().int())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_L9_sizes_of_nested_tensors_are_compared_in_torchs_words() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for a, b in ((made(), nested), (nested, made())):
        with pytest.raises(RuntimeError, match="Expected both self and other to be nested tensors"):
            a.is_same_size(b)
    assert made().is_same_size(made()) and not made().is_same_size(torch.ones(2))


def test_L7_what_was_recorded_has_read_a_storage_that_shrinks(same_as_eager: Same) -> None:
    """FSDP2 frees the memory of gathered weights by their storage, and takes it again."""

    def program(d: str) -> object:
        weight = torch.arange(8.0).to(d)
        shown = torch.as_strided(weight, (2, 4), (4, 1))
        total, moved = shown.sum(), shown[1]
        weight.untyped_storage().resize_(0)
        seen = total.item()
        weight.untyped_storage().resize_(32)
        weight.copy_(torch.ones(8, device=d))
        return seen, shown * 2, moved

    same_as_eager(program)
