"""What kernels of CUDA want beside dtypes: sizes, a compute capability, settings, that no graph is captured (SPEC C10).

The words are those of torch's CUDA library. Asked once per distinct call, under the settings of that call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_leaves

from ..._ext import context, ledger
from ...devices.lazy_device import device_of, on_cuda
from ..cost.driver import is_amd

__all__ = ["RULES", "captured", "capturing", "check_triton", "has_triton", "of_accelerator", "reads",
           "waits", "within_capture"]  # fmt: skip

_name, _capability = "", (9, 0)
_amd = False
_reads: list[tuple[int, int]] = []  # position in the ledger, location


def of_accelerator(accelerator: Any) -> None:
    """Whose kernels they are from now on: those of an `Accelerator`."""
    global _name, _capability, _amd, _captures
    _name, _capability, _amd, _captures = accelerator.name, accelerator.capability, is_amd(accelerator.capability), 0
    _reads.clear()


# ---- sizes and capability --------------------------------------------------------------------------------------------
def _int_mm(name: str, args: tuple) -> None:
    a, b = args[:2]
    if not on_cuda(a) or a.dim() != 2 or b.dim() != 2 or _amd:
        return
    if a.shape[0] <= 16:
        raise RuntimeError(f"self.size(0) needs to be greater than 16, but got {a.shape[0]}")
    for words, size in (("self.size(1)", a.shape[1]), ("mat2.size(1)", b.shape[1])):
        if size == 0 or size % 8:
            raise RuntimeError(f"{words} needs to be greater than 0 and a multiple of 8, but got {size}")


def _multinomial(name: str, args: tuple) -> None:
    if args[0].dim() and args[0].shape[-1] > 1 << 24:
        raise RuntimeError("number of categories cannot exceed 2^24")


def scaled(a: Any, b: Any) -> None:
    """Raise what cuBLASLt's products of scaled eight-bit numbers refuse: ``a`` (rows, contracted), ``b`` (contracted,
    columns). AMD's library has other limits."""
    if _amd:
        return
    if a.shape[1] % 16:
        shape = f"({a.shape[0]}x{a.shape[1]})"
        raise RuntimeError(f"Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: {shape}.")
    if b.shape[0] % 16 or b.shape[1] % 16:
        raise RuntimeError(f"mat2 shape ({b.shape[0]}x{b.shape[1]}) must be divisible by 16")
    if a.dtype is b.dtype is torch.float8_e5m2:
        raise ValueError("Multiplication of two Float8_e5m2 matrices is not supported")


def _scaled(words: str, *capabilities: tuple[int, int]) -> Callable[[str, tuple], None]:
    def rule(name: str, args: tuple) -> None:
        if on_cuda(args[0]) and _capability < (9, 0) and _capability not in capabilities:
            raise RuntimeError(f"torch.{name.removeprefix('aten::')} is only supported on CUDA devices with {words}")

    return rule


# ---- torch.use_deterministic_algorithms ------------------------------------------------------------------------------
def _must_be_deterministic() -> bool:
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


def _cublas(name: str, args: tuple) -> None:
    """A product of cuBLAS's; one with a bias of one dimension is cuBLASLt's, which is asked for no such setting."""
    if not _must_be_deterministic() or _amd or not any(isinstance(a, torch.Tensor) and on_cuda(a) for a in args):
        return
    if name == "aten::addmm" and args[0].dim() == 1:
        return
    if os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in (":4096:8", ":16:8"):
        raise RuntimeError(
            "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or "
            "`at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic because it uses "
            "CuBLAS and you have CUDA >= 10.2. To enable deterministic behavior in this case, you must set an "
            "environment variable before running your PyTorch application: CUBLAS_WORKSPACE_CONFIG=:4096:8 or "
            "CUBLAS_WORKSPACE_CONFIG=:16:8. For more information, go to "
            "https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility"
        )


def _never_deterministic(kernel: str, where: Callable[[tuple], bool] = bool) -> Callable[[str, tuple], None]:
    def rule(name: str, args: tuple) -> None:
        if _must_be_deterministic() and on_cuda(args[0]) and where(args):
            raise RuntimeError(
                f"{kernel} does not have a deterministic implementation, but you set "
                "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation, or "
                "you can use the 'warn_only=True' option, if that's acceptable for your application."
            )

    return rule


def _of_floats(args: tuple) -> bool:
    return bool(args[0].is_floating_point() or args[0].is_complex())


def _weighted(args: tuple) -> bool:
    return len(args) > 1 and isinstance(args[1], torch.Tensor)


def _of_most(at: int) -> Callable[[tuple], bool]:
    """Of an embedding bag's gradient, whether it is that of mode "max"; at: which argument says so."""
    return lambda args: len(args) > at and args[at] == 2


def _of_products(args: tuple) -> bool:
    return len(args) > 4 and args[4] == "prod"


def _along_a_dim(args: tuple) -> bool:
    return len(args) > 1


_BY_KERNEL = {
    "avg_pool3d_backward": "avg_pool3d_backward_cuda",
    "_adaptive_avg_pool2d_backward": "adaptive_avg_pool2d_backward_cuda",
    "_adaptive_avg_pool3d_backward": "adaptive_avg_pool3d_backward_cuda",
    "adaptive_max_pool2d_backward": "adaptive_max_pool2d_backward_cuda",
    "fractional_max_pool2d_backward": "fractional_max_pool2d_backward_cuda",
    "fractional_max_pool3d_backward": "fractional_max_pool3d_backward_cuda",
    "max_unpool2d": "max_unpooling2d_forward_out", "max_unpool3d": "max_unpooling3d_forward_out",
    "upsample_linear1d_backward": "upsample_linear1d_backward_out_cuda",
    "upsample_bilinear2d_backward": "upsample_bilinear2d_backward_out_cuda",
    "upsample_bicubic2d_backward": "upsample_bicubic2d_backward_out_cuda",
    "upsample_trilinear3d_backward": "upsample_trilinear3d_backward_out_cuda",
    "reflection_pad1d_backward": "reflection_pad1d_backward_out_cuda",
    "reflection_pad2d_backward": "reflection_pad2d_backward_cuda",
    "reflection_pad3d_backward": "reflection_pad3d_backward_out_cuda",
    "nll_loss2d_forward": "nll_loss2d_forward_out_cuda_template", "_ctc_loss_backward": "ctc_loss_backward_gpu",
    "put": "put_", "grid_sampler_2d_backward": "grid_sampler_2d_backward_cuda",
    "grid_sampler_3d_backward": "grid_sampler_3d_backward_cuda",
}  # fmt: skip

#: By operator, what is asked of a call: name, arguments.
RULES: dict[str, Callable[[str, tuple], None]] = {
    "_int_mm": _int_mm,
    "multinomial": _multinomial,
    "_scaled_mm": _scaled("compute capability >= 9.0 or 8.9, or ROCm MI300+", (8, 9)),
    "_scaled_mm_v2": _scaled("compute capability >= 9.0 or 8.9, or ROCm MI300+", (8, 9)),
    "_scaled_grouped_mm": _scaled("compute capability = [9.0, 10.0], or ROCm MI300+"),
    **dict.fromkeys("mm bmm addmm baddbmm mv addmv dot vdot".split(), _cublas),
    **{name: _never_deterministic(kernel) for name, kernel in _BY_KERNEL.items()},
    "histc": _never_deterministic("_histc_cuda with floating point input", _of_floats),
    "cumsum": _never_deterministic("cumsum_cuda_kernel", _of_floats),
    "bincount": _never_deterministic("_bincount_cuda", _weighted),
    "_embedding_bag_backward": _never_deterministic("embedding_bag_backward_cuda_max", _of_most(8)),
    "_embedding_bag_dense_backward": _never_deterministic("embedding_bag_backward_cuda_max", _of_most(7)),
    "scatter_reduce": _never_deterministic("scatter_reduce_cuda_kernel", _of_products),
    "median": _never_deterministic("median CUDA with indices output", _along_a_dim),
}


# ---- torch.compile ---------------------------------------------------------------------------------------------------
def has_triton() -> bool:
    """Does Triton compile for it?"""
    return _capability >= (7, 0)


def check_triton(arguments: Any) -> None:
    """Raise what Inductor says of a GPU that Triton compiles nothing for, if what is compiled works there."""
    if not has_triton() and any(isinstance(t, torch.Tensor) and on_cuda(t) for t in tree_leaves(arguments)):
        raise RuntimeError(
            f"Found {_name} which is too old to be supported by the triton GPU compiler, which is used as the backend. "
            f"Triton only supports devices of CUDA Capability >= 7.0, but your device is of CUDA capability "
            f"{_capability[0]}.{_capability[1]}"
        )


# ---- torch.cuda.graph ------------------------------------------------------------------------------------------------
_captures = 0


def within_capture(begins: bool) -> None:
    """The capture of a CUDA graph begins, or ends."""
    global _captures
    _captures = max(_captures + (1 if begins else -1), 0)


def capturing() -> bool:
    """Is a CUDA graph captured now?"""
    return _captures > 0


def captured() -> NoReturn:
    """Raise CUDA's error of what cannot be captured: it would wait for what has not run."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    raise kind("CUDA error: operation not permitted when stream is capturing")


def waits(t: Any) -> None:
    """A value of ``t`` is read, or copied to the host: the host waits for it."""
    if _captures and on_cuda(t):
        captured()
    if device_of(t).type != "cpu":
        _reads.append((ledger.position(), context.get_location()))


def reads() -> list[tuple[int, int]]:
    """When that was in this estimate, as positions in the ledger, and where."""
    return _reads
