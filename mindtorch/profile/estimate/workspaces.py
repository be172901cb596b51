"""Memory that a GPU's libraries get from torch's allocator: handles' workspaces, what kernels use while they run.

cuBLAS has a workspace for each thread that uses it, which cublasLt shares. cuDNN's, for the time of a call, are not
known: they go by the algorithm that it chooses.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mindtorch._ext import lazy as _core
from mindtorch._ext import ledger
from mindtorch.ops import op_name
from mindtorch.profile.cost.driver import context_bytes, is_amd
from mindtorch.profile.estimate import known_values

_log = logging.getLogger(__name__)
_KIB = 1 << 10


class Taken(NamedTuple):
    """handle: the library whose handle the call uses, "" for none; bytes: requests for the time of the call."""

    handle: str
    bytes: tuple[int, ...]


_NOTHING = Taken("", ())


class Library:
    """The libraries of one kind of GPU.

    context: bytes that the driver takes for the process. handles: bytes of a handle's workspace, by library.
    """

    def __init__(self, capability: tuple[int, int], processors: int, kind: str) -> None:
        self.capability, self.gpu = capability, kind == "cuda"
        self.context = context_bytes(capability, processors) if self.gpu else 0
        self.handles = {"cublas": cublas_workspace(capability) if self.gpu else 0}
        self._known: dict[int, Taken] = {}

    def of_calls(self, sigs: Any) -> tuple[Any, list[Taken]]:
        """(indices of the calls that take something, what each of them takes)."""
        if not len(sigs) or not self.gpu:
            return np.zeros(0, np.int64), []
        values, which = np.unique(sigs, return_inverse=True)
        taken = [self._of(int(sig)) for sig in values]
        some = np.array([found is not _NOTHING for found in taken])
        at = np.flatnonzero(some[which])
        return at, [taken[i] for i in which[at].tolist()]

    def _of(self, sig: int) -> Taken:
        found = self._known.get(sig)
        if found is None:
            found = self._known[sig] = self._work_out(sig)
        return found

    def _work_out(self, sig: int) -> Taken:
        if not sig:
            return _NOTHING
        named = ledger.named(sig)
        ran = known_values.ran.get(named) if named else None
        if named is not None and ran is None:
            return _NOTHING
        name = _core.sig_info(sig).name if ran is None else op_name(ran[0])
        handle = "cublas" if name in _CUBLAS else ""
        rule = _WHILE_IT_RUNS.get(name)
        sizes: tuple[int, ...] = ()
        if rule is not None:
            from mindtorch.profile.estimate.distinct_calls import call_of

            _func, args, kwargs, out = ran or call_of(sig)
            try:
                sizes = tuple(int(size) for size in rule(args, kwargs, out, self) if size > 0)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
                _log.debug("the workspace of this call of %s is unknown: %s", name, error)
        return Taken(handle, sizes) if handle or sizes else _NOTHING


def cublas_workspace(capability: tuple[int, int]) -> int:
    """Bytes of a cuBLAS handle's workspace, as torch 2.13 asks its own allocator for it (`getChosenWorkspaceSize` in
    aten/src/ATen/cuda/CublasHandlePool.cpp): ``CUBLAS_WORKSPACE_CONFIG=:KiB:count…``, else 32 MiB on Hopper and
    Blackwell, 128 MiB on AMD's gfx94x and gfx95x, and ``:4096:2:16:8`` elsewhere."""
    sizes = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if sizes:
        return sum(int(size) * int(count) * _KIB for size, count in sizes)
    if is_amd(capability):
        return 128 * 1024 * _KIB
    return 32 * 1024 * _KIB if capability[0] in (9, 10, 12) else (4096 * 2 + 16 * 8) * _KIB


#: Ops of which torch's CUDA kernel asks for a cuBLAS handle (`getCurrentCUDABlasHandle`), or for its workspace.
_CUBLAS = frozenset(
    f"aten::{name}" for name in (
        "mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "linear", "matmul", "mv", "addmv", "dot", "vdot", "addr",
        "_scaled_mm", "_int_mm", "addbmm", "linalg_vector_norm_", "triangular_solve", "linalg_solve_triangular",
    )
)  # fmt: skip

Rule = Callable[[Any, Any, Any, Library], tuple[int, ...]]


def _flash_backward(args: Any, kwargs: Any, out: Any, library: Library) -> tuple[int, ...]:
    """FlashAttention's backward pass (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp): softmax_d and
    dq_accum in float32, of rows in blocks of 128 and columns in blocks of 32."""
    query, key = args[1], args[2]
    batch, heads, rows, columns = query.shape
    rows, columns = -(-rows // 128) * 128, -(-columns // 32) * 32
    expanded: tuple[int, ...] = ()
    if key.shape[1] != heads:  # dk and dv of each query head, summed afterwards
        expanded = (batch * heads * key.shape[2] * key.shape[3] * key.element_size(),) * 2
    return (batch * heads * rows * 4, batch * heads * rows * columns * 4, *expanded)


def _embedding_backward(args: Any, kwargs: Any, out: Any, library: Library) -> tuple[int, ...]:
    """embedding_dense_backward sorts its indices (aten/src/ATen/native/cuda/Embedding.cu): sorted and original ones,
    counts, and the same again as room of the sort's."""
    indices = args[1]
    nbytes = indices.numel() * indices.element_size()
    return (nbytes,) * 4 if indices.numel() > 3072 else ()


_WHILE_IT_RUNS: dict[str, Rule] = {
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten::_flash_attention_backward": _flash_backward,
    "aten::embedding_dense_backward": _embedding_backward,
}
