"""L7, L9: calls that torch's C++ would answer from a wrapper's memory: as eager answers them, and in its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from mindtorch.engine.record import eager

LAZY = "remote_accelerator:0"
I64 = torch.int64


def seen(call: Callable[[str], Any], device: str) -> Any:
    """What a program sees of it: values, or which error."""
    try:
        found = call(device)
    except Exception as error:
        return type(error).__name__, str(error)
    return [looks(t) for t in found] if isinstance(found, (tuple, list)) else looks(found)


def looks(t: Any) -> Any:
    if not isinstance(t, torch.Tensor):
        return t
    return t.dtype, t.shape, t.stride(), t.requires_grad, t.detach().tolist()


def ints(*values: int, dtype: torch.dtype = I64) -> Callable[[str], torch.Tensor]:
    return lambda device: torch.tensor(values, dtype=dtype, device="cpu").to(device)


def floats(*size: int) -> Callable[[str], torch.Tensor]:
    return lambda device: torch.arange(float(torch.Size(size).numel())).view(size).to(device)


def one_hot(given: Callable[[str], torch.Tensor], *args: int, **kwargs: int) -> Callable[[str], torch.Tensor]:
    return lambda device: F.one_hot(given(device), *args, **kwargs)


EMPTY, SOME, NEGATIVE = ints(), ints(0, 2, 1), ints(1, -1)
CALLS: dict[str, Callable[[str], Any]] = {
    **{f"one_hot {n}": one_hot(SOME, n) for n in (-1, 0, -2, -3, 3, 4)},
    **{f"one_hot of nothing {n}": one_hot(EMPTY, n) for n in (-1, 0, -2, 1, 3)},
    **{f"one_hot of negative ones {n}": one_hot(NEGATIVE, n) for n in (-1, 0, -2)},
    "one_hot": one_hot(SOME),
    "one_hot of a zero": one_hot(ints(0)),
    "one_hot by keyword": one_hot(SOME, num_classes=5),
    "one_hot in two dimensions": lambda d: F.one_hot(SOME(d).view(3, 1)),
    "one_hot of a number": lambda d: F.one_hot(SOME(d)[1]),
    "one_hot of int32": one_hot(ints(0, 1, dtype=torch.int32)),
    "meshgrid": lambda d: torch.meshgrid(SOME(d), NEGATIVE(d), indexing="ij"),
    "meshgrid of a list": lambda d: torch.meshgrid([SOME(d), NEGATIVE(d)], indexing="xy"),
    "meshgrid of numbers": lambda d: torch.meshgrid(SOME(d)[0], NEGATIVE(d), indexing="ij"),
    "meshgrid of two dimensions": lambda d: torch.meshgrid(SOME(d), floats(2, 2)(d), indexing="ij"),
    "is_set_to itself": lambda d: (x := floats(4)(d)).is_set_to(x),
    "is_set_to a view": lambda d: (x := floats(4)(d)).is_set_to(x.view(4)),
    "is_set_to a part": lambda d: (x := floats(4)(d)).is_set_to(x[1:]),
    "is_set_to others": lambda d: floats(4)(d).is_set_to(floats(4)(d)),
    "is_same_size": lambda d: [floats(2, 3)(d).is_same_size(floats(*size)(d)) for size in ((2, 3), (3, 2), (6,))],
    "tensor_split": lambda d: torch.tensor_split(floats(6)(d), ints(1, 3)(d)),
    "tensor_split by keyword": lambda d: torch.tensor_split(
        floats(2, 6)(d), tensor_indices_or_sections=ints(2, 5)(d), dim=1
    ),
    "tensor_split by position": lambda d: torch.tensor_split(floats(2, 6)(d), ints(4)(d)[0], 1),
    "tensor_split at numbers": lambda d: torch.tensor_split(floats(6)(d), (1, 3)),
    "tensor_split into": lambda d: floats(7)(d).tensor_split(3),
    "set_ a storage": lambda d: torch.empty(0).to(d).set_(floats(5)(d).untyped_storage()),
    "set_ part of a storage": lambda d: torch.empty(0).to(d).set_(floats(6)(d).untyped_storage(), 1, (2, 2), (1, 3)),
    "set_ part of a storage, dense": lambda d: torch.empty(0).to(d).set_(floats(6)(d).untyped_storage(), 1, (2, 2)),
    "set_ a storage of another dtype": lambda d: (
        torch.empty(0, dtype=torch.int32).to(d).set_(floats(3)(d).untyped_storage())
    ),
    "set_ a tensor": lambda d: torch.empty(0).to(d).set_(floats(2, 3)(d)),
    "set_ part of a tensor": lambda d: torch.empty(0).to(d).set_(floats(6)(d), 2, (2, 2), (1, 2)),
    "set_ part of a tensor, dense": lambda d: torch.empty(0).to(d).set_(floats(6)(d), 2, (2, 2)),
    "set_ nothing": lambda d: floats(3)(d).set_(),
    "zeros_like with a gradient": lambda d: torch.zeros_like(floats(3)(d), requires_grad=True),
    "full_like without": lambda d: torch.full_like(floats(3)(d), 2.5, requires_grad=False),
    "zeros_like elsewhere": lambda d: torch.zeros_like(floats(3, 2)(d).t(), device="cpu"),
    "ones_like elsewhere with a gradient": lambda d: torch.ones_like(floats(3)(d), device="cpu", requires_grad=True),
    "full_like elsewhere": lambda d: torch.full_like(floats(2)(d), 7, device="cpu", dtype=I64),
    "new_full": lambda d: floats(2)(d).new_full((2, 1), 3, dtype=I64),
    "new_zeros": lambda d: floats(2, 3)(d).t().new_zeros(3),
    "empty_like with strides": lambda d: torch.empty_like(floats(2, 3)(d).t()).fill_(1),
    "apply_": lambda d: torch.ones(3).to(d).neg().apply_(lambda n: n + 0.5) if d == LAZY else -torch.ones(3) + 0.5,
    "apply_ with a gradient": lambda d: torch.ones(3).to(d).requires_grad_().apply_(abs),
    "map_": lambda d: floats(3)(d).map_(floats(3)(d), lambda a, b: a * b),
    "map_ with a gradient": lambda d: floats(3)(d).map_(floats(3)(d).requires_grad_(), max),
    "an item": lambda d: _with_item(floats(4)(d), slice(1, 3), 5),
    "an item of a leaf": lambda d: _with_item(floats(4)(d).requires_grad_(), 0, 5),
}


def _with_item(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    x[index] = value
    return x


@pytest.mark.parametrize("name", CALLS)
def test_L7_what_cplusplus_would_read_is_answered_as_eager_does(name: str) -> None:
    expected = seen(CALLS[name], "cpu")
    for _ in range(2):
        assert seen(CALLS[name], LAZY) == expected


@pytest.mark.parametrize("values", [(), (3,), (2, 2, 2), (0, 1, 2, 3, 4), (-5, 0, 5, 9), (0, 255)])
@pytest.mark.parametrize("how", [(), (4,), (4, 0, 3), (3, 1, 2), (1, 2, 2), (5, -5, 9), (2, 0, 0), (7, 2, 9)])
def test_L7_whole_numbers_are_counted_as_the_same_floats(values: tuple[int, ...], how: tuple[int, ...]) -> None:
    expected = torch.histc(torch.tensor(values, dtype=torch.float64), *how)
    found = torch.histc(ints(*values)(LAZY), *how)
    assert found.dtype is I64 and found.tolist() == expected.tolist()


def test_L9_bins_that_cannot_be_are_refused() -> None:
    for how, why in (((0,), "bins must be > 0"), ((3, 2, 1), "max must be larger than min")):
        with pytest.raises(RuntimeError, match=why):
            torch.histc(SOME(LAZY), *how)
    assert torch.histc(input=SOME(LAZY), bins=1, min=2, max=2).tolist() == [3]


def test_L9_data_that_is_no_tensor_is_not_assigned() -> None:
    x, plain = torch.ones(2, device=LAZY), torch.ones(2)
    for wrong in (3, None):
        said = []
        for target in (plain, x):
            with pytest.raises((TypeError, RuntimeError)) as refused:
                target.data = wrong  # type: ignore[assignment]
            said.append(str(refused.value))
        assert said[0] == said[1]
    x.data = torch.zeros(3, device=LAZY)
    assert x.tolist() == [0.0] * 3


def test_L4_a_detached_tensor_is_known_to_need_no_gradient() -> None:
    x = torch.ones(2, device=LAZY, requires_grad=True)
    assert x.detach()._handle.no_grad is True  # type: ignore[attr-defined]
    with torch.no_grad():
        assert x.detach()._handle.no_grad is False  # type: ignore[attr-defined]


def test_L7_a_tensor_takes_the_type_and_place_of_another() -> None:
    x, other = torch.ones(2, device=LAZY), torch.ones(1, dtype=torch.float64)
    assert x.type_as(other).device.type == "cpu" and x.type_as(other).dtype is torch.float64
    moved = other.type_as(x)
    assert (moved.device.type, moved.dtype) == ("remote_accelerator", torch.float32)
    assert x.type_as(other.to(LAZY)).device.type == "remote_accelerator"


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like", "rand_like", "new_zeros", "new_empty"])
@pytest.mark.parametrize("device", [None, LAZY, "cpu"])
def test_L8_what_is_made_like_another_is_recorded_wherever_that_is_said(name: str, device: str | None) -> None:
    """By the operator's name; below Python, "cpu" is where the tensors are."""
    x = torch.ones(2, 3, device=LAZY)
    before = dict(eager.fallback_counts)
    how: dict[str, Any] = {} if device is None else {"device": torch.device(device)}
    with torch._C.DisableTorchFunctionSubclass():
        made = getattr(torch.ops.aten, name).default(x, *([(4,)] if name.startswith("new_") else []), **how)
    assert made.shape == ((4,) if name.startswith("new_") else (2, 3))
    assert made._handle.pending and eager.fallback_counts == before
