"""``torch_npu.distributed``: that there is no HCCL, said by name."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ...base.errors import UnsupportedOperationError
from ...base.patching import for_good
from ..refused import getter

__all__ = ["install", "is_available", "is_hccl_available"]

_MISSING = "Ascend's library of collective operations (libhccl.so) is not supported by mindtorch"
_REFUSED = dict.fromkeys(
    ("all_gather_into_tensor_uneven", "reduce_scatter_tensor_uneven", "reinit_process_group"), _MISSING
)
__getattr__ = getter("torch_npu.distributed", _REFUSED)


def is_hccl_available() -> bool:
    """False: Ascend's library of collective operations is not driven."""
    return False


is_available = is_hccl_available


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise UnsupportedOperationError(
        f"[init_process_group] expected the backend gloo, got hccl: {_MISSING}; one process on one NPU "
        "needs no process group"
    )


def install() -> None:
    """Let torch.distributed know the name of the backend: it is refused in one line."""
    distributed: Any = torch.distributed
    if distributed.is_available() and not hasattr(distributed, "is_hccl_available"):
        for_good([(distributed, "is_hccl_available", is_hccl_available)])
        distributed.Backend.register_backend("hccl", _refuse, devices=["npu"])
