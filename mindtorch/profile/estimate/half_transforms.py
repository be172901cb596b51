"""Fourier transforms of half precision, which cuFFT computes and C++ refuses of what it takes to be on the CPU.

cuFFT takes them along dimensions whose sizes are powers of two (ATen/native/cuda/CuFFTPlanCache.h). Here they are
transforms in single precision between two conversions: twice the bytes of cuFFT's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...devices.lazy_device import on_cuda

__all__ = ["functions", "transform"]

#: From complex numbers to real ones: the last dimension of the result has the size of the signal.
_TO_REAL = frozenset({"irfft", "hfft", "irfft2", "irfftn", "hfft2", "hfftn"})
_NAMES = (
    "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 hfft2 ihfft2 fftn ifftn rfftn irfftn hfftn ihfftn"
).split()  # fmt: skip
_HALVES = {torch.float16: torch.float32, torch.complex32: torch.complex64}
_SHORTER = {torch.float32: torch.float16, torch.complex64: torch.complex32}


def functions() -> Iterator[tuple[str, Any]]:
    """(name, function of torch.fft)"""
    for name in _NAMES:
        yield name, getattr(torch.fft, name)


def transform(name: str, func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """The transform of a tensor of half precision on CUDA, or RuntimeError in torch's words; NotImplemented of another
    tensor."""
    given = dict(zip(("input", "n", "dim", "norm"), args, strict=False)) | kwargs
    x = given.get("input")
    if not isinstance(x, torch.Tensor) or x.dtype not in _HALVES or not on_cuda(x):
        return NotImplemented
    out = func(x.to(_HALVES[x.dtype]), *args[1:], **{k: v for k, v in kwargs.items() if k != "input"})
    signal = out if name in _TO_REAL or x.is_complex() else x
    sizes = [signal.shape[d] for d in _dims(name, given, x)]
    asked = given.get("n", given.get("s"))
    if asked is not None and signal is x:
        sizes = [asked] if isinstance(asked, int) else list(asked)
    if any(size & (size - 1) for size in sizes):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, but got a "
            f"signal size of{sizes}"
        )
    return out.to(_SHORTER[out.dtype])


def _dims(name: str, given: dict[str, Any], x: torch.Tensor) -> list[int]:
    dim = given.get("dim")
    if dim is None:
        asked = given.get("n", given.get("s"))
        many = len(asked) if isinstance(asked, (list, tuple)) else x.dim()
        return [-1] if name[-1] == "t" else [-2, -1] if name.endswith("2") else list(range(-many, 0))
    return [dim] if isinstance(dim, int) else list(dim)
