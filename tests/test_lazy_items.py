"""Parts of recorded tensors that are assigned to, and tensors made of numbers: what most calls name (SPEC L3, L9)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:Truncating the start/stop/step", "ignore:.*deprecated")
LAZY = "remote_accelerator:0"
DTYPES = (torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64)
NUMBERS = (
    0,
    1,
    -1,
    2,
    127,
    128,
    255,
    256,
    65504,
    65505,
    2**31,
    2**63,
    True,
    0.5,
    -0.0,
    1e39,
    float("inf"),
    float("nan"),
)
INDICES: dict[str, Any] = {
    "int": 1,
    "last": -1,
    "outside": 4,
    "ints": (1, 2),
    "too many": (1, 2, 0),
    "slice": slice(1, 3),
    "steps": slice(None, None, 2),
    "backwards": slice(None, None, -1),
    "empty": slice(2, 1),
    "none": None,
    "ellipsis": ...,
    "of all": (),
    "mixed": (slice(None), None, 1),
    "column": (..., 2),
    "bool": True,
    "list": [0, 2],
    "float": 1.0,
    "large": 2**63 - 1,
    "too large": 2**63,
    "largest slice": slice(-(2**63), 2**63 - 1),
    "too large a slice": slice(None, 2**64),
}


def outcome(device: str, write: Any, dtype: torch.dtype) -> Any:
    """What ``write`` leaves of a tensor, and how often it says that it wrote; or its error."""
    x = torch.arange(12).reshape(4, 3).to(dtype).to(device)
    try:
        write(x, device)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        return type(error), str(error).split("\n")[0].replace(device, "cpu"), x._version, x.cpu().tolist()
    return x._version, x.dtype, x.requires_grad, repr(torch.view_as_real(x).tolist() if x.is_complex() else x.cpu())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_L3_a_number_is_put_where_eager_puts_it(dtype: torch.dtype) -> None:
    for (name, index), number in itertools.product(INDICES.items(), NUMBERS):

        def write(x: torch.Tensor, _device: str, index: Any = index, number: Any = number) -> None:
            x[index] = number

        for _ in range(2):  # as a new call, and as a known one
            assert outcome(LAZY, write, dtype) == outcome("cpu", write, dtype), (name, number)


VALUES = ((), (1,), (3,), (1, 3), (2, 3), (1, 1, 3), (2,), (0, 3), (4, 3), (1, 2, 3))


@pytest.mark.parametrize("other", (torch.float32, torch.int64))
@pytest.mark.parametrize("kind", ("there", "on the CPU", "of its memory", "expanded"))
def test_L3_a_tensor_is_put_where_eager_puts_it(kind: str, other: torch.dtype) -> None:
    for (name, index), size in itertools.product(INDICES.items(), VALUES):

        def write(x: torch.Tensor, device: str, index: Any = index, size: tuple[int, ...] = size) -> None:
            value = torch.linspace(-5, 5, 24)[: torch.Size(size).numel()].reshape(size).to(other)
            if kind == "of its memory":
                value = x.flatten()[: value.numel()].reshape(size)
            elif kind == "expanded" and size and size[-1]:
                value = value.to(device)[..., :1].expand(size)
            elif kind != "on the CPU" or isinstance(index, list):  # which only tensors of the device are put at
                value = value.to(device)
            x[index] = value

        for _ in range(2):
            assert outcome(LAZY, write, torch.float32) == outcome("cpu", write, torch.float32), (name, size)


EXPANDED: dict[str, Any] = {
    "all": lambda x: x.expand(2, 4, 3),
    "rows": lambda x: x[:1].expand(4, 3),
    "one": lambda x: x[0, 0].expand(2),
    "windows": lambda x: x.unfold(0, 2, 1),
}


@pytest.mark.parametrize("value", (3, -1.0, "a tensor"))
@pytest.mark.parametrize("form", EXPANDED)
def test_L3_elements_that_share_memory_are_refused_as_eager_does(form: str, value: Any) -> None:
    for index in (..., None, slice(None), 0, (..., 0), (), slice(0, 1)):

        def write(x: torch.Tensor, device: str, index: Any = index) -> None:
            part = EXPANDED[form](x)
            part[index] = torch.full_like(part[index], 5) if value == "a tensor" else value

        for _ in range(2):
            assert outcome(LAZY, write, torch.float32) == outcome("cpu", write, torch.float32), index


def test_L3_conjugates_are_assigned_to_as_eager_does() -> None:
    def write(x: torch.Tensor, device: str) -> None:
        x.conj()[1] = 2.0
        x.conj()[2:] = x[:2] * 1j
        x[0] = (x[1] * 1j).conj()
        x.imag[1, 1] = -0.0

    assert outcome(LAZY, write, torch.complex64) == outcome("cpu", write, torch.complex64)


def test_L3_assignment_with_gradients_is_autograds() -> None:
    def program(device: str) -> list[Any]:
        leaf, x = torch.ones(4, 3, device=device, requires_grad=True), torch.zeros(4, 3, device=device)
        value = torch.full((3,), 2.0, device=device, requires_grad=True)
        x[1] = value
        y = leaf * 2
        y[0] = 5.0
        y[2] = value * 3
        with torch.no_grad():
            leaf[3] = 7.0
        (x.sum() + (y * y).sum()).backward()
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            leaf[0] = 1.0
        names = [type(t.grad_fn).__name__ for t in (x, y)]
        return [names, *(t.tolist() for t in (leaf, leaf.grad, value.grad, x, y)), leaf._version, x._version]

    assert program(LAZY) == program("cpu")


@pytest.mark.parametrize("dtype", (None, torch.float16, torch.uint8, torch.bool, torch.int32), ids=str)
def test_L3_tensors_of_numbers_are_eagers(dtype: torch.dtype | None) -> None:
    lists: list[Any] = [[], [1, 2], (1, 2.5), [True, False], [True, 2], [1, None], [[1], [2]], torch.Size([2])]

    def made(data: Any, device: Any) -> Any:
        try:
            t = torch.tensor(data, device=device, dtype=dtype)
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            return type(error), str(error)
        return t.dtype, t.shape, repr(t.tolist()), t.requires_grad, t.is_leaf, t._version

    for data in (*NUMBERS, *lists):
        for device in (LAZY, torch.device(LAZY), torch.device(LAZY.split(":")[0])):
            assert made(data, device) == made(data, "cpu"), data
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.tensor(1.5, device=LAZY).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_L3_tensors_of_numbers_do_not_share_the_programs_memory() -> None:
    numbers = [1, 2]
    x = torch.tensor(numbers, device=LAZY)
    numbers[0] = 5
    y = x + 0
    x[0] = 7
    assert (x.tolist(), y.tolist()) == ([7, 2], [1, 2])
