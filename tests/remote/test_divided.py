"""R5: what is told of a segment to who divides it, beside a plain model of the programs that recorded it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch._ext.divided import facts, nbytes

from ..executors import using

DEVICE = "remote_accelerator:0"
pytestmark = pytest.mark.usefixtures("nothing_pending")


class Telling(mindtorch.LocalExecutor):
    """Keeps what it is told of each segment."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, Any]] = []

    def submit(self, segment: Any) -> None:
        size = nbytes(segment)
        records, begins, stays, *_ = facts(segment)
        self.told.append((size, (records, {slot: value.clone() for slot, value in begins.items()}, stays)))
        super().submit(segment)


@pytest.fixture
def telling() -> Iterator[Telling]:
    with using(Telling()) as executor:
        yield executor


class Model:
    """A program, and in its own words what is to be told of it: each storage has a number."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.values: list[tuple[torch.Tensor, int]] = []
        self.records: list[tuple] = []
        self.sizes: list[int] = []
        self.outside = {k: torch.rand(3, 4) for k in range(2)}
        for k, memory in self.outside.items():
            lazy = memory.to(DEVICE)
            lazy.add(0).cpu()
            self.values.append((lazy, self.storage(48)))
            self.outside[k] = memory
        self.ours: set[int] = set()  # places of values that records made

    def storage(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def record(self, out: torch.Tensor, grad: bool, draws: int, takes: list[int], makes: list[int]) -> None:
        """makes: numbers of the results' storages."""
        told = []
        for number in makes:
            new = number not in takes
            told.append((number, self.sizes[number] if new else 0))
        self.records.append((grad, draws, takes, [], told))
        self.ours.add(len(self.values))
        self.values.append((out, makes[0]))

    def step(self) -> None:
        value, number = self.dice.choice(self.values)
        grad = self.dice.random() < 0.5
        kind = self.dice.randrange(7)
        with torch.set_grad_enabled(grad):
            if kind == 0:
                self.record(value.t(), grad, -1, [number], [number])
            elif kind == 1:
                value.mul_(1.5)
                self.records.append((grad, -1, [number], [number], []))
            elif kind == 2:
                size = self.dice.randrange(1, 4)
                made = torch.rand(size, device=DEVICE)
                self.record(made, grad, 0, [], [self.storage(4 * size)])
            elif kind == 3:
                self.record(value + 1, grad, -1, [number], [self.storage(value.nbytes)])
            elif kind == 4:
                other, its = self.dice.choice(self.values)
                if other.shape == value.shape:
                    self.record(value * other, grad, -1, [number, its], [self.storage(max(value.nbytes, other.nbytes))])
            elif kind == 5 and value.dtype == torch.float32:
                self.record(value.double(), grad, -1, [number], [self.storage(8 * value.numel())])
            elif self.ours:  # somebody reads it, and it is forgotten
                place = self.dice.choice(sorted(self.ours))
                value, number = self.values[place]
                self.record(value.sum(), grad, -1, [number], [self.storage(value.element_size())])
                self.values[place] = self.values[-1]
                self.values.pop()
                self.ours.discard(len(self.values))

    def stays(self) -> set[int]:
        return {self.values[place][1] for place in self.ours}


@pytest.mark.parametrize("seed", range(30))
def test_R5_what_is_told_of_a_segment_is_what_the_program_did(seed: int, telling: Telling) -> None:
    model = Model(seed)
    before = len(telling.told)
    for _ in range(40):
        model.step()
    mindtorch.flush("test")
    ((size, (records, begins, stays)),) = telling.told[before:]
    assert size == sum(each for *_, makes in model.records for _number, each in makes)
    numbers: dict[int, int] = {}  # of the storages that it tells of

    def known(slots: list[int], expected: list[int]) -> None:
        assert len(slots) == len(expected)
        for slot, number in zip(slots, expected, strict=True):
            assert numbers.setdefault(slot, number) == number

    assert len(records) == len(model.records)
    for (_, _, draws, place, grad, takes, writes, makes), expected in zip(records, model.records, strict=True):
        assert (grad, draws, place) == (expected[0], expected[1], 0)
        known(takes, expected[2])
        known(writes, expected[3])
        known([slot for slot, _ in makes], [number for number, _ in expected[4]])
        assert [each for _, each in makes] == [each for _, each in expected[4]]
    assert len(set(numbers.values())) == len(numbers)
    assert {numbers[slot] for slot in stays} == model.stays()
    taken = {number for _, _, takes, _, _ in model.records for number in takes}
    assert {numbers[slot] for slot in begins} == taken & set(model.outside)
    assert all(torch.equal(value.view(3, 4), model.outside[numbers[slot]]) for slot, value in begins.items())


def test_R5_what_others_still_wait_for_stays(telling: Telling) -> None:
    """Where a read runs a part of what is pending."""
    for how in (lambda y: y * 2, lambda y: y.t() * 2, lambda y: y.t().reshape(-1).neg()):
        y = torch.ones(3, 2).to(DEVICE) + 1
        waits, total = how(y), y.sum()
        del y
        before = len(telling.told)
        assert total.item() == 12
        _, (records, _, stays) = telling.told[before]
        (made,) = {slot for *_, makes in records for slot, size in makes if size == 24} - set(records[0][5])
        assert made in stays
        assert waits.sum().abs().item() in (12, 24)
        gone = torch.ones(3, 2).to(DEVICE) + 1
        total = gone.sum()
        del gone
        assert total.item() == 12
        _, (records, _, stays) = telling.told[-1]
        assert {slot for *_, makes in records for slot, size in makes if size == 4} == stays
