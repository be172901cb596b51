"""SPEC L7: numbers in calls are what they are in eager, at the edges of how they are kept, and whatever came before."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

LAZY = "remote_accelerator:0"
#: Around what a byte, two, four and eight bytes hold.
EDGES = [sign * (1 << bits) + by for bits in (7, 8, 15, 16, 31, 32, 62) for sign in (-1, 1) for by in (-1, 0, 1)]
EDGES += [-(1 << 63), -(1 << 63) + 1, (1 << 63) - 1, 0, 1, -1]


@pytest.mark.parametrize("number", EDGES)
def test_L7_whole_numbers_keep_their_value(number: int) -> None:
    ones = torch.ones(2, dtype=torch.int64)
    for call in (lambda x, n: x * n, lambda x, n: x + n, torch.full_like):
        assert torch.equal(call(ones.to(LAZY), number).cpu(), call(ones, number)), number


@pytest.mark.parametrize("number", EDGES)
def test_L7_whole_numbers_in_lists_and_by_name_keep_their_value(number: int) -> None:
    x = torch.arange(4.0)
    for call in (
        lambda t, n: torch.clamp(t, min=float(n)),
        lambda t, n: torch.add(t, t, alpha=n),
        lambda t, n: t.roll([n % 5], [0]),
        lambda t, n: torch.where(t > 1, n, 0),
    ):
        assert torch.equal(call(x.to(LAZY), number).cpu(), call(x, number)), number


@pytest.mark.parametrize("order", [1, -1])
def test_L7_numbers_that_are_equal_in_python_are_told_apart(order: int) -> None:
    numbers = [1, 1.0, True, 0, 0.0, -0.0, False, 2, 2.0][::order]
    x = torch.arange(3)
    for number in numbers:
        for call in (lambda t, n: t * n, lambda t, n: t + n, lambda t, n: torch.full_like(t.float(), n)):
            found, expected = call(x.to(LAZY), number), call(x, number)
            assert found.dtype is expected.dtype
            assert found.cpu().numpy().tobytes() == expected.numpy().tobytes(), number


WRITES: list[Callable[[torch.Tensor], object]] = [
    lambda x: x.apply_(lambda value: value * 2) if x.device.type == "cpu" else x.copy_(x.cpu().apply_(lambda v: v * 2)),
    lambda x: x.untyped_storage().fill_(0),
    lambda x: torch.utils.dlpack.from_dlpack(x).zero_() if x.device.type == "cpu" else x.zero_(),
]


@pytest.mark.parametrize("write", WRITES)
def test_L7_what_reads_a_value_that_is_there_reads_it_before_it_is_written(write: Callable) -> None:
    """The reader is recorded, and what it reads has no record that would lead to it."""

    def program(device: str) -> list[torch.Tensor]:
        x = torch.ones(4).to(device)
        x.tolist()
        reader = x + 1
        view = x[1:] * 3
        write(x)
        return [reader, view, x]

    for found, expected in zip(program(LAZY), program("cpu")):
        assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("names", [1, 2, 3])
def test_L7_values_with_several_names_stay_shared_in_copies(names: int) -> None:
    def program(device: str) -> list[list[float]]:
        first = torch.ones(4).to(device) * 2
        held = [first, *(first.detach() for _ in range(names - 1))]
        made = copy.deepcopy(held)
        made[-1].mul_(5)
        return [t.tolist() for t in (*held, *made)]

    assert program(LAZY) == program("cpu")
