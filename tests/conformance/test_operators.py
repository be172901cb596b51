"""SPEC L7, L8, L9: every operator of torch's own database gives on the lazy device what eager gives on the CPU.

Values bit for bit, shape, dtype, strides, offset, aliasing, mutated inputs, errors and gradients, called as function,
method, operator, in place and with ``out=``. By default a slice that touches every entry once;
``pytest tests/conformance --conformance=full`` takes every sample in every dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import exempt
import opcases
import pytest
import torch

from mindtorch.ops import about
from tests.native import CAN, soon


def test_L7_operator_is_the_same_as_eager(
    entry: str, dtype: torch.dtype, limits: dict, report: Callable[[opcases.Outcome], None]
) -> None:
    outcome = opcases.compare(entry, dtype, **limits)
    report(outcome)
    assert outcome.calls, f"{entry} has no sample inputs in {dtype}"
    assert outcome.differences == []


@CAN
@pytest.mark.usefixtures(soon.__name__)
def test_L13_operator_that_repeats_is_the_same_as_eager(entry: str, dtype: torch.dtype, limits: dict) -> None:
    """Each call four times, with other floats each time: then it is made without Python, if it can be."""
    if limits["most"] is not None:  # the slice
        limits = {"most": 1, "most_ways": 1}
    assert opcases.compare(entry, dtype, **limits, turns=4).differences == []


def test_L9_operator_refuses_what_eager_refuses(entry: str, report: Callable[[opcases.Outcome], None]) -> None:
    outcome = opcases.compare_errors(entry)
    report(outcome)
    if not outcome.calls:
        pytest.skip("torch has no error inputs for it on the CPU")
    assert outcome.differences == []


def test_L7_what_is_not_compared_exists() -> None:
    named = {*exempt.NO_VALUES, *exempt.NO_VALUES_WHEN, *exempt.NOT_IN_INFERENCE_MODE}
    assert named <= set(opcases.ENTRIES)
    assert all(reason for reason in exempt.NO_VALUES.values())


def test_L8_share_of_operators_that_are_recorded(seen: list[opcases.Outcome]) -> None:
    """At least 95 % of the entries that torch can infer on meta are recorded, in every dtype that was run whole; but
    for those that have to say at the call what is wrong with a matrix (L9)."""

    def says_so(outcome: opcases.Outcome) -> bool:
        return bool(outcome.fallbacks) and all(about(name).refuses is not None for name in outcome.fallbacks)

    for kind in {o.dtype for o in seen} - {"errors"}:
        inferable = [o for o in seen if o.dtype == kind and o.calls and o.inferable and not says_so(o)]
        if len(inferable) < 50:
            continue  # some entries only: pytest -k
        recorded = sum(o.recorded for o in inferable)
        assert recorded >= 0.95 * len(inferable), f"{kind}: {recorded} of {len(inferable)}"


def test_L7_the_comparison_sees_differences() -> None:
    """The harness itself: a wrong value, stride, alias or error does not pass."""
    plain = torch.arange(6.0).reshape(2, 3)
    lazy = plain.to(opcases.DEVICE)
    assert list(opcases.tensor_differences(plain, lazy)) == []
    assert any("value" in why for why in opcases.tensor_differences(plain, lazy * -1))
    minus = torch.full((2,), -0.0).to(lazy.device)
    assert any("value" in why for why in opcases.tensor_differences(torch.zeros(2), minus))
    assert any("strides" in why for why in opcases.tensor_differences(plain.t(), lazy.t().contiguous()))
    assert any("dtype" in why for why in opcases.tensor_differences(plain, lazy.double()))
    assert any("instead" in why for why in opcases.tensor_differences(plain, plain))
    assert any("structure" in why for why in opcases.tree_differences((plain,), [lazy]))
    assert opcases.aliasing([lazy], [lazy[0]]) != opcases.aliasing([lazy], [lazy[0].clone()])
    nan = torch.tensor([float("nan")])
    assert opcases.same_bits(nan, -nan) == "" and opcases.same_bits(nan, torch.zeros(1))
