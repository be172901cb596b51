"""L9: a call that writes memory which it also reads is refused at the call where torch refuses it; others wait."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch

import mindtorch

LAZY = "remote_accelerator:0"
pytestmark = pytest.mark.usefixtures("nothing_pending")
Program = Callable[[torch.Tensor], torch.Tensor]


def outcome(program: Program, device: str) -> object:
    """What all of the memory holds afterwards, or why the call is refused; whether the call waits."""
    base = torch.arange(24.0).to(device)
    before = mindtorch.stats()["ops_pending"]
    try:
        program(base)
    except RuntimeError as error:
        return str(error), base.tolist(), False
    return None, base.tolist(), mindtorch.stats()["ops_pending"] > before


@pytest.mark.parametrize("length", [1, 2, 6])
def test_L9_slices_of_one_tensor_are_refused_where_they_overlap(length: int) -> None:
    starts = [0, 1, length - 1, length, length + 1, 2 * length]
    for to, source in itertools.product(starts, starts):

        def program(base: torch.Tensor, to: int = to, source: int = source) -> torch.Tensor:
            return base[to : to + length].mul_(base[source : source + length])

        expected, got = outcome(program, "cpu"), outcome(program, LAZY)
        assert got[:2] == expected[:2], (to, source)  # type: ignore[index]
        assert (got[0] is not None) == (0 < abs(to - source) < length)  # type: ignore[index]


CASES: dict[str, Program] = {
    "every second": lambda b: b[:12:2].add_(b[1:12:2]),
    "every second, shifted": lambda b: b[:12:2].add_(b[2:14:2]),
    "a row": lambda b: b.view(4, 6)[1].add_(b.view(4, 6)[2]),
    "rows that meet": lambda b: b.view(4, 6)[1:3].add_(b.view(4, 6)[2:4]),
    "columns": lambda b: b.view(4, 6)[:, 0].add_(b.view(4, 6)[:, 1]),
    "transposed": lambda b: b[:16].view(4, 4).add_(b[:16].view(4, 4).t()),
    "transposed and apart": lambda b: b[:4].view(2, 2).add_(b[4:8].view(2, 2).t()),
    "transposed, one shared": lambda b: b[:4].view(2, 2).add_(b[3:7].view(2, 2).t()),
    "expanded": lambda b: b[:6].add_(b[3].expand(6)),
    "expanded, apart": lambda b: b[:6].add_(b[6].expand(6)),
    "one element": lambda b: b[:6].add_(b[2]),
    "one element, the last": lambda b: b[:6].add_(b[5]),
    "one element, the next": lambda b: b[:6].add_(b[6]),
    "every second is read apart": lambda b: b[2:8].add_(b[:12:2]),
    "every second is written apart": lambda b: b[2:14:2].add_(b[:6]),
    "other memory apart": lambda b: b.add_(torch.ones_like(b)),
    "itself": lambda b: b[:6].add_(b[:6]),
    "nothing": lambda b: b[3:3].add_(b[3:3]),
    "nothing within": lambda b: b[:0].add_(b[2]),
    "another dtype": lambda b: b[:6].add_(b[:6].view(torch.int32)),
    "another dtype, apart": lambda b: b[:6].add_(b[6:12].view(torch.int32)),
    "out": lambda b: torch.add(b[:6], 1, out=b[3:9]),
    "out, the same": lambda b: torch.add(b[:6], 1, out=b[:6]),
    "out, apart": lambda b: torch.add(b[:6], 1, out=b[6:12]),
    "out of a product": lambda b: torch.mm(b[:4].view(2, 2), b[4:8].view(2, 2), out=b[8:12].view(2, 2)),
    "out of a product, the same": lambda b: torch.mm(b[:4].view(2, 2), b[4:8].view(2, 2), out=b[:4].view(2, 2)),
    "three, the last one overlaps": lambda b: b[:4].addcmul_(b[8:12], b[2:6]),
    "three, apart": lambda b: b[:4].addcmul_(b[8:12], b[4:8]),
    "two written, apart": lambda b: torch.frexp(b[:4], out=(b[4:8], torch.empty(4, dtype=torch.int32).to(b.device)))[0],
    "a list": lambda b: torch._foreach_add_([b[:4], b[4:8]], [b[8:12], b[2:6]]),
    "a list, apart": lambda b: torch._foreach_add_([b[:4], b[4:8]], [b[8:12], b[12:16]]),
}

WAITS = ["itself", "a row", "every second", *(case for case in CASES if case.endswith("apart") and "dtype" not in case)]


@pytest.mark.parametrize("case", CASES)
def test_L9_other_overlaps_are_refused_as_torch_refuses_them(case: str) -> None:
    expected, got = outcome(CASES[case], "cpu"), outcome(CASES[case], LAZY)
    assert got[:2] == expected[:2]  # type: ignore[index]


@pytest.mark.parametrize("case", WAITS)
def test_L6_what_does_not_overlap_waits(case: str) -> None:
    """Of other dtypes nobody looks where they lie: torch is asked at once."""
    base = torch.arange(24.0).to(LAZY)
    before = mindtorch.stats()["ops_executed"]
    result = CASES[case](base)
    assert mindtorch.stats()["ops_executed"] == before
    del result


@pytest.mark.parametrize("seed", range(4))
def test_L9_random_views_are_refused_where_torch_refuses_them(seed: int) -> None:
    """Of any strides, offsets and one to three operands; what is not refused and lies apart waits."""
    dice = random.Random(seed)
    refused = 0
    for _ in range(150):
        size = [dice.choice((1, 2, 3)) for _ in range(dice.randrange(1, 3))]
        views = [
            (size, [dice.choice((0, 1, 2, 3, 6)) for _ in size], dice.randrange(8)) for _ in range(dice.randrange(2, 4))
        ]
        if dice.random() < 0.2:
            views[1] = views[0]
        call = dice.choice(("add_", "mul_", "out", "copy_", "lerp_"))

        def program(base: torch.Tensor, views: list = views, call: str = call) -> torch.Tensor:
            first, second, *rest = [base.as_strided(*view) for view in views]
            if call == "out":
                return torch.add(second, *(rest or [second]), out=first)
            if call == "lerp_":
                return first.lerp_(second, *(rest or [0.5]))
            written: torch.Tensor = getattr(first, call)(second)
            return written

        expected, got = outcome(program, "cpu"), outcome(program, LAZY)
        assert got[:2] == expected[:2], (views, call)  # type: ignore[index]
        refused += expected[0] is not None  # type: ignore[index]
    assert 10 < refused < 140
