"""The memory of a storage of this process."""

from __future__ import annotations

import ctypes

import torch

__all__ = ["memory_of"]


def memory_of(storage: torch.UntypedStorage) -> ctypes.Array[ctypes.c_char]:
    """All its bytes, not copied; good as long as the storage lives and is not resized.

    Not by numpy: a storage that it has looked at cannot be resized any more. Nor by the object's own `data_ptr`: a copy
    that the program has says by it where the worker's is (`LazyTensor.untyped_storage`).
    """
    n = storage.nbytes()
    return (ctypes.c_char * n).from_address(torch.UntypedStorage.data_ptr(storage)) if n else (ctypes.c_char * 0)()
