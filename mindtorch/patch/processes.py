"""Lazy tensors between processes: what multiprocessing sends, and batches made in a DataLoader's workers (SPEC L7)."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy
import torch
from torch.utils.data import default_collate  # noqa: F401  (loads the module below)
from torch.utils.data._utils.collate import default_collate_fn_map

from ..base.patching import Patch
from ..engine.execute import tensors
from ..engine.tensor.queues import told_at_the_other_end
from ..npu.tensor import NpuTensor

__all__ = ["patches"]


def patches() -> Iterator[Patch]:
    """What lets lazy tensors cross process boundaries. They arrive as plain ones, as from a file."""
    for cls in (*tensors.TYPES, NpuTensor):
        yield (ForkingPickler._extra_reducers, cls, _reduce)  # type: ignore[attr-defined]
        yield default_collate_fn_map, cls, _collate


@told_at_the_other_end
def _reduce(t: Any) -> Any:
    # By value: torch sends a plain tensor as a file descriptor of its storage, which must then outlive the message.
    plain = t.detach().cpu().resolve_conj().resolve_neg()
    data = plain.contiguous().reshape(-1).view(torch.uint8).numpy()
    return _rebuild, (
        data,
        plain.dtype,
        tuple(plain.shape),
        plain.stride(),
        t.requires_grad,
        isinstance(t, torch.nn.Parameter),
    )


def _rebuild(
    data: numpy.ndarray,
    dtype: torch.dtype,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    parameter: bool,
) -> torch.Tensor:
    out = torch.empty_strided(size, stride, dtype=dtype)
    if data.size:
        out.copy_(torch.from_numpy(data.copy()).view(dtype).reshape(size))
    return torch.nn.Parameter(out, requires_grad) if parameter else out.requires_grad_(requires_grad)


def _collate(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    # Torch's own, in a worker, asks the tensor's device for shared memory.
    return torch.stack(batch, 0)
