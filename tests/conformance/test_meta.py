"""SPEC M3: every operator of torch's own database gives on our meta device what it gives on torch's.

Shape, dtype, strides, offset, conjugation and requires_grad, with and without gradients; errors, too. By default a
slice; ``pytest tests/conformance --conformance=full`` takes every sample in every dtype.
"""

from __future__ import annotations

import opmeta
import pytest
import torch

#: Where ours gives what the CPU gives, and torch's meta device something else; a reason each.
AS_ON_CPU = {
    "nn.functional.rms_norm": "torch takes another decomposition on meta, with other strides of empty results",
}


def test_M3_operator_is_the_same_as_on_torchs_meta(entry: str, dtype: torch.dtype, limits: dict) -> None:
    _calls, differences = opmeta.compare(entry, dtype, limits["most"])
    if entry in AS_ON_CPU and differences:
        pytest.xfail(f"{AS_ON_CPU[entry]}: {differences[0]}")
    assert differences == []
