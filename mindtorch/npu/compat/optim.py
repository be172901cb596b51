"""``torch_npu.optim``: torch's optimizers for those that update alike; without fused memory and fused clipping."""

from __future__ import annotations

import torch

from ..refused import getter

__all__ = ["NpuFusedAdadelta", "NpuFusedAdam", "NpuFusedAdamW", "NpuFusedRMSprop", "NpuFusedSGD"]

NpuFusedAdadelta = torch.optim.Adadelta
NpuFusedAdam = torch.optim.Adam
NpuFusedAdamW = torch.optim.AdamW
NpuFusedRMSprop = torch.optim.RMSprop
NpuFusedSGD = torch.optim.SGD
_REFUSED = dict.fromkeys(
    ("NpuFusedAdamP", "NpuFusedBertAdam", "NpuFusedLamb", "NpuFusedOptimizerBase", "NpuFusedRMSpropTF"),
    "torch has no optimizer with the same update",
)
__getattr__ = getter("torch_npu.optim", _REFUSED)
