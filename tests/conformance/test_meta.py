"""SPEC M3: every operator of torch's own database gives on our meta device what it gives on torch's.

Shape, dtype, strides, offset, conjugation and requires_grad, with and without gradients; errors, too. By default a
slice: a few samples in the first dtype that an operator takes, and of every thirtieth operator one in other dtypes.
``pytest tests/conformance --conformance=full`` takes every sample in every dtype, ``--dtype int64`` one of them.
"""

from __future__ import annotations

import opcases
import opmeta
import pytest
import torch

#: Where ours gives what the CPU gives, and torch's meta device something else; a reason each.
AS_ON_CPU = {
    "nn.functional.rms_norm": "torch takes another decomposition on meta, with other strides of empty results",
}


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.bfloat16, torch.complex64])
def test_M3_other_dtypes_are_the_same_as_on_torchs_meta(kind: torch.dtype) -> None:
    """Every thirtieth entry, one sample of each."""
    found = {}
    for entry in tuple(opcases.ENTRIES)[::30]:
        if kind in opcases.dtypes_of(opcases.ENTRIES[entry]) and entry not in AS_ON_CPU:
            _calls, found[entry] = opmeta.compare(entry, kind, 1)
    assert {entry: why for entry, why in found.items() if why} == {} and len(found) > 5


@pytest.mark.sample(350)
def test_M3_operator_is_the_same_as_on_torchs_meta(entry: str, dtype: torch.dtype, limits: dict) -> None:
    _calls, differences = opmeta.compare(entry, dtype, limits["most"])
    if entry in AS_ON_CPU and differences:
        pytest.xfail(f"{AS_ON_CPU[entry]}: {differences[0]}")
    assert differences == []
