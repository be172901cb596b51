"""SPEC N6: where torch_npu is installed and works, ``npu`` tensors are torch's own and its names are left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Claims torch's slot for a foreign device, as torch_npu does, and fails as it does if that is taken.
STAND_IN = """
import sys, types, torch
torch.utils.rename_privateuse1_backend("npu")
torch.npu = sys.modules["torch.npu"] = types.ModuleType("torch.npu")
torch.npu.is_available, torch.npu._lazy_init = lambda: True, lambda: None
torch.Tensor.npu = "theirs"
"""
PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import torch, mindtorch
print(torch.Tensor.npu == "theirs", torch.npu is mindtorch.npu)
print(torch.ones(2, device="remote_accelerator:0").sum().item())
try:
    print(torch.ones(2, device="npu:1").device)
except (NotImplementedError, RuntimeError) as error:
    print("torch's own:", "PrivateUse1" in str(error))
"""


@pytest.mark.parametrize("works", [True, False])
def test_N6_tensors_are_left_to_torch_npu(
    acl_path: Path, tmp_path: Path, works: bool, after_torch: Callable[..., Any]
) -> None:
    (tmp_path / "torch_npu.py").write_text(STAND_IN if works else "raise OSError('libhccl.so: no such file')")
    done = after_torch(PROGRAM.format(folder=str(tmp_path)), GENIE_ACL_LIBRARY=str(acl_path))
    theirs, ours = "True False\n2.0\ntorch's own: True\n", "False True\n2.0\nnpu:1\n"
    assert done.stdout == (theirs if works else ours)
