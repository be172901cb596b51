"""Tensors that a safetensors file is mapped to: who has the same file need not be sent what is in it (SPEC R2)."""

from __future__ import annotations

import torch

from ...base import mapped_memory
from ..record.arguments import is_dense

__all__ = ["file_of", "note_file"]

_MARK = "_mindtorch_file"
_LEAST = 1 << 20  # bytes: to send less takes no longer than to ask


def note_file(copy: torch.Tensor, of: torch.Tensor) -> None:
    """If a large tensor is mapped from a file, let `file_of` know it of the storage of a copy."""
    if of.device.type != "cpu" or of.nbytes < _LEAST or not is_dense(tuple(of.shape), of.stride()):
        return
    file = mapped_memory.mapped(of.data_ptr(), of.nbytes)
    if file is not None:
        setattr(copy.untyped_storage(), _MARK, file)


def file_of(storage: torch.UntypedStorage) -> tuple[str, int] | None:
    """(path, offset) of what it was copied from. The file may have something else in it now."""
    return getattr(storage, _MARK, None)
