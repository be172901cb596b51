"""L9, R1: the storage of a tensor that lives on a worker is a copy; no write to it is lost without a word."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.engine.execute import lent_storages
from mindtorch.engine.remote.client import RemoteExecutor
from mindtorch.engine.remote.placing import PlacingExecutor

from ..executors import using

LAZY = "remote_accelerator:0"
WHY = r"\[untyped_storage\] expected no write .*: the storage is a copy.* Write to the tensor instead"
pytestmark = pytest.mark.usefixtures("nothing_pending")


def made(n: int = 6) -> torch.Tensor:
    x = torch.arange(float(n)).to(LAZY) + 1
    assert x[0].item() == 1
    return x


@pytest.mark.parametrize("n", [6, 10_000])
@pytest.mark.parametrize("method", ["fill_", "copy_"])
def test_L9_a_method_that_writes_to_a_lent_storage_raises(elsewhere: RemoteExecutor, method: str, n: int) -> None:
    x = made(n)
    storage = x.untyped_storage()
    with pytest.raises(mindtorch.LazyTensorError, match=WHY):
        getattr(storage, method)(0 if method == "fill_" else torch.zeros(n).untyped_storage())
    assert x.sum().item() == n * (n + 1) / 2 and storage.nbytes() == 4 * n


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "an item": lambda x: x.untyped_storage().__setitem__(2, 9),
    "a tensor on it": lambda x: torch.empty(0).set_(x.untyped_storage()).fill_(7),
    "a typed one": lambda x: x.storage().__setitem__(0, 9.0),
    "memory": lambda x: ctypes.memset(torch.UntypedStorage.data_ptr(x.untyped_storage()), 1, 4),
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("n", [6, 300_000])
@pytest.mark.parametrize("how", WRITES)
def test_L9_what_was_written_to_a_lent_storage_is_told_at_the_next_read(
    elsewhere: RemoteExecutor, how: str, n: int
) -> None:
    """Also if nothing holds the storage any more; once; and the tensor is as it was."""
    x, y = made(n), made()
    WRITES[how](x)
    with pytest.raises(mindtorch.LazyTensorError, match=WHY):
        (y * 2).tolist()
    assert (y * 2).tolist() == [2, 4, 6, 8, 10, 12]
    assert x.cpu().equal(torch.arange(float(n)) + 1) and x.sum().cpu().equal((torch.arange(float(n)) + 1).sum())


def test_L9_a_storage_that_is_kept_is_looked_at_again(elsewhere: RemoteExecutor) -> None:
    x, y = made(), made()
    storage = x.untyped_storage()
    for _ in range(3):
        assert (y * 2).sum().item() == 42
    storage[1] = 3
    del storage
    with pytest.raises(mindtorch.LazyTensorError, match=WHY):
        y.tolist()
    x = made(10_000)
    on_it = torch.empty(0).set_(x.untyped_storage())  # which no object of Python's has
    for _ in range(3):
        assert (y * 2).sum().item() == 42
    on_it[7] = 5
    with pytest.raises(mindtorch.LazyTensorError, match=WHY):
        y.tolist()
    large = made(1_000_000)
    storage = large.untyped_storage()
    for _ in range(3):
        assert (y * 2).sum().item() == 42
    storage[1] = 3
    with pytest.raises(mindtorch.LazyTensorError, match=WHY):
        for _ in range(64):
            y.tolist()
    assert large[0].item() == 1


def test_L9_what_nobody_can_miss_is_not_told(elsewhere: RemoteExecutor) -> None:
    x, y = made(10_000), made()
    x.untyped_storage().clone().fill_(0)
    x.untyped_storage().resize_(0)  # frees memory, as FSDP does: there is none here
    assert x.cpu()[-1] == 10_000
    held = x.untyped_storage()
    held.resize_(8)
    assert x.cpu()[-1] == 10_000 and (x + 1)[-1].item() == 10_001, "the session goes on"
    gone = made(10_000)
    storage = gone.untyped_storage()
    del gone
    storage[0] = 7  # the tensor is no more
    assert y.tolist() == [1, 2, 3, 4, 5, 6]
    del storage, held
    y.sum().item(), y.tolist()
    assert not lent_storages._lent


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_L7_a_typed_storage_is_that_of_the_untyped_one(elsewhere: RemoteExecutor) -> None:
    x = made()
    typed, untyped = x.storage(), x.untyped_storage()  # type: ignore[attr-defined]
    assert typed._untyped_storage is untyped and untyped.nbytes() == 24
    assert typed.tolist() == [1, 2, 3, 4, 5, 6] and typed.dtype is torch.float32


def test_L9_memory_that_a_sparse_tensor_shares_is_not_what_is_lent(elsewhere: RemoteExecutor) -> None:
    """The sparse tensor is in this process, and writes to it arrive."""
    sparse = torch.eye(3).to(LAZY).to_sparse().coalesce()
    found = sparse.values()
    storage = found.untyped_storage()
    sparse.neg_()
    assert sparse.to_dense().sum().item() == -3 and storage.nbytes() == 12
    storage[0] = 1
    with pytest.raises(mindtorch.LazyTensorError, match=WHY):
        found.tolist()
    assert found.tolist() == [-1, -1, -1]


@pytest.mark.parametrize("limit", [1 << 30, 50_000])
def test_L9_a_storage_that_waits_or_moves_is_watched_as_well(limit: int) -> None:
    with using(PlacingExecutor([mindtorch.LoopbackExecutor() for _ in range(2)], limit)):
        x = torch.arange(6.0).to(LAZY)
        storage = x.untyped_storage()
        y = torch.nn.Linear(6, 2).to(LAZY)(x)
        assert y.shape == (2,) and y.sum().cpu().isfinite()
        storage[0] = 1
        with pytest.raises(mindtorch.LazyTensorError, match=WHY):
            y.tolist()
        assert x.tolist() == [0, 1, 2, 3, 4, 5]
