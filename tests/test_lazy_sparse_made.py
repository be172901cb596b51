"""What is made in the likeness of a sparse tensor: layout, dtype and device are torch's (SPEC L8, C4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating

LAZY = "remote_accelerator:0"


def _sparse(layout: str, device: str) -> torch.Tensor:
    made = torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2)).coalesce()
    return (made if layout == "coo" else made.to_sparse_csr()).to(device)


MAKERS: dict[str, Callable[..., torch.Tensor]] = {
    "new_empty": lambda s, **how: s.new_empty((2, 3), **how),
    "new_zeros": lambda s, **how: s.new_zeros((2, 3), **how),
    "new_zeros, apart": lambda s, **how: s.new_zeros(2, 3, **how),
    "new_full": lambda s, **how: s.new_full((2, 3), 4.0, **{"layout": torch.strided, **how}),
    "new_ones": lambda s, **how: s.new_ones((2, 3), **{"layout": torch.strided, **how}),
    "empty_like": torch.empty_like,
    "zeros_like": torch.zeros_like,
}
HOW: dict[str, Callable[[str], dict[str, Any]]] = {
    "": lambda device: {},
    "device": lambda device: {"device": device},
    "torch.device": lambda device: {"device": torch.device(device)},
    "dtype, device": lambda device: {"dtype": torch.int64, "device": device},
    "on the CPU": lambda device: {"device": "cpu"},
    "dense": lambda device: {"layout": torch.strided},
    "dense, device": lambda device: {"layout": torch.strided, "device": device},
}


def _facts(maker: str, layout: str, how: str, device: str) -> tuple[Any, ...] | str:
    try:
        t = MAKERS[maker](_sparse(layout, device), **HOW[how](device))
    except RuntimeError as error:
        return str(error)
    there = "cpu" if how == "on the CPU" else device
    return t.layout, t.dtype, tuple(t.shape), t.requires_grad, t.device == torch.device(there)


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("maker", MAKERS)
def test_L8_what_is_made_like_a_sparse_tensor(maker: str, how: str, layout: str) -> None:
    torch.ones(1, device=LAZY)  # torch knows the device's name from the first use on
    want = _facts(maker, layout, how, "cpu")
    assert _facts(maker, layout, how, LAZY) == want
    with estimating(Accelerator("A", 1 << 36)):
        assert _facts(maker, layout, how, "cuda:0") == want


def test_L8_dense_tensors_make_dense_ones_and_moved_ones_are_sparse_no_more() -> None:
    dense = torch.ones(2, device=LAZY)
    assert dense.new_zeros((2,), device=LAZY).layout is torch.strided
    assert torch.ones(2).new_zeros((2,), device=LAZY).layout is torch.strided
    assert _sparse("coo", "cpu").new_zeros((2, 2), device=LAZY).layout is torch.sparse_coo
    on_cpu = _sparse("coo", LAZY).new_zeros((2, 2), device="cpu")
    assert type(on_cpu) is torch.Tensor and (on_cpu + _sparse("coo", "cpu")).to_dense().tolist() == [[0, 1], [2, 0]]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("indices", [[[0, 0], [1, 1]], [[0, 1], [1, 1]]], ids=["twice", "once"])
def test_L9_indices_that_are_said_to_be_coalesced_are_looked_at_where_checks_are_asked_for(
    indices: list[list[int]], check: bool
) -> None:
    def program(d: str) -> object:
        i, v = torch.tensor(indices, device=d), torch.tensor([1.0, 2.0], device=d)
        try:
            made = torch.sparse_coo_tensor(i, v, (2, 2), check_invariants=check, is_coalesced=True)
        except RuntimeError as error:
            return str(error)
        return str(made.is_coalesced())

    assert program(LAZY) == program("cpu")
