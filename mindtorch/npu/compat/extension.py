"""``torch_npu._C``: of its functions, those that programs which `torch.compile` has written call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mindtorch import npu

__all__ = [
    "_empty_strided_npu", "_npu_getCurrentRawStream", "_npu_getCurrentRawStreamNoWait", "_npu_getDeviceCount"
]  # fmt: skip


def _empty_strided_npu(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """``torch.empty_strided`` on the current NPU."""
    return torch.empty_strided(size, stride, dtype=dtype, device="npu")


def _npu_getCurrentRawStream(device_index: int) -> int:
    """The address of the thread's current stream there."""
    return npu.current_stream(device_index).npu_stream


#: Calls are given to the stream at once: there is no queue to be waited for.
_npu_getCurrentRawStreamNoWait = _npu_getCurrentRawStream
_npu_getDeviceCount = npu.device_count
