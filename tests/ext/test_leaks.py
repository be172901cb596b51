"""Nothing is kept that nobody can read: no object, no reference, no entry of a table (SPEC S5)."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch import MaterializationError
from mindtorch._ext import context
from mindtorch.engine.execute.values import tape

LAZY = "remote_accelerator:0"


def settled() -> dict[str, int]:
    gc.collect()
    mindtorch.flush("test")
    gc.collect()
    return tape.counters()


def pure(x: torch.Tensor) -> None:
    ((x + 1) * 2 - x).relu()
    torch.cat([x, x, x, x, x])
    torch.add(x, x, alpha=3)


def several(x: torch.Tensor) -> None:
    x.view(2, 2).max(dim=1)
    x.split(1)
    torch.unbind(x)


def writes(x: torch.Tensor) -> None:
    y = x.clone()
    y[1:].mul_(2)
    y.add_(x)
    torch.add(x, 1, out=y)
    y.data = x + 1
    y.tolist()


def draws(x: torch.Tensor) -> None:
    torch.rand(3, device=LAZY)
    torch.rand_like(x).tolist()
    x.clone().normal_()


def eagerly(x: torch.Tensor) -> None:
    torch.nonzero(x)
    torch.unique(x)
    x.clone().resize_(2)


def creations(x: torch.Tensor) -> None:
    torch.zeros(2, 3, device=LAZY)
    torch.arange(5, device=LAZY).tolist()
    torch.ones(3).to(LAZY).cpu()
    x.new_full((1,), 7.5).item()


def gradients(x: torch.Tensor) -> None:
    w = torch.ones(4, device=LAZY, requires_grad=True)
    (x * w).sum().backward()
    w.grad.tolist()  # type: ignore[union-attr]


def failures(x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError):
        x + torch.ones(3, device=LAZY)
    bad = x.gather(0, x.long() + 100)
    for _ in range(2):
        with pytest.raises(MaterializationError):
            (bad + 1).tolist()


def described(x: torch.Tensor) -> None:
    y = torch.add(x, x, alpha=2)
    y.inputs, y.kwargs, y.operation, y.metadata.tensor_shape  # type: ignore[attr-defined]
    mindtorch.ComputationGraph.from_tensors(y + 1).get_execution_order()
    mindtorch.stats()


models: list[nn.Module] = []


@pytest.fixture(autouse=True)
def a_model() -> Iterator[None]:
    models.append(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4)).to(LAZY))
    yield
    models.clear()  # a model that lives on would be in the profiles of later tests


def modules(x: torch.Tensor) -> None:
    (model,) = models
    model(x).sum().backward()
    with torch.no_grad():
        model(x).tolist()


PROGRAMS: list[Callable[[torch.Tensor], None]] = [
    pure,
    several,
    writes,
    draws,
    eagerly,
    creations,
    gradients,
    failures,
    described,
    modules,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_S5_a_program_that_repeats_itself_keeps_nothing(program: Callable[[torch.Tensor], None]) -> None:
    x = torch.arange(4.0, device=LAZY)
    x.tolist()
    shared = (torch.float32, torch.Size, torch.add, type(x), models[0], tape, context)
    times = 100
    grown, gained = [], []
    for _ in range(12):  # what is leaked is leaked every time; tables, caches and freelists reach their size
        blocks, references = sys.getallocatedblocks(), [sys.getrefcount(o) for o in shared]
        for _ in range(times):
            program(x)
        after = settled()
        grown.append(sys.getallocatedblocks() - blocks)
        gained.append(max(abs(sys.getrefcount(o) - n) for o, n in zip(shared, references, strict=True)))
        if len(grown) == 2:
            before = after
        elif len(grown) > 2 and grown[-1] < times // 2 and gained[-1] < times // 2:
            break
    assert min(grown) < times // 2, f"blocks of memory more after {times} repetitions each: {grown}"
    assert min(gained) < times // 2, f"references gained by {times} repetitions each: {gained}"
    assert (after["values"], after["pending"]) == (before["values"], before["pending"])
    assert after["bytes_held"] <= before["bytes_held"] * 1.05 + 4000  # a block of slots or of records more or less


def test_S5_a_million_ops_of_changing_shapes_leave_nothing_behind() -> None:
    """Values, records, tables and source lines, with a small limit on the tables and a large one on nothing else."""
    limit = tape.interner.limit
    x = torch.ones(4, device=LAZY)
    before = settled()
    tape.interner.set_limit(1 << 20)
    most = 0
    try:
        for i in range(1, 2_001):
            y = x.expand(i, 4)
            for _ in range(498):
                y = y * 2.0
            (y + float(i))[0].tolist() if i % 100 == 0 else y + float(i)
            if i % 50 == 0:
                most = max(most, tape.counters()["bytes_held"])
        del y
        after = settled()
        assert after["recorded"] - before["recorded"] >= 1_000_000
        assert after["values"] == before["values"] and after["pending"] == before["pending"]
        assert most < max(before["bytes_held"], 1 << 20) * 2 + (1 << 20)
    finally:
        tape.interner.set_limit(limit)
