"""L7, C4: Python's types are dtypes, wherever torch takes them so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

#: From a device. What is not of floating point is known to an estimate, too.
CALLS: dict[str, Callable[[Any], Any]] = {
    "ones": lambda d: torch.ones(3, dtype=int, device=d) + 1,
    "full": lambda d: torch.full((2,), 3, dtype=bool, device=d),
    "eye": lambda d: torch.eye(2, dtype=bool, device=d),
    "arange": lambda d: torch.arange(3, dtype=int, device=d) * 2,
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2, device=d), dtype=complex),
    "new_ones": lambda d: torch.ones(2, device=d).new_ones(3, dtype=int),
    "tensor": lambda d: torch.tensor([1.5, 0.0], dtype=bool, device=d),
    "as_tensor": lambda d: torch.as_tensor([1, 0], dtype=float, device=d),
    "randint": lambda d: torch.randint(1, 2, (3,), dtype=float, device=d),
    "to": lambda d: torch.arange(3, device=d).to(bool),
    "to by name": lambda d: torch.arange(3, device=d).to(dtype=float),
    "to a device": lambda d: torch.tensor([1.5, 2.5]).to(d, int),
    "to a device by name": lambda d: torch.tensor([1.5, 2.5]).to(device=d, dtype=int),
    "from a device": lambda d: torch.arange(3, device=d).to("cpu", bool),
    "of a device": lambda d: torch.arange(3, device=d).to(torch.device(d), complex),
    "sparse": lambda d: torch.eye(2, device=d).to_sparse().to(float).to_dense(),
    "sparse to the cpu": lambda d: torch.eye(2, device=d).to_sparse().to("cpu", float).to_dense(),
    "module": lambda d: torch.nn.BatchNorm1d(2).to(d, float).weight,
    "sum": lambda d: torch.arange(3, device=d).sum(dtype=float),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_L7_pythons_types_are_dtypes(call: Callable[[Any], Any], same_as_eager: Callable[..., None]) -> None:
    """``x.to("cpu", int)`` of a recorded tensor stayed floating-point, and nothing was said."""
    same_as_eager(call, lazily=False)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_C4_pythons_types_are_dtypes_in_an_estimate(call: Callable[[Any], Any]) -> None:
    """Creation took its values for unknown, and ``.to(bool)`` was refused as no device."""
    expected = call("cpu")
    with Estimator(target=targets.find("h100")):
        made = call("cuda")
        assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
        if not (expected.is_floating_point() or expected.is_complex()):
            assert made.tolist() == expected.tolist()


@pytest.mark.parametrize("call", [
    lambda t: t.to(str), lambda t: t.to(object()), lambda t: t.to(list), lambda t: t.to(device=3.0),
])  # fmt: skip
def test_L7_what_is_no_device_is_refused_in_torchs_words(call: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(TypeError) as plain:
        call(torch.ones(2))
    with pytest.raises(TypeError) as found:
        call(torch.ones(2, device="remote_accelerator:0"))
    assert str(found.value) == str(plain.value)
