"""The shared timer. Import it before anything else: it sets up torch."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

from collections.abc import Mapping
from dataclasses import dataclass
from timeit import Timer
from types import SimpleNamespace
from typing import Any

import torch

import mindtorch
from mindtorch._ext.hooks import original

UNHOOKED = SimpleNamespace(zeros=original(torch.zeros), empty=original(torch.empty), randn=original(torch.randn))

torch.set_num_threads(1)

LAZY = "remote_accelerator:0"
Names = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """One measurement and torch's own figure for it, both in seconds (or both in bytes)."""

    value: float
    reference: float

    @property
    def ratio(self) -> float:
        return self.value / self.reference

    @property
    def extra(self) -> float:
        return self.value - self.reference


def timer(statement: str, names: Names) -> Timer:
    # timeit turns garbage collection off; a program does not, and a recorder that makes garbage should pay for it.
    return Timer(statement, setup="import gc; gc.enable()", globals=dict(names))


def compare(ours: tuple[str, Names], theirs: tuple[str, Names], number: int = 2000, repeat: int = 15) -> Pair:
    """Seconds per run of two statements: the minimum of ``repeat`` rounds, taken in turn so that drift hits both."""
    first, second = timer(*ours), timer(*theirs)
    first.timeit(number // 10 + 1)
    second.timeit(number // 10 + 1)
    best = [float("inf"), float("inf")]
    for _ in range(repeat):
        for i, each in enumerate((first, second)):
            best[i] = min(best[i], each.timeit(number) / number)
    return Pair(*best)


def pair_of_inputs(requires_grad: bool = False) -> tuple[Names, Names]:
    """Names x and y (10x10, float32) for a statement: lazy, and plain."""
    x, y = torch.randn(10, 10), torch.randn(10, 10)
    lazy = {"torch": torch, "x": x.to(LAZY).requires_grad_(requires_grad), "y": y.to(LAZY)}
    return lazy, {"torch": torch, "x": x.clone().requires_grad_(requires_grad), "y": y}


def stats() -> dict[str, Any]:
    return mindtorch.stats()
