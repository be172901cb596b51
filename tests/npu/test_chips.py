"""N3: what chips differ in, by their names."""

from __future__ import annotations

import pytest

from mindtorch.npu import chips

FIRST = ["Ascend910A", "Ascend910B", "Ascend910ProA", "Ascend910ProB", "Ascend910PremiumA", "Ascend310", "Ascend310P1",
         "Ascend310P3", "Ascend310P7"]  # fmt: skip
LATER = [
    "Ascend910B1",
    "Ascend910B2C",
    "Ascend910B4-1",
    "Ascend910_9391",
    "Ascend910_9362",
    "Ascend950PR",
    "Ascend NPU",
]


@pytest.mark.parametrize("name", [*FIRST, *LATER, "Ascend310B1", "Ascend310B4"])
def test_N3_what_a_chip_computes_in(name):
    """As torch_npu tells of the same names."""
    assert chips.computes_bfloat16(name) == (name not in FIRST)
    assert chips.multiplies_float32(name) == (name not in FIRST)
    assert chips.saves_variance(name) == name.startswith(("Ascend910", "Ascend310P"))


@pytest.mark.parametrize(("name", "told"), [("Ascend910B", "False"), ("Ascend910B1", "True"), ("Ascend310B1", "True")])
def test_N3_whether_bfloat16_is_supported_is_told_of_the_chip_that_is_there(in_npu_process, name, told):
    code = "from mindtorch import npu\nprint(npu.get_device_name(), npu.is_bf16_supported())"
    assert in_npu_process(code, GENIE_TEST_NPU_CHIP=name) == f"{name} {told}\n"
