"""SPEC N5: every operator of torch's own database gives on an NPU, staged through the CPU, what eager gives there.

Values bit for bit, shape, dtype, strides, aliasing, mutated inputs, errors and gradients: the comparison of
``tests/conformance``, in float32 (or the entry's first dtype), two samples an entry; all of them, called in every way,
with ``--conformance=full``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("expecttest", reason="torch's operator database needs it: pip install 'mindtorch-genie[test]'")
sys.path.append(str(Path(__file__).parent.parent / "conformance"))

import opcases
import opcompare

from mindtorch.npu import staging
from mindtorch.npu.tensor import NpuTensor, _saved

SIDE = opcompare.Side("npu:0", NpuTensor, lambda t: _saved(t.detach()), lambda t: t.untyped_storage()._cdata)


@pytest.fixture
def staged(library: Any) -> Iterator[None]:
    """The comparison looks at ``npu:0``, and no op runs natively."""
    opcompare.compare_on(SIDE)
    staging.use_native(False)
    yield
    staging.use_native(True)
    opcompare.compare_on(opcompare.LAZY)


@pytest.mark.sample(350)
@pytest.mark.parametrize("entry", [name for name, op in opcases.ENTRIES.items() if opcases.dtypes_of(op)])
def test_N5_operator_is_the_same_as_on_the_cpu(entry: str, staged: None, pytestconfig: pytest.Config) -> None:
    dtypes = opcases.dtypes_of(opcases.ENTRIES[entry])
    limits = {} if pytestconfig.getoption("--conformance") == "full" else {"most": 2, "most_ways": 1}
    outcome = opcases.compare(entry, dtypes[0], **limits)
    assert outcome.calls
    assert outcome.differences == []


def test_N5_the_comparison_sees_differences(staged: None) -> None:
    import torch

    plain = torch.arange(6.0).reshape(2, 3)
    ours = plain.to("npu:0")
    assert list(opcases.tensor_differences(plain, ours)) == []
    assert any("value" in why for why in opcases.tensor_differences(plain, ours * -1))
    assert any("strides" in why for why in opcases.tensor_differences(plain.t(), ours.t().contiguous()))
    assert any("instead" in why for why in opcases.tensor_differences(plain, plain))
    assert opcases.aliasing([ours], [ours[0]]) != opcases.aliasing([ours], [ours[0].clone()])
