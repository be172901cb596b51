"""SPEC L9: a number that a dtype does not hold is refused at the call, whatever numbers came before it.

Every operator of torch's database that takes numbers, with numbers at the limits of every dtype in the place of each of
them: error or no error as in eager, and the same values. By default a slice; ``--conformance=full`` takes all numbers
in all dtypes, and large tensors, which are not tried as they are.
"""

from __future__ import annotations

import opcases
import opnumbers
import pytest
import torch

#: What every dtype holds, as a program's first call has it, and what none of the slice's does.
SLICE = (0.5, -1e4, 70_000, 1e9, -3.5e38)
ENTRIES = [e for e in opcases.ENTRIES if e not in opnumbers.SIZED | opnumbers.WITHOUT and opnumbers.places(e)]


def dtypes(name: str) -> list[torch.dtype]:
    return [d for d in opnumbers.DTYPES if opcases.ENTRIES[name].supports_dtype(d, "cpu")]


@pytest.mark.parametrize("name", ENTRIES)
def test_L9_every_number_of_an_operator_is_looked_at(name: str, request: pytest.FixtureRequest) -> None:
    full = request.config.getoption("--conformance") == "full"
    calls, differences = 0, []
    for dtype in dtypes(name) if full else dtypes(name)[:1]:
        compared = [opnumbers.compare(name, dtype, 1, opnumbers.NUMBERS if full else SLICE)]
        if full:
            compared.append(opnumbers.compare_large(name, dtype))
        calls += sum(outcome.calls for outcome in compared)
        differences += [f"{dtype} {why}" for outcome in compared for why in outcome.differences]
    assert calls, f"{name} takes no number in any dtype"
    assert differences == []


def test_L9_the_places_of_numbers_are_found() -> None:
    assert len(ENTRIES) > 100
    assert [place[1] for place in opnumbers.places("add")] == ["other", "alpha"]
    assert [place[1] for place in opnumbers.places("full")] == ["fill_value"]
    assert opnumbers.places("sum") == []
